"""Results that are processed one launch later: each is booked to what was launched for it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from support.hooked_engine import CountsWorld, DrawnWorld, EmbeddedEngine, OverlappedEngine, one_mode_lease
from trimtab_sglang.lease import speculate


def test_a_result_belongs_to_the_mode_that_was_launched_and_not_to_the_one_in_force() -> None:
    engine = OverlappedEngine()
    engine.admit(2)
    for version, steps in enumerate((1, 7, 5, 1), 1):
        engine.post(one_mode_lease(speculate(steps), version))
        engine.decode(1)
    engine.idle()
    rows = engine.rows()
    assert [(row.lease_version, row.mode.steps) for row in rows] == [(1, 1), (2, 7), (3, 5), (4, 1)]
    assert all(len(row.offered) == row.mode.steps for row in rows)
    assert not +engine.row_maker().dropped


@settings(max_examples=20, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from([0, 1, 3, 5, 7]), st.integers(1, 6)), min_size=1, max_size=12))
def test_rows_are_the_same_as_those_of_results_that_are_processed_at_once(course: list[tuple[int, int]]) -> None:
    engines = [EmbeddedEngine(world=DrawnWorld(3)), OverlappedEngine(world=DrawnWorld(3))]
    for engine in engines:
        engine.admit(4)
        for version, (steps, launches) in enumerate(course, 1):
            engine.post(one_mode_lease(speculate(steps), version))
            engine.decode(launches)
        engine.idle()
    at_once, later = (
        [(r.launch_id, r.step, r.mode, r.lease_version, r.offered, r.accepted, r.emitted_tokens) for r in e.rows()]
        for e in engines
    )
    assert later == at_once


def test_a_late_result_of_a_finished_request_says_nothing() -> None:
    engine = OverlappedEngine(world=CountsWorld([[3, 1], [2, 3], [2]]))
    done, _ = engine.admit(2)
    engine.decode(1)
    engine.end_with_next_result(done)
    # The second launch holds both requests; the first result, in which one ends, is processed behind it.
    engine.decode(2)
    engine.idle()
    rows = engine.rows()
    assert [(r.batch_size, r.fresh_requests, sum(r.accepted)) for r in rows] == [(2, 2, 4), (2, 1, 3), (1, 1, 2)]
    assert +engine.row_maker().dropped == {"late_request": 1}


def test_a_request_retracted_behind_a_launch_is_left_out_of_its_result() -> None:
    engine = OverlappedEngine(world=CountsWorld([[3, 1], [2, 2], [1]]))
    gone, _ = engine.admit(2)
    engine.decode(2)
    engine.drop(gone, retracted=True)
    engine.decode(1)
    engine.idle()
    assert [(r.batch_size, r.fresh_requests, r.retracted_requests) for r in engine.rows()] == [
        (2, 2, 0), (2, 1, 1), (1, 1, 0),
    ]  # fmt: skip


def test_an_aborted_request_with_a_count_below_zero_costs_its_own_sample_alone() -> None:
    engine = OverlappedEngine(world=CountsWorld([[3, -1, 1], [0, 0, 0]]))
    engine.admit(3)
    engine.decode(2)
    assert [(r.fresh_requests, r.accepted, r.emitted_tokens) for r in engine.rows()] == [(2, (2, 1, 1), 6)]
    assert +engine.row_maker().dropped == {"negative_count": 1}


def test_a_result_that_is_lost_shifts_no_later_one() -> None:
    engine = OverlappedEngine()
    engine.admit()
    for version, steps in enumerate((1, 7, 5, 1), 1):
        engine.post(one_mode_lease(speculate(steps), version))
        if version == 3:
            engine._pending = None
        engine.decode(1)
    engine.idle()
    assert [(row.launch_id, row.mode.steps) for row in engine.rows()] == [(1, 1), (3, 5), (4, 1)]
    assert +engine.row_maker().dropped == {"lost_row": 1}
