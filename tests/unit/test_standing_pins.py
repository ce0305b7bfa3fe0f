"""Pins for labels or all stand: they hold for engines that come later, for pods come and go under new ids."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from support.small_fleet import ONE, THREE, S, SmallFleet, held
from trimtab.domain import PLAIN_NATIVE, PLAIN_WARM, InForce, Pin, Source, StepRange, modes_of, speculate
from trimtab.session.events import Pinned, Unpinned
from trimtab.session.orders import MAX_ORDERS, MAX_RELEASED, Orders, PinOrder, Selector, TooManyOrdersError
from trimtab.session.pins import Relative
from trimtab.wire import Clocks, read_orders
from trimtabpb.v1 import admin_pb2
from trimtabpb.v1.admin_pb2 import Canary, Controller, StandingPin, StandingPolicy

CHAT, CODE = {"team": "chat"}, {"team": "code"}
EVERYBODY = admin_pb2.Selector(all=True)


# -- selectors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "means"),
    [
        (Selector(), [True, True, True]),
        (Selector(("a", "c")), [True, False, True]),
        (Selector(labels=CHAT), [True, False, False]),
        (Selector(labels={"team": "chat", "zone": "1"}), [False, False, False]),
    ],
)
def test_a_selector_means_ids_or_labels_or_all(selector: Selector, means: list[bool]) -> None:
    engines = [("a", CHAT), ("b", CODE), ("c", {})]
    assert [selector.means(*engine) for engine in engines] == means


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        (Selector(), Selector()),
        (Selector(), Selector(labels=CHAT)),
        (Selector(), Selector(("a",))),
        (Selector(labels=CHAT), Selector(labels={**CHAT, "zone": "1"})),
        (Selector(("a", "b")), Selector(("b",))),
    ],
)
def test_a_wider_selector_covers_a_narrower_one_and_not_the_other_way_round(wide: Selector, narrow: Selector) -> None:
    assert wide.covers(narrow)
    assert wide == narrow or not narrow.covers(wide)


def test_what_an_id_is_labelled_is_not_known_beforehand() -> None:
    assert not Selector(labels=CHAT).covers(Selector(("a",)))
    assert not Selector(("a",)).covers(Selector(labels=CHAT))


labels = st.dictionaries(st.sampled_from("kl"), st.sampled_from("12"), max_size=2)
ids = st.lists(st.sampled_from("abc"), max_size=3, unique=True).map(tuple)
selectors = st.builds(Selector, ids) | st.builds(Selector, labels=labels)


@given(one=selectors, other=selectors, engine_id=st.sampled_from("abc"), its=labels)
def test_covering_and_excluding_agree_with_what_selectors_mean(
    one: Selector, other: Selector, engine_id: str, its: dict[str, str]
) -> None:
    meant = one.means(engine_id, its), other.means(engine_id, its)
    if one.covers(other):
        assert meant != (False, True)
    if one.excludes(other):
        assert meant != (True, True)


# -- who is pinned -------------------------------------------------------------------------------


def test_an_engine_that_comes_later_is_pinned_at_once() -> None:
    fleet = SmallFleet()
    fleet.comes("a", CHAT)
    fleet.pins(ONE, labels=CHAT)
    later, other = fleet.comes("b", CHAT), fleet.comes("c", CODE)
    assert held([later, other]) == ["speculate(1)", None]
    assert later.session.lease is not None
    assert later.session.lease.pin == later.session.pin.pin if later.session.pin else False


def test_each_engine_gets_its_own_cheapest_plain() -> None:
    fleet = SmallFleet()
    fleet.pins(Relative.ANY_PLAIN)
    native = fleet.comes("n", modes=(PLAIN_NATIVE, PLAIN_WARM, ONE))
    assert held([native, fleet.comes("w")]) == ["plain_native", "plain_warm"]


def test_an_engine_that_comes_later_has_only_the_time_that_is_left() -> None:
    fleet = SmallFleet()
    fleet.pins(ONE, seconds=60, labels=CHAT)
    fleet.passes(20)
    later = fleet.comes("b", CHAT)
    assert later.session.pin is not None
    assert later.session.pin.remaining_s(fleet.clock_ns) == pytest.approx(40)
    fleet.passes(40)
    assert held([later, fleet.comes("c", CHAT)]) == [None, None]


def test_the_newest_order_goes_before_older_ones() -> None:
    fleet = SmallFleet()
    fleet.pins(ONE)
    fleet.pins(StepRange(1, 3), labels=CHAT)
    assert held([fleet.comes("a", CHAT), fleet.comes("b")]) == ["steps 1-3", "speculate(1)"]
    fleet.pins(PLAIN_WARM)
    assert held(fleet.seats()) == ["plain_warm", "plain_warm"]
    assert [str(order.selector) for order in fleet.orders.pins] == ["all"]


def test_a_pin_of_its_own_goes_before_and_the_order_holds_again_when_it_is_over() -> None:
    fleet = SmallFleet()
    engine = fleet.comes("a", CHAT)
    fleet.pins(ONE, labels=CHAT)
    fleet.pins(THREE, seconds=30, engine_ids=("a",))
    assert held([engine]) == ["speculate(3)"]
    fleet.passes(31)
    assert held([engine]) == ["speculate(1)"]


def test_a_restarted_engine_gets_it_again_and_one_with_other_labels_is_let_go() -> None:
    fleet = SmallFleet()
    fleet.pins(ONE, labels=CHAT)
    engine = fleet.comes("a", CHAT)
    fleet.leave(engine, "restart")
    assert held([fleet.comes("a", CHAT, boot_id="b2")]) == ["speculate(1)"]
    fleet.leave(engine, "moved")
    assert held([fleet.comes("a", CODE, boot_id="b3")]) == [None]


def test_a_restarted_engine_with_other_steps_gets_what_the_order_means_there() -> None:
    fleet = SmallFleet()
    fleet.pins(StepRange(1, 5), labels=CHAT)
    engine = fleet.comes("a", CHAT, modes=modes_of([0, 3, 7]))
    assert engine.session.pin is not None
    assert engine.session.pin.pin.mode == speculate(3)
    fleet.leave(engine, "restart")
    fleet.comes("a", CHAT, modes=modes_of([0, 5, 7]), boot_id="b2")
    assert engine.session.pin.pin.mode == speculate(5)


def test_an_engine_that_cannot_run_it_is_left_alone_and_this_is_counted() -> None:
    fleet = SmallFleet()
    fleet.pins(speculate(7))
    narrow, watching = fleet.comes("a"), fleet.comes("o", modes=(), acts=False)
    assert held([narrow, watching]) == [None, None]
    assert (narrow.refused, watching.refused) == ({"standing_pin": 1}, {})


def test_a_controller_that_restarted_adopts_an_engines_pin_and_knows_it_by_its_order() -> None:
    fleet = SmallFleet()
    order = fleet.pins(ONE, labels=CHAT)
    pin = Pin(order.id, ONE)
    engine = fleet.comes("a", CHAT, pin=pin, in_force=InForce(Source.PIN, ONE, 4, order.id))
    assert engine.session.pin is not None
    assert engine.session.pin.pin == pin
    fleet.orders.release(Selector(labels=CHAT), [])
    fleet.leave(engine, "gone")
    assert held([fleet.comes("a", CHAT)]) == ["speculate(1)"], "a pin that no order stands for is the engine's own"


# -- who is let go -------------------------------------------------------------------------------


def let_go(fleet: SmallFleet, **selector: Any) -> None:
    meant = Selector(**selector)
    seats = fleet.meant(meant)
    fleet.orders.release(meant, [seat.identity for seat in seats])
    for seat in seats:
        fleet.apply(seat, Unpinned())


def test_a_release_of_the_same_engines_ends_the_order() -> None:
    fleet = SmallFleet()
    fleet.pins(ONE, labels=CHAT)
    engine = fleet.comes("a", CHAT)
    let_go(fleet, labels=CHAT)
    assert fleet.orders.pins == []
    assert held([engine, fleet.comes("b", CHAT)]) == [None, None]


def test_an_engine_released_by_itself_stays_free_and_the_order_holds_for_the_others() -> None:
    fleet = SmallFleet()
    fleet.pins(ONE, labels=CHAT)
    a, b = fleet.comes("a", CHAT), fleet.comes("b", CHAT)
    let_go(fleet, engine_ids=("a",))
    assert held([a, b]) == [None, "speculate(1)"]
    fleet.leave(a, "restart")
    assert held([fleet.comes("a", CHAT, boot_id="b2"), fleet.comes("c", CHAT)]) == [None, "speculate(1)"]


def test_labels_released_from_an_order_for_all_stay_free_also_when_they_come_later() -> None:
    fleet = SmallFleet()
    fleet.pins(ONE)
    let_go(fleet, labels=CHAT)
    assert held([fleet.comes("a", CHAT), fleet.comes("b", CODE)]) == [None, "speculate(1)"]


def test_a_release_of_others_leaves_an_order_as_it_is() -> None:
    fleet = SmallFleet()
    fleet.comes("c", CODE)
    fleet.pins(ONE, labels=CHAT)
    let_go(fleet, labels=CODE)
    let_go(fleet, engine_ids=("c",))
    assert [order.released for order in fleet.orders.pins] == [()]


def test_exceptions_that_say_the_same_are_kept_once() -> None:
    orders = Orders()
    orders.add_pin(PinOrder("p", Selector(), ONE, 0))
    for selector in (Selector(("a",)), Selector(("a",)), Selector(labels={**CHAT, "zone": "1"}), Selector(labels=CHAT)):
        orders.release(selector, [("a", {})] if selector.engine_ids else [])
    assert orders.pins[0].released == (Selector(("a",)), Selector(labels=CHAT))


def test_there_is_an_end_to_orders_and_to_their_exceptions() -> None:
    orders = Orders()
    for number in range(MAX_ORDERS):
        orders.add_pin(PinOrder(str(number), Selector(labels={"n": str(number)}), ONE, 0))
    with pytest.raises(TooManyOrdersError, match="there are 256 standing orders already: release some first"):
        orders.add_pin(PinOrder("x", Selector(labels={"n": "x"}), ONE, 0))
    orders.add_pin(PinOrder("all", Selector(), ONE, 0))
    assert len(orders.pins) == 1
    for number in range(MAX_RELEASED):
        orders.release(Selector((str(number),)), [(str(number), {})])
    with pytest.raises(TooManyOrdersError, match="the pin for all has 1024 exceptions already"):
        orders.release(Selector(("x",)), [("x", {})])
    assert len(orders.pins[0].released) == MAX_RELEASED


# -- over a restart of the controller ------------------------------------------------------------


def restarted(fleet: SmallFleet, after_s: float) -> SmallFleet:
    """A new fleet with what the old one had kept, on another monotonic clock."""
    kept = fleet.overview().SerializeToString()
    new = SmallFleet()
    new.clock_ns += round(after_s * S)
    new.orders, problems = read_orders(Controller.FromString(kept), Clocks(new.clock_ns, new.clock_ns))
    assert problems == []
    return new


def test_standing_orders_can_be_kept_and_taken_up_again_with_their_exceptions_and_the_time_they_have_left() -> None:
    fleet = SmallFleet()
    fleet.pins(ONE, seconds=60, labels=CHAT)
    fleet.pins(StepRange(0, 3), labels=CODE)
    fleet.pins(Relative.ANY_PLAIN, labels={"zone": "1"})
    let_go(fleet, labels={**CODE, "zone": "2"})
    fleet.passes(20)
    new = restarted(fleet, after_s=3)
    assert held([new.comes("a", CHAT), new.comes("b", CODE), new.comes("c", {**CODE, "zone": "2"})]) == [
        "speculate(1)", "steps 0-3", None,
    ]  # fmt: skip
    assert held([new.comes("d", {"zone": "1"})]) == ["plain_warm"]
    assert [order.id for order in new.orders.pins] == [order.id for order in fleet.orders.pins]
    new.passes(41)
    assert held([new.comes("e", CHAT)]) == [None]


def test_a_kept_order_that_makes_no_sense_is_left_out_and_said_so() -> None:
    message = Controller(
        pins=[StandingPin(id="p", selector=EVERYBODY), StandingPin(id="q", selector=EVERYBODY, any_plain=True)],
        policies=[StandingPolicy(selector=EVERYBODY, policy="tea-leaves"), StandingPolicy(policy="ucb")],
        canary=Canary(policy="ucb", share=2),
    )
    orders, problems = read_orders(message, Clocks(0, 0))
    assert [order.id for order in orders.pins] == ["q"]
    assert (orders.policies, orders.canary) == ([], None)
    assert problems[0] == "pins[0].target: is missing"
    assert problems[1].startswith("unknown policy 'tea-leaves'")
    assert problems[2].startswith("selector: give engine_ids, all or labels")
    assert problems[3] == "canary.share: must be above 0 and at most 1, is 2"


@pytest.mark.parametrize(("seconds", "nanos"), [(-1, 0), (-(2**63), 0), (2**63 - 1, 0), (1, -1), (1, 1_000_000_000)])
def test_a_kept_order_of_no_time_at_all_is_left_out(seconds: int, nanos: int) -> None:
    moment = Timestamp(seconds=seconds, nanos=nanos)
    message = Controller(pins=[StandingPin(id="p", selector=EVERYBODY, any_plain=True, pinned_at=moment)])
    orders, (problem,) = read_orders(message, Clocks(1 << 60, 1 << 60))
    assert orders.pins == []
    assert problem.startswith("pins[0].pinned_at: ")


# -- room ----------------------------------------------------------------------------------------


def test_dead_pods_under_a_standing_pin_take_no_room_and_those_with_a_pin_of_their_own_do() -> None:
    fleet = SmallFleet(max_engines=3)
    fleet.pins(ONE)
    own = fleet.comes("own")
    fleet.apply(own, Pinned(Pin("mine", THREE)))
    fleet.leave(own, "gone")
    for number in range(10):
        fleet.passes(1)
        fleet.leave(fleet.comes(f"pod-{number}"), "gone")
    assert [str(seat.key) for seat in fleet.seats()] == ["own", "pod-8", "pod-9"]
