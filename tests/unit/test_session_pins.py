"""An operator's order: it goes before the policy, has its own end, and survives both sides' restarts."""

from __future__ import annotations

import pytest

from support.session_talk import Talk, engine, one_mode
from trimtab.domain import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, InForce, Mode, Pin, Source, modes_of, speculate
from trimtab.errors import NotOfferedError
from trimtab.session.engine_session import EngineSession
from trimtab.session.events import Connected, Disconnected, Pinned, SendLease, SendRelease, Ticked, Unpinned

PIN = Pin("p1", PLAIN_WARM, "latency", "kim")


def pinned(duration_s: float | None = None) -> Talk:
    talk = Talk()
    talk.connect()
    talk.lease_at(100, Pinned(PIN, duration_s))
    return talk


def test_a_pin_is_sent_at_once_with_the_policys_table_beside_it() -> None:
    talk = Talk()
    talk.connect()
    sent = talk.lease_at(100, Pinned(PIN, 60))
    assert (sent.lease.version, sent.lease.pin, sent.pin_remaining_s) == (2, PIN, 60)
    assert (sent.lease.table, sent.lease.reason) == (talk.wanted.table, "pin")
    assert talk.notes[-1].event == "engine_pinned"
    assert talk.notes[-1].fields == {"mode": "plain_warm", "owner": "kim", "why": "latency"}


def test_a_pin_without_a_duration_holds_until_it_is_released() -> None:
    talk = pinned()
    sent = talk.lease_at(10_000_000, Ticked())
    assert (sent.lease.pin, sent.pin_remaining_s) == (PIN, None)
    released = talk.lease_at(10_000_100, Unpinned())
    assert (released.lease.version, released.lease.pin) == (3, None)
    assert released.lease.table == talk.wanted.table
    assert talk.notes[-1].fields == {"mode": "plain_warm", "why": "released"}


def test_under_a_pin_the_policy_learns_and_its_decisions_wait() -> None:
    talk = pinned()
    talk.decide(one_mode(speculate(1)))
    assert talk.report(250) == []
    assert talk.lease_at(260, Unpinned()).lease.table == talk.wanted.table


def test_a_renewal_says_how_long_the_pin_still_has() -> None:
    talk = pinned(60)
    renewed = talk.lease_at(1100, Ticked())
    assert (renewed.lease.version, renewed.pin_remaining_s) == (2, 59)


def test_a_pin_ends_by_itself_when_its_time_is_over() -> None:
    talk = pinned(5)
    for ms in range(1100, 5100, 1000):
        assert talk.lease_at(ms, Ticked()).lease.pin == PIN
    ended = talk.lease_at(5100, Ticked())
    assert (ended.lease.version, ended.lease.pin) == (3, None)
    assert talk.notes[-1].fields == {"mode": "plain_warm", "why": "its time is over"}
    assert talk.session.pin is None


def test_a_new_pin_takes_the_place_of_the_old_one() -> None:
    talk = pinned(5)
    other = Pin("p2", speculate(1))
    sent = talk.lease_at(200, Pinned(other))
    assert (sent.lease.version, sent.lease.pin, sent.pin_remaining_s) == (3, other, None)


def test_releasing_nothing_does_nothing() -> None:
    talk = Talk()
    talk.connect()
    assert talk.at(100, Unpinned()) == []


def test_a_pin_given_while_the_engine_is_away_reaches_it_when_it_comes_back() -> None:
    talk = Talk()
    talk.connect()
    talk.at(50, Disconnected())
    assert talk.at(100, Pinned(PIN, 60)) == []
    (sent,) = talk.connect(20_100)
    assert isinstance(sent, SendLease)
    assert (sent.lease.pin, sent.pin_remaining_s) == (PIN, 40)


def test_a_pin_is_sent_again_to_an_engine_that_restarted() -> None:
    talk = pinned()
    talk.at(150, Disconnected())
    (sent,) = talk.connect(200, boot_id="boot-2")
    assert isinstance(sent, SendLease)
    assert sent.lease.pin == PIN


def test_a_pin_that_was_released_while_the_engine_was_away_is_released_when_it_comes_back() -> None:
    talk = pinned()
    talk.at(150, Disconnected())
    assert talk.at(160, Unpinned()) == []
    (sent,) = talk.connect(200, pin=PIN, in_force=InForce(Source.PIN, PLAIN_WARM, pin_id="p1"), last_lease_version=2)
    assert isinstance(sent, SendLease)
    assert (sent.lease.pin, sent.lease.version) == (None, 3)


# -- where no policy decides ---------------------------------------------------------------------


