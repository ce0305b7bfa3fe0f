"""A policy is tried on one engine out of many, then promoted or withdrawn; which engine depends on its id alone."""

from __future__ import annotations

import pytest

from support.small_fleet import ONE, THREE, SmallFleet, acting, steps_order
from trimtab.domain import PLAIN_WARM
from trimtab.errors import NotOfferedError, UnknownEngineError
from trimtab.server.seat import Seat
from trimtab.server.trials import Trials
from trimtab.session.events import Disconnected, ShadowDropped
from trimtab.session.orders import Selector, lot, threshold_for
from trimtab.wire import Clocks, read_orders

CHAT, CODE = {"team": "chat"}, {"team": "code"}
NAMES = [f"pod-{i}" for i in range(200)]


def fleet_of(*engine_ids: str) -> tuple[SmallFleet, Trials]:
    fleet = SmallFleet(max_engines=400)
    for engine_id in engine_ids:
        fleet.comes(engine_id, CHAT)
    return fleet, Trials(fleet)


def wanted(seats: list[Seat]) -> dict[str, int]:
    return {str(seat.key): acting(seat) for seat in seats}


def shadows(fleet: SmallFleet) -> list[str | None]:
    return [seat.session.shadow.name if seat.session.shadow else None for seat in fleet.seats()]


# -- the lot -------------------------------------------------------------------------------------


def test_lots_are_spread_evenly_and_always_the_same() -> None:
    lots = sorted(map(lot, NAMES))
    assert lots == sorted(map(lot, NAMES))
    assert all(0 <= value < 1 for value in lots)
    assert max(abs(value - (i + 0.5) / len(lots)) for i, value in enumerate(lots)) < 0.1
    assert lot("pod-1") == pytest.approx(0.0586915, abs=1e-6), "no release may change who is on a canary"


def test_a_share_has_at_least_one_engine() -> None:
    assert threshold_for(0.5, NAMES) == 0.5
    assert threshold_for(0.001, ["pod-1", "pod-2"]) == min(lot("pod-1"), lot("pod-2"))


# -- a canary ------------------------------------------------------------------------------------


def test_a_canary_acts_on_its_share_and_the_policy_before_goes_on_as_a_shadow_there() -> None:
    fleet, trials = fleet_of(*NAMES)
    chosen = trials.start_canary(steps_order(1, labels=CHAT), share=0.1)
    assert 10 <= len(chosen) <= 30
    assert [seat.canary for seat in chosen] == [True] * len(chosen)
    on_it = {str(seat.key) for seat in chosen}
    assert wanted(fleet.seats()) == {name: 1 if name in on_it else 3 for name in sorted(NAMES)}
    assert {seat.session.shadow.name for seat in chosen if seat.session.shadow} == {"fixed"}
    assert fleet.overview().canary.engine_ids == sorted(on_it)


def test_a_canary_can_be_on_engines_by_name() -> None:
    fleet, trials = fleet_of("a", "b")
    trials.start_canary(steps_order(1, engine_ids=("b",)), share=1)
    assert wanted(fleet.seats()) == {"a": 3, "b": 1}


def test_an_engine_that_comes_later_is_on_the_canary_if_its_lot_says_so() -> None:
    fleet, trials = fleet_of("pod-0")
    trials.start_canary(steps_order(1, labels=CHAT), share=0.3)
    limit = max(0.3, lot("pod-0"))
    for name in NAMES[1:50]:
        fleet.comes(name, CHAT)
    assert wanted(fleet.seats()) == {name: 1 if lot(name) <= limit else 3 for name in sorted(NAMES[:50])}
    assert acting(fleet.comes("elsewhere", CODE)) == 3


def test_engines_that_only_observe_are_no_canaries() -> None:
    fleet, trials = fleet_of("a")
    fleet.comes("o", CHAT, acts=False, modes=())
    assert [str(seat.key) for seat in trials.start_canary(steps_order(1), share=1)] == ["a"]
    alone, trials = fleet_of()
    alone.comes("o", acts=False, modes=())
    with pytest.raises(NotOfferedError, match="these engines only observe"):
        trials.start_canary(steps_order(1), share=1)


