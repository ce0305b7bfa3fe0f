"""A policy in shadow decides, is shown and logged, and is not followed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.scripted_engine import decode_row
from support.session_talk import Talk, TestPolicy, one_mode
from trimtab.domain import PLAIN_WARM, CostKey, Mode, Pin, StepFlag, StepRow, speculate
from trimtab.errors import PolicyError
from trimtab.policies.contract import BandDecision, Decision, PolicyContext
from trimtab.session.events import (
    Disconnected,
    Pinned,
    PoliciesSwapped,
    PolicySet,
    SendLease,
    ShadowDropped,
    ShadowSet,
    Unpinned,
)
from trimtab.session.shadow import NOTE_EVERY_NS, Shadow

THREE = speculate(3)
BELOW_9_ALIKE = Decision((BandDecision(1, speculate(3), "exploit"), BandDecision(9, PLAIN_WARM, "exploit")))


class Shadowed(Talk):
    """A session with a policy in shadow that decides what `other` says."""

    def __init__(self, other: Decision = BELOW_9_ALIKE) -> None:
        super().__init__()
        self.others: list[TestPolicy] = []
        self.other = other
        self.connect()
        self.at(50, ShadowSet("other", self.make_other))

    def make_other(self, context: PolicyContext) -> TestPolicy:
        self.others.append(TestPolicy(context, self.other))
        return self.others[-1]

    @property
    def shadow(self) -> Shadow:
        assert self.session.shadow is not None
        return self.session.shadow


def rows(batch_size: int, count: int, mode: Mode = THREE, first: int = 1) -> tuple[StepRow, ...]:
    return tuple(decode_row(first + i, mode, batch_size) for i in range(count))


def test_a_shadow_learns_and_decides_and_the_lease_stays_the_acting_policys() -> None:
    talk = Shadowed(one_mode(PLAIN_WARM))
    assert talk.report(250, rows=rows(4, 5)) == []
    assert len(talk.others[0].learned) == len(talk.policies[0].learned) == 5
    assert talk.shadow.decision == one_mode(PLAIN_WARM)
    assert talk.session.lease is not None
    assert talk.session.lease.table == talk.wanted.table
    assert talk.session.policy_name == "told"


def test_agreement_counts_the_steps_for_which_both_chose_the_same_mode() -> None:
    talk = Shadowed()
    talk.report(250)
    assert (talk.shadow.steps, talk.shadow.agreed_steps) == (0, 0)
    talk.report(500, rows=rows(4, 30))
    talk.report(750, rows=rows(12, 10))
    assert (talk.shadow.steps, talk.shadow.agreed_steps) == (40, 30)


def test_agreement_is_about_what_was_decided_when_the_steps_ran() -> None:
    talk = Shadowed(one_mode(speculate(3)))
    talk.report(250)
    talk.others[0].decision = one_mode(PLAIN_WARM)
    talk.report(500, rows=rows(4, 7))
    assert talk.shadow.agreed_steps == 7
    talk.report(750, rows=rows(4, 7))
    assert talk.shadow.agreed_steps == 7


def test_warm_up_and_sweep_say_nothing_about_agreement() -> None:
    talk = Shadowed()
    talk.report(250)
    odd = [replace(row, flags=flag) for row in rows(4, 1) for flag in (StepFlag.WARM_UP, StepFlag.SWEEP)]
    talk.report(500, rows=tuple(odd))
    assert talk.shadow.steps == 0


def test_a_changed_mind_is_logged_and_a_wavering_one_not_every_time() -> None:
    talk = Shadowed()
    talk.report(250)
    for turn in range(40):
        talk.others[0].decision = one_mode(speculate(1 + turn % 2 * 2))
        talk.report(500 + turn * 250)
    said = [note.fields for note in talk.notes if note.event == "shadow_decision"]
    assert said[0] == {"policy": "other", "table": "1: speculate(3), 9: plain_warm", "changes": 1}
    assert len(said) == 2, "one in ten seconds"
    assert int(said[1]["changes"]) > 30
    assert NOTE_EVERY_NS == 10_000_000_000


def test_an_unchanged_decision_is_logged_once() -> None:
    talk = Shadowed()
    for ms in range(250, 60_000, 250):
        talk.report(ms)
    assert talk.noted.count("shadow_decision") == 1


def test_a_shadow_that_cannot_decide_here_says_so_and_harms_nothing() -> None:
    talk = Talk()
    talk.connect()

    def impossible(context: PolicyContext) -> TestPolicy:
        raise PolicyError("needs two modes")

    talk.at(50, ShadowSet("other", impossible))
    assert talk.session.shadow is not None
    assert talk.session.shadow.unusable == "needs two modes"
    assert talk.noted[-1] == "shadow_unusable"
    assert talk.report(250, rows=rows(4, 5)) == []
    assert talk.at(300, PoliciesSwapped()) == [], "it cannot take over either"
    assert talk.session.policy_name == "told"


def test_a_dropped_shadow_is_gone() -> None:
    talk = Shadowed()
    assert talk.at(100, ShadowDropped()) == []
    assert talk.session.shadow is None
    assert talk.at(150, ShadowDropped()) == []
    assert talk.noted.count("shadow_dropped") == 1


# -- taking over ---------------------------------------------------------------------------------


def test_a_shadow_takes_over_with_what_it_learnt_and_the_other_goes_on_as_its_shadow() -> None:
    talk = Shadowed(one_mode(PLAIN_WARM))
    talk.report(250, rows=rows(4, 5))
    taken = talk.lease_at(300, PoliciesSwapped())
    assert taken.lease.table == one_mode(PLAIN_WARM).table
    assert (talk.session.policy_name, talk.shadow.name) == ("other", "told")
    talk.report(500, rows=rows(4, 5, PLAIN_WARM, first=6))
    assert len(talk.others[0].learned) == len(talk.policies[0].learned) == 10
    back = talk.lease_at(600, PoliciesSwapped())
    assert back.lease.table == talk.wanted.table
    assert (talk.session.policy_name, len(talk.policies)) == ("told", 1), "nobody had to learn afresh"


def test_under_a_pin_taking_over_changes_nothing_that_runs() -> None:
    talk = Shadowed(one_mode(PLAIN_WARM))
    talk.lease_at(100, Pinned(Pin("p", speculate(1))))
    talk.report(250, rows=rows(4, 5))
    assert talk.at(300, PoliciesSwapped()) == []
    (released,) = talk.at(400, Unpinned())
    assert isinstance(released, SendLease)
    assert released.lease.table == one_mode(PLAIN_WARM).table


def test_another_acting_policy_leaves_the_shadow_alone() -> None:
    talk = Shadowed()
    talk.at(100, PolicySet("third", talk.make_policy))
    assert talk.shadow.name == "other"


# -- restarts ------------------------------------------------------------------------------------


class Remembering(TestPolicy):
    """A policy whose snapshot is what it learned."""

    def snapshot(self) -> dict[str, object]:
        return {"learned": list(self.learned)}

    def restore(self, snapshot: object) -> None:
        assert isinstance(snapshot, dict)
        self.learned = [*snapshot["learned"]]

    def forget(self) -> None:
        self.learned = self.learned[:1]


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, 5),
        ({"boot_id": "boot-2"}, 1),
        ({"cost_key": CostKey(weight_version="2")}, 1),
        ({"boot_id": "boot-2", "max_running_requests": 4}, 0),
        ({"cost_key": CostKey(model="other")}, 0),
    ],
)
def test_a_shadow_keeps_over_a_restart_what_the_acting_policy_would_keep(change: dict[str, object], kept: int) -> None:
    talk = Talk()
    talk.connect()
    made: list[Remembering] = []

    def remembering(context: PolicyContext) -> Remembering:
        made.append(Remembering(context, talk.wanted))
        return made[-1]

    talk.at(50, ShadowSet("other", remembering))
    talk.report(250, rows=rows(4, 5))
    talk.at(300, Disconnected())
    talk.connect(400, **change)
    assert len(made[-1].learned) == kept