def without_policy() -> Talk:
    talk = Talk()
    talk.unusable = "needs two modes"
    talk.connect()
    return talk


def test_without_a_policy_a_pin_comes_without_a_table() -> None:
    talk = without_policy()
    sent = talk.lease_at(100, Pinned(PIN))
    assert (sent.lease.table, sent.lease.pin) == ((), PIN)


def test_without_a_policy_a_released_pin_leaves_the_engine_to_its_own_rule() -> None:
    talk = without_policy()
    talk.lease_at(100, Pinned(PIN))
    lease, release = talk.at(200, Unpinned())
    assert isinstance(lease, SendLease)
    assert (lease.lease.pin, lease.lease.version) == (None, 2)
    assert release == SendRelease("no policy decides for this engine")
    assert talk.at(5000, Ticked()) == []


# -- a controller that restarted -----------------------------------------------------------------


def test_a_new_session_adopts_the_engines_pin_and_goes_on_from_its_version() -> None:
    talk = Talk()
    (sent,) = talk.connect(
        1000,
        pin=PIN,
        pin_remaining_s=30.0,
        last_lease_version=41,
        in_force=InForce(Source.PIN, PLAIN_WARM, 41, "p1"),
    )
    assert isinstance(sent, SendLease)
    assert (sent.lease.version, sent.lease.pin, sent.pin_remaining_s) == (42, PIN, 30)
    assert talk.session.pin is not None
    assert talk.session.pin.remaining_s(11_000_000_000) == 20
    assert talk.policies[0].context.incumbent == PLAIN_WARM


# -- what can be pinned --------------------------------------------------------------------------

OFFERED = "plain_warm, speculate(1), speculate(3)"


def session_of(modes: tuple[Mode, ...], acts: bool = True, reasons: tuple[str, ...] = ()) -> EngineSession:
    talk = Talk()
    talk.at(0, Connected(engine(modes=modes, acts=acts, observe_reasons=reasons)))
    return talk.session


def test_modes_on_offer_can_be_asked_for() -> None:
    for mode in modes_of([0, 1, 3]):
        session_of(modes_of([0, 1, 3])).check_mode(mode)


@pytest.mark.parametrize(
    ("session", "mode", "words"),
    [
        (session_of(modes_of([0, 1, 3])), speculate(2), f"e1 does not offer speculate(2); it offers {OFFERED}"),
        (session_of(modes_of([0, 1, 3])), PLAIN_COLD, f"e1 does not offer plain_cold; it offers {OFFERED}"),
        (session_of((), False, ("a", "b")), speculate(1), "e1 only observes: a; b"),
        (session_of((), False), speculate(1), "e1 only observes: no reason given"),
        (Talk().session, speculate(1), "the engine has not said yet what it offers"),
    ],
)
def test_a_mode_that_is_not_on_offer_is_refused_with_what_is(session: EngineSession, mode: Mode, words: str) -> None:
    with pytest.raises(NotOfferedError) as caught:
        session.check_mode(mode)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("modes", "cheapest"),
    [
        (modes_of([0, 1]), PLAIN_WARM),
        ((PLAIN_NATIVE, PLAIN_WARM), PLAIN_NATIVE),
        ((PLAIN_COLD, PLAIN_NATIVE, speculate(1)), PLAIN_NATIVE),
    ],
)
def test_the_cheapest_safe_plain(modes: tuple[Mode, ...], cheapest: Mode) -> None:
    assert session_of(modes).cheapest_plain() == cheapest


@pytest.mark.parametrize(
    ("session", "words"),
    [
        (session_of(modes_of([1, 3])), "e1 offers no plain decoding; it offers speculate(1), speculate(3)"),
        (session_of((PLAIN_COLD,)), "e1 offers no plain decoding; it offers plain_cold"),
        (session_of((), False, ("no adaptive mode",)), "e1 only observes: no adaptive mode"),
        (Talk().session, "the engine has not said yet what it offers"),
    ],
)
def test_without_a_safe_plain_the_error_says_what_there_is(session: EngineSession, words: str) -> None:
    with pytest.raises(NotOfferedError) as caught:
        session.cheapest_plain()
    assert str(caught.value) == words


def test_a_policy_that_cannot_decide_here_is_refused_beforehand() -> None:
    talk = Talk()
    talk.connect()
    talk.session.check_policy("told", talk.make_policy)
    talk.unusable = "needs two modes"
    with pytest.raises(NotOfferedError, match="e1 cannot have policy told: needs two modes"):
        talk.session.check_policy("told", talk.make_policy)