def test_a_promoted_canary_acts_everywhere_also_on_engines_to_come() -> None:
    fleet, trials = fleet_of("a", "b", "c")
    trials.start_canary(steps_order(1, engine_ids=("b",)), share=1)
    learned = fleet.seats()[1].session._keeper.policy
    assert len(trials.promote(None)) == 3
    fleet.comes("later")
    assert wanted(fleet.seats()) == {"a": 1, "b": 1, "c": 1, "later": 1}
    assert fleet.seats()[1].session._keeper.policy is learned, "the canary keeps what it learnt"
    assert shadows(fleet) == [None] * 4
    assert (fleet.orders.canary, any(seat.canary for seat in fleet.seats())) == (None, False)


def test_a_canary_can_be_promoted_for_some_and_is_withdrawn_from_the_others() -> None:
    fleet, trials = fleet_of("a")
    fleet.comes("x", CODE)
    trials.start_canary(steps_order(1), share=1)
    trials.promote(Selector(labels=CODE))
    assert wanted(fleet.seats()) == {"a": 3, "x": 1}
    assert wanted([fleet.comes("y", CODE), fleet.comes("b", CHAT)]) == {"y": 1, "b": 3}


def test_a_withdrawn_canary_gives_its_engines_back_with_all_that_was_learnt() -> None:
    fleet, trials = fleet_of("a", "b")
    before = fleet.seats()[0].session._keeper.policy
    trials.start_canary(steps_order(1, engine_ids=("a",)), share=1)
    fleet.reports(fleet.seats()[0])
    trials.withdraw(None)
    assert wanted(fleet.seats()) == {"a": 3, "b": 3}
    assert fleet.seats()[0].session._keeper.policy is before
    assert shadows(fleet) == [None, None]
    assert acting(fleet.comes("c", CHAT)) == 3


def test_while_a_canary_runs_its_engines_keep_their_policies_and_no_second_one_begins() -> None:
    fleet, trials = fleet_of("a", "b")
    trials.start_canary(steps_order(1, engine_ids=("a",)), share=1)
    for order in (trials.act, trials.shadow):
        with pytest.raises(NotOfferedError, match="a is on a canary: promote or withdraw it first"):
            order(steps_order(0))
    with pytest.raises(NotOfferedError, match="a canary of policy fixed runs already"):
        trials.start_canary(steps_order(0, engine_ids=("b",)), share=1)
    with pytest.raises(NotOfferedError, match="a canary is withdrawn as a whole"):
        trials.withdraw(Selector(("a",)))
    assert wanted(fleet.seats()) == {"a": 1, "b": 3}


def test_a_canary_that_an_engine_cannot_have_begins_nowhere() -> None:
    fleet, trials = fleet_of("a")
    fleet.comes("wide", modes=(PLAIN_WARM, ONE, THREE))
    with pytest.raises(NotOfferedError, match="a cannot have policy fixed: steps 9"):
        trials.start_canary(steps_order(9), share=1)
    with pytest.raises(NotOfferedError, match="a follows this policy already; wide follows this policy already"):
        trials.start_canary(steps_order(3), share=1)
    assert (fleet.orders.canary, shadows(fleet)) == (None, [None, None])


def test_an_engine_that_is_away_takes_part_too() -> None:
    fleet, trials = fleet_of("a")
    fleet.apply(fleet.seats()[0], Disconnected())
    trials.start_canary(steps_order(1), share=1)
    assert wanted([fleet.seats()[0]]) == {"a": 1}


def test_a_canary_that_was_kept_over_a_restart_goes_on_and_can_still_be_withdrawn() -> None:
    fleet, trials = fleet_of(*NAMES[:20])
    on_it = {str(seat.key) for seat in trials.start_canary(steps_order(1), share=0.2)}
    new = SmallFleet()
    new.orders, problems = read_orders(fleet.overview(), Clocks(new.clock_ns, new.clock_ns))
    assert problems == []
    for name in NAMES[:20]:
        new.comes(name, CHAT)
    assert {name for name, steps in wanted(new.seats()).items() if steps == 1} == on_it
    Trials(new).withdraw(None)
    assert set(wanted(new.seats()).values()) == {3}


