"""A pin on a range of steps: the policy chooses within it, and nothing else is chosen or tried."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.session_talk import Talk, one_mode
from trimtab.domain import (
    PLAIN_COLD,
    PLAIN_NATIVE,
    PLAIN_WARM,
    InForce,
    Mode,
    Pin,
    Source,
    StepRange,
    TableEntry,
    modes_of,
    speculate,
)
from trimtab.errors import NoSuchModeError, NotOfferedError
from trimtab.policies.contract import BandDecision, Candidate, Decision
from trimtab.session.confine import confined
from trimtab.session.events import Pinned, SendLease, Ticked, Unpinned
from trimtab.session.pins import Relative, can_hold, pin_for
from trimtab_sglang.lease import Lease, LeaseError, LeaseMachine, check_lease

OFFERED = modes_of([0, 1, 3, 5, 7])
NARROW = StepRange(1, 3)


def band(mode: Mode, *alternatives: tuple[Mode, float], worth: dict[Mode, float] | None = None) -> BandDecision:
    candidates = tuple(Candidate(m, goodput_tps=tps) for m, tps in (worth or {}).items())
    return BandDecision(1, mode, "exploit", 1 - sum(p for _, p in alternatives), alternatives, candidates)


def kept(decided: BandDecision, allowed: StepRange = NARROW, held: Mode | None = None) -> BandDecision:
    (found,) = confined(Decision((decided,)), allowed, OFFERED, {1: held} if held else {}).bands
    return found


# -- the decision --------------------------------------------------------------------------------


def test_a_choice_within_the_range_stands_with_all_that_belongs_to_it() -> None:
    decided = band(speculate(3), (speculate(1), 0.25), worth={speculate(3): 9.0})
    assert kept(decided) is decided


def test_what_would_have_been_tried_outside_the_range_goes_to_the_choice_itself() -> None:
    found = kept(band(speculate(3), (speculate(1), 0.25), (speculate(5), 0.25)))
    assert (found.probability, found.alternatives, found.reason) == (0.75, ((speculate(1), 0.25),), "exploit")


def test_outside_the_range_the_policys_own_figures_name_the_best_within() -> None:
    worth = {speculate(7): 100.0, speculate(3): 80.0, speculate(1): 90.0, PLAIN_WARM: 95.0}
    found = kept(band(speculate(7), (speculate(5), 0.5), worth=worth))
    assert (found.mode, found.probability, found.alternatives, found.reason) == (speculate(1), 1.0, (), "pin")
    assert len(found.candidates) == 4, "the explanation stays whole"


@pytest.mark.parametrize(("held", "mode"), [(speculate(3), 3), (speculate(1), 1), (speculate(7), 1), (None, 1)])
def test_the_mode_that_runs_is_not_left_for_a_gain_within_the_noise(held: Mode | None, mode: int) -> None:
    worth = {speculate(7): 100.0, speculate(3): 89.5, speculate(1): 90.0}
    assert kept(band(speculate(7), worth=worth), held=held).mode == speculate(mode)


@pytest.mark.parametrize(
    ("allowed", "chosen", "mode"),
    [
        (StepRange(1, 3), speculate(7), speculate(3)),
        (StepRange(1, 3), PLAIN_WARM, speculate(1)),
        (StepRange(4, 6), PLAIN_WARM, speculate(5)),
        (StepRange(0, 0), speculate(7), PLAIN_WARM),
    ],
)
def test_without_figures_the_nearest_steps_are_taken(allowed: StepRange, chosen: Mode, mode: Mode) -> None:
    assert kept(band(chosen), allowed).mode == mode


def test_cold_plain_is_not_taken_unasked() -> None:
    decision = Decision((band(speculate(3)),))
    offered = (PLAIN_COLD, PLAIN_WARM, PLAIN_NATIVE, speculate(3))
    assert confined(decision, StepRange(0, 0), offered, {}).bands[0].mode == PLAIN_NATIVE
    assert confined(decision, StepRange(0, 0), (PLAIN_COLD, speculate(3)), {}).bands[0].mode == PLAIN_COLD


modes = st.sampled_from(OFFERED)
shares = st.floats(0, 0.3)


@given(
    low=st.integers(0, 7),
    high=st.integers(0, 7),
    chosen=modes,
    others=st.lists(st.tuples(modes, shares), max_size=3),
    worth=st.dictionaries(modes, st.floats(0, 1e6)),
    held=st.none() | modes,
)
def test_nothing_outside_the_range_is_ever_chosen_or_tried(
    low: int, high: int, chosen: Mode, others: list[tuple[Mode, float]], worth: dict[Mode, float], held: Mode | None
) -> None:
    allowed = StepRange(min(low, high), max(low, high))
    if not any(mode in allowed for mode in OFFERED):
        return
    found = kept(band(chosen, *others, worth=worth), allowed, held)
    assert all(mode in allowed for mode in (found.mode, *(mode for mode, _ in found.alternatives)))
    assert found.probability + sum(p for _, p in found.alternatives) == pytest.approx(1)


# -- the session ---------------------------------------------------------------------------------


def ranged(low: int, high: int, mode: Mode) -> Pin:
    return Pin("r1", mode, "tail latency", "kim", StepRange(low, high))


def test_under_a_range_the_policy_goes_on_deciding_within_it() -> None:
    talk = Talk()
    talk.connect()
    sent = talk.lease_at(100, Pinned(ranged(0, 1, speculate(1)), 60))
    assert (sent.lease.pin, sent.pin_remaining_s) == (ranged(0, 1, speculate(1)), 60)
    assert [entry.mode for entry in sent.lease.table] == [speculate(1)], "the policy wants 3 steps"
    talk.decide(one_mode(PLAIN_WARM))
    (changed,) = talk.report(250)
    assert isinstance(changed, SendLease)
    assert changed.lease.table == talk.wanted.table
    assert changed.lease.version == sent.lease.version + 1
    assert talk.notes[-1].fields["mode"] == "steps 0-1"


def test_under_a_range_the_same_decision_again_is_no_new_lease() -> None:
    talk = Talk()
    talk.connect()
    talk.lease_at(100, Pinned(ranged(0, 1, speculate(1))))
    assert talk.report(250) == []
    assert talk.lease_at(1200, Ticked()).lease.version == 2


def test_when_a_range_ends_the_policys_own_decision_is_back() -> None:
    talk = Talk()
    talk.connect()
    talk.lease_at(100, Pinned(ranged(0, 1, speculate(1))))
    released = talk.lease_at(200, Unpinned())
    assert (released.lease.pin, released.lease.table) == (None, talk.wanted.table)


def test_without_a_policy_a_range_holds_its_resting_mode() -> None:
    talk = Talk()
    talk.unusable = "needs two modes"
    talk.connect()
    sent = talk.lease_at(100, Pinned(ranged(0, 1, speculate(1))))
    assert (sent.lease.table, sent.lease.pin) == ((), ranged(0, 1, speculate(1)))
    assert talk.report(1200, in_force=InForce(Source.PIN, speculate(1), 1, "r1")) != []


# -- what an order amounts to --------------------------------------------------------------------


def connected(running: Mode | None = None, **fields: Any) -> Talk:
    talk = Talk()
    talk.connect(modes=OFFERED, in_force=InForce(Source.LEASE, running), **fields)
    return talk


@pytest.mark.parametrize(
    ("allowed", "running", "resting"),
    [
        (StepRange(1, 3), speculate(3), speculate(3)),
        (StepRange(1, 3), speculate(7), speculate(3)),
        (StepRange(1, 3), None, speculate(3)),
        (StepRange(0, 0), speculate(7), PLAIN_WARM),
        (StepRange(2, 6), PLAIN_WARM, speculate(3)),
    ],
)
def test_a_range_rests_on_what_runs_or_what_is_nearest_to_it(
    allowed: StepRange, running: Mode | None, resting: Mode
) -> None:
    pin = pin_for(connected(running).session, allowed, "p", "why", "kim")
    assert pin == Pin("p", resting, "why", "kim", allowed)


def test_a_range_without_a_mode_on_offer_is_refused_with_what_is() -> None:
    words = "e1 offers no mode with steps 8-9; it offers plain_warm, speculate\\(1\\)"
    with pytest.raises(NoSuchModeError, match=words):
        pin_for(connected().session, StepRange(8, 9), "p")


def test_a_freeze_is_a_pin_on_what_runs_now() -> None:
    assert pin_for(connected(speculate(5)).session, Relative.IN_FORCE, "p").mode == speculate(5)
    with pytest.raises(NotOfferedError, match="e1 has not decoded yet, so that there is nothing to keep"):
        pin_for(connected(None).session, Relative.IN_FORCE, "p")
    with pytest.raises(NotOfferedError, match="e1 only observes: off"):
        pin_for(connected(speculate(5), acts=False, observe_reasons=("off",)).session, Relative.IN_FORCE, "p")


def test_whether_an_engine_can_hold_a_pin_depends_on_what_it_offers_now() -> None:
    assert can_hold(connected().session, Pin("p", speculate(7)))
    assert not can_hold(connected().session, Pin("p", speculate(6)))
    assert not can_hold(connected(acts=False).session, Pin("p", speculate(7)))


# -- the engine ----------------------------------------------------------------------------------


def lease(version: int = 1, **fields: Any) -> Lease:
    table = (TableEntry(1, speculate(3)), TableEntry(9, speculate(1)))
    whole = {"smoothing": 1.0, "hysteresis": 0.0, "pin": ranged(1, 3, speculate(1)), **fields}
    return Lease(version, table, **whole)


def steps(machine: LeaseMachine, *batch_sizes: int) -> list[int | None]:
    chosen = [machine.choose(size) for size in batch_sizes]
    return [mode.steps if mode else None for mode in chosen]


def test_the_table_rules_within_a_range_and_its_propensities_are_known() -> None:
    machine = LeaseMachine()
    machine.adopt(lease())
    assert steps(machine, 4, 12, 4) == [3, 1, 3]
    assert (machine.version, machine.entry) == (1, 0)
    assert machine.pin is not None


def test_when_the_lease_ends_the_range_holds_its_resting_mode_and_not_the_stock_policy() -> None:
    machine = LeaseMachine()
    machine.adopt(lease())
    assert steps(machine, 4) == [3]
    machine.expire(1)
    assert steps(machine, 4, 12) == [1, 1]
    assert (machine.version, machine.entry) == (0, -1)
    machine.adopt(lease(2))
    assert steps(machine, 4) == [3]
    machine.drop_pin("r1")
    assert steps(machine, 12) == [1]
    machine.release()
    assert steps(machine, 4) == [None]


def test_a_range_whose_life_in_steps_is_over_rests_too() -> None:
    machine = LeaseMachine()
    machine.adopt(lease(life_steps=2))
    assert steps(machine, 4, 4, 4, 4) == [3, 3, 1, 1]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pin": ranged(2, 3, speculate(3))}, "pin.range is steps 2-3, but the lease has speculate(1)"),
        ({"pin": ranged(1, 3, PLAIN_WARM)}, "pin.range is steps 1-3, but the lease has plain_warm"),
        ({"pin": ranged(3, 1, speculate(3))}, "pin.range is empty: steps 3-1"),
    ],
)
def test_a_lease_that_breaks_its_own_range_is_refused_by_the_engine(fields: dict[str, Any], words: str) -> None:
    check_lease(lease())
    with pytest.raises(LeaseError) as caught:
        check_lease(lease(**fields))
    assert str(caught.value) == words


@given(low=st.integers(0, 7), high=st.integers(0, 7), wanted=modes, ends=st.integers(1, 30))
def test_an_engine_under_a_range_never_leaves_it_with_or_without_a_lease(
    low: int, high: int, wanted: Mode, ends: int
) -> None:
    allowed = StepRange(min(low, high), max(low, high))
    if not any(mode in allowed for mode in OFFERED):
        return
    talk = connected(wanted)
    talk.decide(one_mode(wanted))
    sent = talk.lease_at(100, Pinned(pin_for(talk.session, allowed, "p")))
    machine = LeaseMachine()
    machine.adopt(sent.lease)
    for step in range(40):
        if step == ends:
            machine.expire(sent.lease.version)
        mode = machine.choose(4)
        assert mode is not None
        assert mode in allowed
