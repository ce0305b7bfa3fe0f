"""The hooks on a scheduler thread: what they pass on, what they record, and what they leave alone."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.hooked_engine import UNLINKED, DrawnWorld, EmbeddedEngine, OverlappedEngine, one_mode_lease
from trimtab.demo.embedded_registry import EmbeddedRegistry
from trimtab_sglang import hooks
from trimtab_sglang.lease import PLAIN_WARM, Lease, Pin, TableEntry, speculate
from trimtab_sglang.ranks import Command, Order, Posted
from trimtab_sglang.recorder import MAX_RELEASED, RING_ROWS, Recorder
from trimtab_sglang.rows import GAP
from trimtab_sglang.settings import PluginMode

TABLE = (TableEntry(1, speculate(7)), TableEntry(3, speculate(1)))


# -- without a lease -----------------------------------------------------------------------------


@settings(max_examples=25, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    chance=st.sampled_from([0.1, 0.5, 0.9]),
    stretches=st.lists(st.tuples(st.integers(1, 70), st.integers(1, 40)), min_size=1, max_size=6),
)
def test_without_a_lease_the_steps_are_those_of_an_engine_without_the_plugin(
    seed: int, chance: float, stretches: list[tuple[int, int]]
) -> None:
    sizes = [size for size, steps in stretches for _ in range(steps)]
    bare = EmbeddedEngine(settings=None, world=DrawnWorld(seed, chance))
    hooked = EmbeddedEngine(world=DrawnWorld(seed, chance))
    assert hooked.decode_at(sizes) == bare.decode_at(sizes)
    assert not hooked.plugin.fuse.blown


def test_after_a_lease_the_engines_own_rule_goes_on() -> None:
    engine = EmbeddedEngine(world=DrawnWorld(chance=0.9))
    engine.post(one_mode_lease(speculate(1), life_steps=20))
    steps = engine.decode_at([2] * 60)
    assert steps[:20] == [1] * 20
    assert set(steps[20:]) <= {3, 5, 7}
    assert engine.plugin.machine.lease is None


# -- commands ------------------------------------------------------------------------------------


def test_a_lease_in_the_mailbox_is_in_force_at_the_next_launch() -> None:
    engine = EmbeddedEngine()
    engine.admit(2)
    assert engine.decode(3) == [3, 3, 3]
    engine.post(Lease(1, TABLE, smoothing=1))
    assert engine.decode(2) == [7, 7]
    engine.admit(2)
    assert engine.decode(1) == [1]
    engine.post(Lease(2, TABLE, pin=Pin("p", PLAIN_WARM)))
    assert engine.decode(1) == [0]


@pytest.mark.parametrize("kind", [EmbeddedEngine, OverlappedEngine])
def test_ends_of_life_reach_the_machine_through_the_same_requests(kind: type[EmbeddedEngine]) -> None:
    engine = kind()
    past = time.monotonic_ns() - 1
    engine.admit()
    engine.post(Lease(1, TABLE, pin=Pin("p", PLAIN_WARM)), lease_deadline_ns=past, pin_deadline_ns=past)
    assert engine.decode(2) == [3, 3]
    assert (engine.plugin.machine.lease, engine.plugin.machine.pin) == (None, None)
    assert engine.plugin.machine.last_version == 1


ALL_COMMANDS = [
    Command(Order.ADOPT, lease=one_mode_lease(speculate(1))),
    Command(Order.EXPIRE, version=1),
    Command(Order.DROP_PIN, pin_id="p"),
    Command(Order.RELEASE),
    Command(Order.FALL_BACK, reason="test"),
]


@pytest.mark.parametrize("blown", [False, True], ids=["", "also with a blown fuse"])
def test_commands_never_reach_the_engines_own_dispatcher(blown: bool) -> None:
    engine = EmbeddedEngine()
    request = engine.shape.Req("r1")
    if blown:
        engine.plugin.fuse.blow("here", ValueError())
    engine.incoming += [ALL_COMMANDS[0], request, *ALL_COMMANDS[1:]]
    engine.idle()
    assert engine.scheduler.waiting_queue == [request]


def test_an_object_that_nobody_knows_still_fails_in_the_engine() -> None:
    engine = EmbeddedEngine()
    engine.incoming += ["unknown"]
    with pytest.raises(ValueError, match="Invalid object: unknown"):
        engine.idle()
    assert not engine.plugin.fuse.blown


def test_a_rank_that_pulls_nothing_adds_nothing() -> None:
    engine = EmbeddedEngine()
    engine.post(one_mode_lease(speculate(1)))
    assert hooks.wrap_pull(engine.plugin, lambda receiver: None)(object()) is None
    pulled = hooks.wrap_pull(engine.plugin, lambda receiver: ["r"])(object())
    assert pulled == ["r", Command(Order.ADOPT, lease=one_mode_lease(speculate(1)))]


def test_a_quiet_mailbox_leaves_the_requests_as_they_are() -> None:
    engine = EmbeddedEngine()
    engine.idle()
    requests: list[Any] = []
    assert hooks.wrap_pull(engine.plugin, lambda receiver: requests)(object()) is requests


def test_with_a_blown_fuse_no_command_goes_out() -> None:
    engine = EmbeddedEngine()
    engine.plugin.fuse.blow("here", ValueError())
    engine.plugin.mailbox.post(Posted(Command(Order.RELEASE)))
    assert hooks.wrap_pull(engine.plugin, lambda receiver: [])(object()) == []


# -- what is recorded ----------------------------------------------------------------------------


def test_every_decode_result_becomes_a_row_with_its_launch() -> None:
    engine = EmbeddedEngine()
    engine.admit(3, context_tokens=200)
    engine.decode(2)
    engine.post(Lease(4, TABLE, smoothing=1))
    engine.decode(2)
    rows = engine.rows()
    assert [(r.launch_id, r.step, r.mode.steps, r.lease_version, r.table_entry) for r in rows] == [
        (1, 1, 3, 0, -1), (2, 2, 3, 0, -1), (3, 3, 1, 4, 1), (4, 4, 1, 4, 1),
    ]  # fmt: skip
    assert {(r.batch_size, r.padded_batch_size, r.context_tokens_sum, r.context_tokens_max) for r in rows} == {
        (3, 4, 600, 200)
    }
    assert sum(row.emitted_tokens for row in rows) == engine.scheduler.batch_result_processor.tokens


def test_prefill_and_idle_make_a_gap() -> None:
    engine = EmbeddedEngine()
    engine.admit(2, context_tokens=30)
    engine.admit(1, context_tokens=50)
    engine.decode(2)
    engine.idle()
    engine.decode(2)
    engine.admit(1, context_tokens=7)
    engine.decode(2)
    rows = engine.rows()
    assert [row.prefill_tokens for row in rows] == [110, 0, 0, 0, 7, 0]
    assert [bool(row.flags & GAP) for row in rows] == [True, False, True, False, True, False]


def test_a_request_that_stops_early_did_not_emit_what_was_cut_off() -> None:
    engine = EmbeddedEngine(world=DrawnWorld(chance=1.0))
    (request,) = engine.admit()
    request.output_ids = [0] * 10
    request.finished_len = 8
    engine.end_with_next_result(request)
    engine.decode(1)
    (row,) = engine.rows()
    assert (row.emitted_tokens, row.accepted) == (4 - 2, (1, 1, 1))


@pytest.mark.parametrize("retracted", [False, True], ids=["aborted", "retracted"])
def test_a_request_that_left_between_two_steps_is_in_no_later_row(retracted: bool) -> None:
    engine = EmbeddedEngine()
    request, _ = engine.admit(2)
    engine.decode(1)
    engine.drop(request, retracted)
    engine.decode(2)
    assert [(r.batch_size, r.fresh_requests, r.retracted_requests) for r in engine.rows()] == [
        (2, 2, 0), (1, 1, int(retracted)), (1, 1, 0),
    ]  # fmt: skip
    assert not engine.row_maker().dropped["late_request"]


# -- bounds --------------------------------------------------------------------------------------


def test_the_ring_stays_bounded_when_nobody_drains() -> None:
    engine = EmbeddedEngine()
    engine.admit()
    engine.decode(RING_ROWS + 100)
    assert len(engine.plugin.recorder.ring) == RING_ROWS
    rows = engine.rows()
    assert (rows[0].launch_id, rows[-1].launch_id) == (101, RING_ROWS + 100)


def test_released_requests_stay_bounded_where_no_decode_result_comes() -> None:
    engine = EmbeddedEngine()
    for _ in range(3 * MAX_RELEASED // 100):
        for request in engine.admit(100):
            engine.drop(request)
    assert len(engine.plugin.recorder.released) == MAX_RELEASED


def test_a_rank_that_does_not_speak_keeps_no_row_and_no_request() -> None:
    def prepare(shape: Any) -> None:
        shape.Scheduler.tp_rank = 1

    engine = EmbeddedEngine(prepare=prepare)
    (request, _) = engine.admit(2)
    engine.decode(5)
    engine.drop(request)
    engine.decode(5)
    recorder = engine.plugin.recorder
    assert (len(recorder.ring), len(recorder.released)) == (0, 0)
    assert not engine.plugin.fuse.blown
    assert engine.plugin.link is None


def test_the_recorder_hands_out_released_requests_once() -> None:
    recorder = Recorder()
    recorder.released.append("a")
    assert list(recorder.take_released()) == ["a"]
    assert list(recorder.take_released()) == []


# -- how the hooks get in ------------------------------------------------------------------------


def course_of(engine: EmbeddedEngine) -> list[tuple[int, int, int, bool]]:
    """Steps, version, emitted tokens and gap of the rows of a short life with everything in it."""
    request, _ = engine.admit(2)
    engine.decode(3)
    engine.post(Lease(1, TABLE, smoothing=1))
    engine.decode(3)
    engine.end_with_next_result(request)
    engine.decode(3)
    engine.idle()
    engine.decode(1)
    return [(r.mode.steps, r.lease_version, r.emitted_tokens, bool(r.flags & GAP)) for r in engine.rows()]


def test_the_registrys_own_wrappers_do_what_the_methods_put_in_directly_do(monkeypatch: pytest.MonkeyPatch) -> None:
    direct = EmbeddedEngine()
    monkeypatch.setattr(EmbeddedRegistry, "bind", lambda self, target, wrap: False)
    wrapped = EmbeddedEngine()
    assert course_of(wrapped) == course_of(direct)
    # The registry's wrapper takes any arguments, a method of ours takes those of what it stands for.
    assert wrapped.shape.Scheduler.run_batch.__code__.co_varnames == ("args", "kwargs")
    assert direct.shape.Scheduler.run_batch.__code__.co_varnames[:3] == ("self", "batch", "pp_proxy_tensors")


# -- beside a server without a policy of its own -------------------------------------------------


def test_without_a_policy_steps_are_counted_and_the_width_says_the_mode() -> None:
    engine = EmbeddedEngine(replace(UNLINKED, mode=PluginMode.OBSERVE))
    assert engine.plugin.policy is None
    engine.plugin.machine.step = 10
    engine.admit()
    engine.decode(2)
    assert [(row.step, row.mode.steps, row.lease_version) for row in engine.rows()] == [(11, 3, 0), (12, 3, 0)]
