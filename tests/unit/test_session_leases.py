"""When an engine gets a lease, with which version, and what becomes of the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.session_talk import Talk, one_mode
from trimtab.domain import PLAIN_WARM, Mode, speculate
from trimtab.policies.contract import BandDecision, Decision
from trimtab.session.engine_session import SessionSettings
from trimtab.session.events import Answered, Disconnected, PolicySet, SendLease, SendRelease, ShuttingDown, Ticked


def low(mode: Mode | None = None, probability: float = 0.9, reason: str = "exploit") -> BandDecision:
    return BandDecision(1, mode or speculate(3), reason, probability, ((speculate(1), 1 - probability),))


def high(min_batch_size: int = 9, reason: str = "probe") -> BandDecision:
    return BandDecision(min_batch_size, PLAIN_WARM, reason)


TWO_BANDS = Decision(
    (low(), high()),
    smoothing=0.5,
    hysteresis=0.2,
    min_dwell_steps=4,
    exploration_seed=7,
    exploration_dwell_steps=16,
)


def connected(decision: Decision | None = None, settings: SessionSettings | None = None) -> tuple[Talk, SendLease]:
    talk = Talk(settings)
    talk.wanted = decision or talk.wanted
    (sent,) = talk.connect()
    assert isinstance(sent, SendLease)
    return talk, sent


def test_an_engine_that_connects_gets_a_lease_with_the_policys_table() -> None:
    _, sent = connected(TWO_BANDS)
    assert (sent.nonce, sent.ttl_s, sent.pin_remaining_s) == (1, 2.0, None)
    assert sent.lease.version == 1
    assert sent.lease.table == TWO_BANDS.table
    carried = ("smoothing", "hysteresis", "min_dwell_steps", "exploration_seed", "exploration_dwell_steps")
    assert {name: getattr(sent.lease, name) for name in carried} == {n: getattr(TWO_BANDS, n) for n in carried}
    assert (sent.lease.pin, sent.lease.reason) == (None, "told: exploit, probe")


def test_the_policy_is_made_for_the_engine() -> None:
    talk, _ = connected(settings=SessionSettings(seed=5))
    context = talk.policies[0].context
    assert (context.modes, context.bands) == (talk.session.info and talk.session.info.modes, (1, 2, 3, 5))
    assert (context.graph_batch_sizes, context.initial_steps, context.seed) == ((1, 2, 4, 8), 3, 5)


# -- renewal -------------------------------------------------------------------------------------


def test_a_lease_is_renewed_at_half_its_life_and_not_earlier() -> None:
    talk, first = connected()
    assert talk.at(999, Ticked()) == []
    renewed = talk.lease_at(1000, Ticked())
    assert renewed == replace(first, nonce=2)
    assert talk.at(1999, Ticked()) == []
    assert talk.lease_at(2000, Ticked()).nonce == 3


@pytest.mark.parametrize("ttl_s", [0.5, 2.0, 60.0])
def test_half_the_life_is_that_of_the_settings(ttl_s: float) -> None:
    talk, sent = connected(settings=SessionSettings(lease_ttl_s=ttl_s))
    assert sent.ttl_s == ttl_s
    assert talk.at(ttl_s * 500 - 1, Ticked()) == []
    assert talk.lease_at(ttl_s * 500, Ticked()).nonce == 2


def test_an_unchanged_decision_extends_the_lease_with_the_same_version() -> None:
    talk, first = connected(TWO_BANDS)
    assert talk.report(250) == []
    talk.decide(replace(TWO_BANDS, alarms=("acceptance_drift",)))
    assert talk.report(500) == []
    (renewed,) = talk.report(1250)
    assert renewed == replace(first, nonce=2)


def test_an_alarm_of_the_policy_is_noted_once_while_it_stands() -> None:
    talk, _ = connected(TWO_BANDS)
    drifting = replace(TWO_BANDS, alarms=("acceptance_drift",))
    for ms, decision in ((250, drifting), (500, drifting), (750, TWO_BANDS), (1000, drifting)):
        talk.decide(decision)
        talk.report(ms)
    alarms = [note for note in talk.notes if note.event == "policy_alarm"]
    assert [(note.fields, note.warning) for note in alarms] == [({"alarm": "acceptance_drift"}, True)] * 2


CHANGES: list[dict[str, Any]] = [
    {"bands": (low(),)},
    {"bands": (low(PLAIN_WARM), high())},
    {"bands": (low(probability=0.8), high())},
    {"bands": (low(), high(17))},
    {"smoothing": 1.0},
    {"hysteresis": 0.1},
    {"min_dwell_steps": 8},
    {"exploration_seed": 8},
    {"exploration_dwell_steps": 0},
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_decision_is_a_new_version_at_once(change: dict[str, Any]) -> None:
    talk, first = connected(TWO_BANDS)
    talk.decide(replace(TWO_BANDS, **change))
    (sent,) = talk.report(250)
    assert isinstance(sent, SendLease)
    assert (sent.lease.version, sent.nonce) == (first.lease.version + 1, 2)
    assert sent.lease.table == talk.wanted.table
    assert talk.report(500) == []


def test_a_decision_that_differs_in_its_words_alone_is_the_same_lease() -> None:
    talk, _ = connected(TWO_BANDS)
    talk.decide(replace(TWO_BANDS, bands=(low(reason="guard"), high(reason="guard"))))
    assert talk.report(250) == []


def test_a_policy_that_is_set_decides_from_then_on_and_learns_afresh() -> None:
    talk, _ = connected()
    talk.wanted = one_mode(speculate(1))
    sent = talk.lease_at(100, PolicySet("other", talk.make_policy))
    assert (sent.lease.version, sent.lease.table, sent.lease.reason) == (2, talk.wanted.table, "other: exploit")
    assert (talk.session.policy_name, len(talk.policies)) == ("other", 2)
    assert talk.notes[-1].fields == {"policy": "other"}


# -- answers -------------------------------------------------------------------------------------


def test_an_accepted_lease_is_acknowledged() -> None:
    talk, sent = connected()
    assert not talk.session.acknowledged
    assert talk.at(1, Answered(sent.nonce, 1, accepted=True)) == []
    assert talk.session.acknowledged


def test_a_refused_lease_is_recorded_and_noted_once() -> None:
    talk, sent = connected()
    refused = Answered(sent.nonce, 1, accepted=False, refusal="no_state", detail="steps 3 were not built")
    talk.at(1, refused)
    assert (talk.session.acknowledged, talk.session.refusal) == (False, "no_state: steps 3 were not built")
    assert talk.notes[-1].event == "lease_refused"
    assert talk.notes[-1].fields == {"version": 1, "why": "no_state: steps 3 were not built"}
    assert talk.notes[-1].warning
    renewed = talk.lease_at(1000, Ticked())
    talk.at(1001, replace(refused, nonce=renewed.nonce))
    assert talk.session.refused == {"lease_no_state": 2}
    assert talk.noted.count("lease_refused") == 1


def test_a_refusal_is_over_when_a_lease_is_accepted() -> None:
    talk, sent = connected()
    talk.at(1, Answered(sent.nonce, 1, accepted=False, refusal="invalid"))
    assert talk.session.refusal == "invalid"
    renewed = talk.lease_at(1000, Ticked())
    talk.at(1001, Answered(renewed.nonce, 1, accepted=True))
    assert (talk.session.refusal, talk.session.acknowledged) == ("", True)


def test_an_answer_to_an_earlier_lease_says_nothing_about_this_one() -> None:
    talk, sent = connected()
    talk.decide(one_mode(speculate(1)))
    talk.report(250)
    talk.at(251, Answered(sent.nonce, 1, accepted=True))
    talk.at(252, Answered(99, 99, accepted=False, refusal="invalid"))
    assert not talk.session.acknowledged
    assert not talk.session.refused


# -- no lease ------------------------------------------------------------------------------------


def test_an_observing_engine_gets_no_lease() -> None:
    talk = Talk()
    assert talk.connect(acts=False, modes=(), observe_reasons=("tensor parallel size 2", "no adaptive mode")) == []
    assert talk.report(250) == []
    assert talk.at(5000, Ticked()) == []
    assert talk.notes[1].event == "engine_observes"
    assert talk.notes[1].fields == {"reasons": "tensor parallel size 2; no adaptive mode"}
    assert talk.policies == []


def test_a_policy_that_cannot_decide_for_an_engine_leaves_it_to_its_own() -> None:
    talk = Talk()
    talk.unusable = "has no mode with 2 steps"
    assert talk.connect() == []
    assert talk.report(250) == []
    assert talk.notes[-1].event == "policy_unusable"
    assert talk.notes[-1].fields == {"policy": "told", "why": "has no mode with 2 steps"}


def test_nothing_is_sent_to_an_engine_that_is_away() -> None:
    talk, _ = connected()
    assert talk.at(100, Disconnected("connection lost")) == []
    assert talk.at(5000, Ticked()) == []
    assert not talk.session.connected
    assert talk.notes[-1].fields == {"reason": "connection lost"}


def test_shutting_down_releases_the_engine_and_sends_nothing_more() -> None:
    talk, _ = connected()
    assert talk.at(100, ShuttingDown("the controller stops")) == [SendRelease("the controller stops")]
    talk.decide(one_mode(speculate(1)))
    assert talk.report(250) == []
    assert talk.at(5000, Ticked()) == []


def test_shutting_down_says_nothing_to_an_engine_that_is_away() -> None:
    talk, _ = connected()
    talk.at(50, Disconnected())
    assert talk.at(100, ShuttingDown()) == []