def test_an_engine_that_followed_the_canary_from_the_start_gets_the_policy_meant_for_it_when_that_ends() -> None:
    fleet, trials = fleet_of("a")
    trials.start_canary(steps_order(1), share=1)
    restored = fleet.seats()[0]
    fleet.apply(restored, ShadowDropped())
    trials.withdraw(None)
    assert wanted([restored]) == {"a": 3}


# -- shadows -------------------------------------------------------------------------------------


def test_a_shadow_for_labels_is_given_to_engines_that_come_later() -> None:
    fleet, trials = fleet_of("a")
    trials.shadow(steps_order(1, shadow=True, labels=CHAT))
    fleet.comes("b", CHAT)
    fleet.comes("c", CODE)
    assert shadows(fleet) == ["fixed", "fixed", None]
    assert wanted(fleet.seats()) == {"a": 3, "b": 3, "c": 3}


def test_a_promoted_shadow_acts_and_stands_for_engines_to_come() -> None:
    fleet, trials = fleet_of("a")
    trials.shadow(steps_order(1, shadow=True, labels=CHAT))
    shadow = fleet.seats()[0].session.shadow
    trials.promote(Selector(labels=CHAT))
    fleet.comes("b", CHAT)
    assert wanted(fleet.seats()) == {"a": 1, "b": 1}
    assert shadows(fleet) == [None, None]
    assert shadow is not None
    assert fleet.seats()[0].session._keeper.policy is shadow.policy


def test_a_withdrawn_shadow_is_gone_also_for_engines_to_come() -> None:
    fleet, trials = fleet_of("a")
    trials.shadow(steps_order(1, shadow=True, labels=CHAT))
    assert [str(seat.key) for seat in trials.withdraw(Selector(labels=CHAT))] == ["a"]
    fleet.comes("b", CHAT)
    assert shadows(fleet) == [None, None]


def test_a_canary_of_what_was_in_shadow_begins_with_what_it_learnt_and_so_does_its_promotion() -> None:
    fleet, trials = fleet_of("a", "b")
    trials.shadow(steps_order(1, shadow=True, labels=CHAT))
    learned = [seat.session.shadow.policy for seat in fleet.seats() if seat.session.shadow]
    trials.start_canary(steps_order(1, engine_ids=("a",)), share=1)
    trials.promote(None)
    assert [seat.session._keeper.policy for seat in fleet.seats()] == learned
    assert wanted(fleet.seats()) == {"a": 1, "b": 1}
    assert shadows(fleet) == [None, None]


def test_after_a_withdrawn_canary_the_shadow_that_stands_is_back() -> None:
    fleet, trials = fleet_of("a")
    trials.shadow(steps_order(0, shadow=True, labels=CHAT))
    trials.start_canary(steps_order(1), share=1)
    trials.withdraw(None)
    seat = fleet.seats()[0]
    assert seat.session.shadow is not None
    assert seat.session.shadow.decision is None or acting(seat) == 3
    assert seat.session.shadow.factory == steps_order(0).factory


@pytest.mark.parametrize("order", ["promote", "withdraw"])
def test_where_nothing_is_on_trial_nothing_ends(order: str) -> None:
    _, trials = fleet_of("a")
    with pytest.raises(NotOfferedError, match="no canary runs: for a policy in shadow, name its engines"):
        getattr(trials, order)(None)
    with pytest.raises(NotOfferedError, match="none of these engines has a policy in shadow"):
        getattr(trials, order)(Selector(("a",)))
    with pytest.raises(UnknownEngineError):
        getattr(trials, order)(Selector(("z",)))


# -- policies that stand -------------------------------------------------------------------------


def test_a_policy_set_for_labels_or_all_is_also_that_of_engines_to_come() -> None:
    fleet, trials = fleet_of("a")
    trials.act(steps_order(1))
    trials.act(steps_order(0, labels=CHAT))
    assert wanted([fleet.comes("b", CHAT), fleet.comes("c", CODE)]) == {"b": 0, "c": 1}
    trials.act(steps_order(3))
    assert wanted([fleet.comes("d", CHAT)]) == {"d": 3}
    assert len(fleet.orders.policies) == 1


def test_a_policy_set_for_one_engine_is_that_engines_alone() -> None:
    fleet, trials = fleet_of("a")
    trials.act(steps_order(1, engine_ids=("a",)))
    assert acting(fleet.comes("b", CHAT)) == 3
