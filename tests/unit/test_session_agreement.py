"""Ranks that choose differently: one alarm, one pin, and no change of mode until somebody says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.session_talk import Talk, one_mode
from trimtab.domain import PLAIN_WARM, InForce, Mode, Pin, RankStep, Source, modes_of, speculate
from trimtab.session.agreement import ALARM, Disagreement, disagreement
from trimtab.session.events import Disconnected, Pinned, SendLease, Unpinned

AGREED = tuple(RankStep(rank, 400, speculate(3), 24, digest=7) for rank in range(4))
SIZES = tuple(replace(rank, batch_size=25, digest=8) if rank.rank > 1 else rank for rank in AGREED)
LEASED = InForce(Source.LEASE, speculate(3), 1)


def parted(**changes: Any) -> tuple[RankStep, ...]:
    """The ranks, the last one with changes."""
    return (*AGREED[:3], replace(AGREED[3], digest=8, **changes))


SEEN: list[tuple[tuple[RankStep, ...], str | None]] = [
    ((), None),
    (AGREED[:1], None),
    (AGREED, None),
    (parted(mode=speculate(1)), "rank 3 ran speculate(1) for a batch of 24; the others speculate(3) for a batch of 24"),
    (parted(batch_size=25), "rank 3 ran speculate(3) for a batch of 25; the others speculate(3) for a batch of 24"),
    (parted(), "all ran speculate(3) for a batch of 24, their digests of the steps before differ"),
    (parted(step=401), None),
]


@pytest.mark.parametrize(("ranks", "what"), SEEN)
def test_what_ranks_disagree_about(ranks: tuple[RankStep, ...], what: str | None) -> None:
    assert disagreement(ranks) == (None if what is None else Disagreement(400, what))


def running(**fields: Any) -> Talk:
    talk = Talk()
    talk.connect(**fields)
    talk.report(250, ranks=AGREED, in_force=LEASED)
    talk.notes.clear()
    return talk


def test_ranks_that_part_raise_an_alarm_and_are_pinned_to_the_mode_in_force() -> None:
    talk = running()
    talk.decide(one_mode(speculate(1)))
    (sent,) = talk.report(500, ranks=SIZES, in_force=LEASED)
    assert isinstance(sent, SendLease)
    assert sent.lease.pin is not None
    assert (sent.lease.pin.mode, sent.lease.pin.owner, sent.pin_remaining_s) == (speculate(3), "trimtab", None)
    alarm, pinned = talk.notes
    assert (alarm.event, alarm.warning, alarm.fields["step"]) == (ALARM, True, 400)
    assert "rank 2 ran speculate(3) for a batch of 25" in str(alarm.fields["what"])
    assert pinned.event == "engine_pinned"
    assert talk.session.alarms == (ALARM,)


def test_the_alarm_is_raised_once_and_stays() -> None:
    talk = running()
    for ms in (500, 750, 1000):
        talk.report(ms, ranks=SIZES, in_force=LEASED)
    assert talk.noted.count(ALARM) == 1
    assert talk.session.alarms == (ALARM,)


def test_no_lease_changes_the_mode_while_they_are_apart() -> None:
    talk = running()
    talk.report(500, ranks=SIZES, in_force=LEASED)
    pinned = InForce(Source.PIN, speculate(3), 2, "p")
    for i, steps in enumerate((0, 1, 3, 0)):
        talk.decide(one_mode(speculate(steps)))
        for sent in talk.report(750 + 250 * i, ranks=SIZES, in_force=pinned):
            assert isinstance(sent, SendLease)
            assert sent.lease.pin is not None
            assert sent.lease.pin.mode == speculate(3)


def test_a_pin_that_an_operator_releases_is_not_set_again() -> None:
    talk = running()
    talk.report(500, ranks=SIZES, in_force=LEASED)
    talk.at(600, Unpinned())
    talk.report(750, ranks=SIZES, in_force=LEASED)
    assert talk.session.pin is None
    assert talk.session.alarms == (ALARM,)


def test_an_operators_own_pin_stays() -> None:
    talk = running()
    talk.at(300, Pinned(Pin("mine", PLAIN_WARM)))
    talk.report(500, ranks=SIZES, in_force=LEASED)
    assert talk.session.pin is not None
    assert talk.session.pin.pin.id == "mine"
    assert ALARM in talk.noted


SAFE: list[tuple[InForce, tuple[Mode, ...], Mode]] = [
    (InForce(), modes_of([0, 1, 3]), PLAIN_WARM),
    (InForce(Source.STOCK, speculate(7)), modes_of([0, 1, 3]), PLAIN_WARM),
    (InForce(Source.STOCK, speculate(1)), modes_of([0, 1, 3]), speculate(1)),
]


@pytest.mark.parametrize(("in_force", "modes", "mode"), SAFE)
def test_the_safe_mode_is_the_one_in_force_or_plain(in_force: InForce, modes: tuple[Mode, ...], mode: Mode) -> None:
    talk = running(modes=modes)
    talk.report(500, ranks=SIZES, in_force=in_force)
    assert talk.session.pin is not None
    assert talk.session.pin.pin.mode == mode


@pytest.mark.parametrize("fields", [{"acts": False, "modes": ()}, {"modes": modes_of([1, 3])}])
def test_where_nothing_can_be_pinned_there_is_the_alarm_alone(fields: dict[str, Any]) -> None:
    talk = running(**fields)
    talk.report(500, ranks=SIZES, in_force=InForce())
    assert talk.session.pin is None
    assert talk.session.alarms == (ALARM,)


def test_an_engine_that_restarts_is_together_again_and_stays_pinned() -> None:
    talk = running()
    talk.report(500, ranks=SIZES, in_force=LEASED)
    talk.at(600, Disconnected())
    talk.connect(700, boot_id="boot-2")
    assert talk.session.alarms == ()
    assert talk.session.pin is not None
    talk.report(950, ranks=SIZES, in_force=LEASED)
    assert talk.noted.count(ALARM) == 2
