"""What a recorded decode result becomes: one step row, with what it cost, made and accepted."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from support.hooked_engine import mode_of_width
from support.raw_rows import MS, Lengths, Request, launch, raw_row, requests, row_maker, rows_of
from trimtab_sglang.lease import PLAIN_NATIVE, PLAIN_WARM, Choice, speculate
from trimtab_sglang.native_plain import LaunchNote
from trimtab_sglang.recorder import Launch, RawRow, Recorder
from trimtab_sglang.rows import ABSENT, EXPLORED, GAP, GRAPH, SWITCHED, WARM_UP, Row, RowMaker


def test_a_row_holds_what_was_launched_and_what_came_of_it() -> None:
    chosen = Choice(speculate(3), 7, 2)
    before, row = rows_of(
        raw_row(launch(1), [3, 3]),
        raw_row(
            launch(2, chosen, 1, step=22), [3, 0, 1], result_ms=18, seq_lens=Lengths([100, 300, 200]),
            draft_tokens=4,
        ),
    )  # fmt: skip
    assert before.launch_id == 1
    assert asdict(row) == {
        "launch_id": 2, "step": 22, "result_ns": 18 * MS, "mode": {"kind": "speculate", "steps": 3},
        "lease_version": 7, "table_entry": 2, "batch_size": 3, "padded_batch_size": 4, "offered": (3, 2, 1),
        "accepted": (2, 1, 1), "fresh_requests": 3, "stale_offered": (), "stale_accepted": (), "stale_requests": 0,
        "emitted_tokens": 7, "step_ns": 8 * MS, "wall_gap_ns": 8 * MS,
        "prefill_tokens": 0, "context_tokens_sum": 600, "context_tokens_max": 300,
        "retracted_requests": 0, "accepted_worst_decile": 0, "catch_up_ns": ABSENT, "flags": GRAPH | WARM_UP,
        "missed_tokens": 0, "caught_up_tokens": 0, "global_batch_size": -1,
    }  # fmt: skip


# -- the mode ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launched", "draft_tokens", "mode", "differs"),
    [
        (launch(choice=Choice(speculate(5)), stock_steps=1), 6, speculate(5), 0),
        (launch(choice=Choice(PLAIN_WARM), stock_steps=1), 1, PLAIN_WARM, 0),
        (launch(stock_steps=1), 2, speculate(1), 0),
        (launch(stock_steps=0), None, PLAIN_WARM, 0),
        (launch(stock_steps=-1), 4, speculate(3), 0),
        (launch(stock_steps=-1), None, PLAIN_NATIVE, 0),
        (launch(choice=Choice(speculate(5), 7, 0), stock_steps=1), 4, speculate(3), 1),
        (launch(stock_steps=1), 4, speculate(3), 1),
    ],
)
def test_the_mode_is_that_of_the_launch_unless_sglang_says_another_width(
    launched: Launch, draft_tokens: int | None, mode: Any, differs: int
) -> None:
    maker = row_maker([raw_row(launched, [0, 0], draft_tokens=draft_tokens)])
    assert next(maker.drain(1)).mode == mode
    assert maker.dropped["tag_differs"] == differs


def test_a_row_without_a_lease_has_no_version_and_no_entry() -> None:
    (row,) = rows_of(raw_row(launch(), [1]))
    assert (row.lease_version, row.table_entry) == (0, ABSENT)


# -- what came out -------------------------------------------------------------------------------


def test_plain_emits_a_token_a_request_and_shows_no_acceptance() -> None:
    (row,) = rows_of(raw_row(launch(stock_steps=-1), reqs=requests(3)))
    assert (row.emitted_tokens, row.fresh_requests, row.offered, row.accepted) == (3, 3, (), ())
    assert row.accepted_worst_decile == ABSENT


def test_tokens_behind_a_stop_condition_were_not_emitted() -> None:
    stopped, goes_on, at_length = Request("a", 20, 18), Request("b", 20), Request("c", 20, 20)
    elsewhere = Request("d", 20, 1)
    raw = raw_row(
        launch(), [3, 3, 3], [stopped, goes_on, at_length], finished=[stopped, at_length, elsewhere],
    )  # fmt: skip
    (row,) = rows_of(raw)
    assert row.emitted_tokens == 12 - 2
    assert sum(row.accepted) == 9


def test_tokens_that_a_grammar_did_not_keep_were_not_emitted() -> None:
    (row,) = rows_of(raw_row(launch(), [3, 2, 1], retained=[None, [7, 8], [7, 8]]))
    assert row.emitted_tokens == 4 + 2 + 2
    assert sum(row.accepted) == 6


def test_a_request_that_had_ended_before_says_nothing() -> None:
    reqs = requests(3)
    maker = row_maker([raw_row(launch(), [3, 1, 2], reqs, released=[reqs[0]], retained=[[7], None, None])])
    row = next(maker.drain(1))
    assert (row.batch_size, row.fresh_requests, row.emitted_tokens) == (3, 2, 5)
    assert row.accepted == (2, 1, 0)
    assert +maker.dropped == {"late_request": 1}


def test_a_request_that_ended_elsewhere_changes_nothing() -> None:
    maker = row_maker([raw_row(launch(), [3, 1], released=[Request("other")])])
    assert next(maker.drain(1)).fresh_requests == 2
    assert not +maker.dropped


def test_retracted_requests_are_counted_apart_from_finished_ones() -> None:
    finished, retracted = requests(2)
    retracted.is_retracted = True
    (row,) = rows_of(raw_row(launch(), [3, 3], [finished, retracted], released=[finished, retracted]))
    assert (row.retracted_requests, row.fresh_requests, row.emitted_tokens) == (1, 0, 0)


def test_requests_that_joined_the_batch_afterwards_are_not_of_this_step() -> None:
    (row,) = rows_of(raw_row(launch(), [3, 1], requests(6)))
    assert (row.batch_size, row.padded_batch_size, row.fresh_requests) == (2, 2, 2)


# -- time ----------------------------------------------------------------------------------------


def steps(*raw: RawRow) -> list[tuple[int, int, bool]]:
    """Step time and wall gap in ms (-1: absent), and the gap flag, of each row."""
    return [(r.step_ns // MS, r.wall_gap_ns // MS, bool(r.flags & GAP)) for r in rows_of(*raw)]


def test_step_time_is_the_time_between_two_results_with_nothing_but_decode_between() -> None:
    assert steps(
        raw_row(launch(1, gap=True), [1], result_ms=10),
        raw_row(launch(2), [1], result_ms=18),
        raw_row(launch(3, gap=True, prefill_tokens=500), [1], result_ms=60),
        raw_row(launch(4), [1], result_ms=67),
    ) == [(-1, -1, True), (8, 8, False), (-1, 42, True), (7, 7, False)]


def test_a_step_that_is_a_hundred_times_slower_is_a_cost() -> None:
    assert steps(raw_row(launch(1), [1], result_ms=10), raw_row(launch(2), [1], result_ms=810))[1][0] == 800


def test_a_clock_that_went_back_costs_the_time_and_not_the_row() -> None:
    back, after = rows_of(
        *(raw_row(launch(i), [count], result_ms=ms) for i, (ms, count) in enumerate([(10, 1), (5, 3), (9, 2)], 1))
    )[1:]
    assert (back.step_ns, back.wall_gap_ns, back.emitted_tokens) == (ABSENT, ABSENT, 4)
    assert after.step_ns == 4 * MS


def test_prefill_tokens_go_with_the_launch_behind_them() -> None:
    (row,) = rows_of(raw_row(launch(1, gap=True, prefill_tokens=4096), [1]))
    assert row.prefill_tokens == 4096


# -- rows that are missing, twice or odd ---------------------------------------------------------


def test_rows_that_fell_out_are_counted_and_the_next_one_is_behind_a_gap() -> None:
    maker = row_maker([raw_row(launch(i), [1], result_ms=10 * i) for i in (5, 6, 10, 11)])
    rows = list(maker.drain(9))
    assert [row.launch_id for row in rows] == [5, 6, 10, 11]
    assert [bool(row.flags & GAP) for row in rows] == [True, False, True, False]
    assert +maker.dropped == {"lost_row": 3}
    assert (rows[2].step_ns, rows[2].wall_gap_ns) == (ABSENT, 40 * MS)


def test_a_launch_that_comes_twice_is_dropped() -> None:
    maker = row_maker([raw_row(launch(i), [1], result_ms=10 * n) for n, i in enumerate((1, 2, 2, 1, 3), 1)])
    rows = list(maker.drain(9))
    assert [row.launch_id for row in rows] == [1, 2, 3]
    assert +maker.dropped == {"duplicate_launch": 2}
    assert rows[2].wall_gap_ns == 30 * MS


def test_an_empty_batch_is_no_row_but_ends_the_time_of_the_step_before() -> None:
    maker = row_maker([raw_row(launch(i), [1] * n, result_ms=10 * i) for i, n in ((1, 1), (2, 0), (3, 1))])
    rows = list(maker.drain(9))
    assert [(row.launch_id, row.wall_gap_ns) for row in rows] == [(1, ABSENT), (3, 10 * MS)]
    assert +maker.dropped == {"empty_batch": 1}


ODD: dict[str, Any] = {
    "no context lengths": {"seq_lens": object()},
    "released requests of another kind": {"released": 7},
    "no launch": {"launch": None},
    "counts of another kind": {"counts": 7},
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_a_row_that_cannot_be_read_is_counted_and_the_stream_goes_on(change: dict[str, Any]) -> None:
    maker = row_maker([raw_row(launch(1), [1])._replace(**change), raw_row(launch(2), [1])])
    assert [row.launch_id for row in maker.drain(9)] == [2]
    assert +maker.dropped == {"unreadable_row": 1}


def test_a_drain_takes_no_more_than_it_is_told() -> None:
    maker = row_maker([raw_row(launch(i), [1]) for i in range(1, 6)])
    assert [row.launch_id for row in maker.drain(2)] == [1, 2]
    assert [row.launch_id for row in maker.drain(9)] == [3, 4, 5]


# -- flags ---------------------------------------------------------------------------------------


def flags(*raw: RawRow) -> list[int]:
    return [row.flags for row in rows_of(*raw)]


def test_the_first_three_rows_of_a_graph_size_in_a_mode_are_warm_up() -> None:
    wide, narrow = Choice(speculate(5), 1, 0), Choice(speculate(1), 1, 1)
    course = [(5, wide)] * 4 + [(6, wide), (9, wide)] + [(5, narrow)] * 4
    raw = [raw_row(launch(i, choice), [0] * n) for i, (n, choice) in enumerate(course, 1)]
    assert "".join("w" if f & WARM_UP else "." for f in flags(*raw)) == "www..wwww."


def test_a_batch_of_health_checks_is_warm_up() -> None:
    checks = [Request("HEALTH_CHECK_1"), Request("r1")]
    raw = [raw_row(launch(i), [1], checks[:1]) for i in range(1, 6)]
    assert all(f & WARM_UP for f in flags(*raw))
    mixed = [raw_row(launch(i), [1, 1], checks) for i in range(1, 6)]
    assert not flags(*mixed)[-1] & WARM_UP


def test_a_row_in_another_mode_than_the_one_before_is_flagged_as_switched() -> None:
    chosen = [None, Choice(speculate(3), 1, 0), Choice(speculate(1), 1, 1), Choice(speculate(1), 2, 0), None]
    maker = row_maker([raw_row(launch(i, choice), [0]) for i, choice in enumerate(chosen, 1)])
    assert [bool(row.flags & SWITCHED) for row in maker.drain(9)] == [False, False, True, False, True]
    assert maker.switches == 2


def test_graph_and_exploration_are_flagged() -> None:
    explored = Choice(speculate(1), 1, 0, explored=True)
    graph, eager, drawn = rows_of(
        raw_row(launch(1), [0]), raw_row(launch(2), [0], graph=False), raw_row(launch(3, explored), [0])
    )
    assert [bool(row.flags & GRAPH) for row in (graph, eager, drawn)] == [True, False, True]
    assert [bool(row.flags & EXPLORED) for row in (graph, eager, drawn)] == [False, False, True]


def test_a_batch_above_the_largest_graph_is_not_padded() -> None:
    (row,) = rows_of(raw_row(launch(), [0] * 65))
    assert row.padded_batch_size == 65
    (bare,) = row_maker([raw_row(launch(), [0] * 5)], graph_sizes=()).drain(1)
    assert bare.padded_batch_size == 5


class OnTheDevice(Lengths):
    is_cuda = True


class LongRequest(Request):
    """With a prompt of so many tokens."""

    def __init__(self, prompt: int, output: int) -> None:
        super().__init__(output_ids=output)
        self.origin_input_ids = [0] * prompt


@pytest.mark.parametrize("lengths", [None, OnTheDevice([5]), Lengths()])
def test_context_lengths_that_are_not_on_the_host_are_absent(lengths: Any) -> None:
    row: Row
    (row,) = rows_of(raw_row(launch(), [0], seq_lens=lengths))
    assert (row.context_tokens_sum, row.context_tokens_max) == (ABSENT, ABSENT)


def test_context_lengths_that_are_not_on_the_host_are_read_off_the_requests() -> None:
    """As on FA3, which needs none there: as of when the rows are read."""
    reqs = [LongRequest(100, 20), LongRequest(300, 0)]
    first, second = rows_of(
        raw_row(launch(1), [0, 1], reqs, seq_lens=None), raw_row(launch(2), [0, 1], reqs, 20, seq_lens=OnTheDevice([9]))
    )
    assert (first.context_tokens_sum, first.context_tokens_max) == (420, 300)
    assert (second.context_tokens_sum, second.context_tokens_max) == (420, 300)


def test_every_report_reads_them_anew() -> None:
    recorder, reqs = Recorder(), [LongRequest(100, 20)]
    maker = RowMaker(recorder, (), mode_of_width)
    found = []
    for step in (1, 2):
        recorder.ring.append(tuple(raw_row(launch(step), [0], reqs, 10 * step)))
        found += [row.context_tokens_sum for row in maker.drain(10)]
        reqs[0].output_ids += [0, 0]
    assert found == [120, 122]


# -- requests whose draft model has not read every token -----------------------------------------


def noted(raw: RawRow, *notes: LaunchNote) -> Row:
    """The row of a result of which these notes were left."""
    recorder = Recorder()
    recorder.ring.append(tuple(raw))
    recorder.notes.extend(notes)
    (row,) = RowMaker(recorder, (), mode_of_width).drain(1)
    return row


def test_stale_requests_are_counted_apart_from_fresh_ones() -> None:
    row = noted(raw_row(launch(4), [3, 0, 1, 2], draft_tokens=4), LaunchNote(4, behind=(1, 2)))
    assert (row.offered, row.accepted, row.fresh_requests) == ((2, 2, 2), (2, 2, 1), 2)
    assert (row.stale_offered, row.stale_accepted, row.stale_requests) == ((2, 1, 0), (1, 0, 0), 2)
    assert (row.emitted_tokens, row.catch_up_ns) == (4 + 6, ABSENT)


def test_a_late_request_counts_in_neither() -> None:
    reqs = requests(3)
    row = noted(raw_row(launch(4), [3, 3, 3], reqs, draft_tokens=4, released=reqs[1:2]), LaunchNote(4, behind=(1, 2)))
    assert (row.fresh_requests, row.stale_requests, row.emitted_tokens) == (1, 1, 8)


def test_a_round_of_native_plain_says_what_it_left_unread() -> None:
    chosen = launch(4, Choice(PLAIN_NATIVE, 2, 0))
    row = noted(raw_row(chosen, [0, 0], draft_tokens=1), LaunchNote(4, (0, 1), True, missed_tokens=6))
    assert (row.mode, row.fresh_requests, row.stale_requests) == (PLAIN_NATIVE, 0, 2)
    assert (row.missed_tokens, row.caught_up_tokens, row.catch_up_ns, row.emitted_tokens) == (6, 0, 0, 2)


def test_the_time_of_a_catch_up_is_asked_for_when_the_result_is_in() -> None:
    row = noted(raw_row(launch(4), [3, 3], draft_tokens=4), LaunchNote(4, (), True, 0, 12, lambda: 7 * MS))
    assert (row.catch_up_ns, row.caught_up_tokens, row.fresh_requests) == (7 * MS, 12, 2)


def test_a_clock_that_fails_costs_the_figure_and_not_the_row() -> None:
    def fails() -> int:
        raise RuntimeError("the event is not there yet")

    row = noted(raw_row(launch(4), [3], draft_tokens=4), LaunchNote(4, (), True, 0, 12, fails))
    assert (row.catch_up_ns, row.fresh_requests) == (0, 1)


def test_notes_of_launches_that_never_came_back_are_let_go_and_later_ones_kept() -> None:
    recorder = Recorder()
    recorder.ring.extend(tuple(raw_row(launch(i), [3], draft_tokens=4)) for i in (4, 6))
    recorder.notes.extend(LaunchNote(i, behind=(0,)) for i in (2, 3, 5, 6))
    rows = list(RowMaker(recorder, (), mode_of_width).drain(9))
    assert [row.stale_requests for row in rows] == [0, 1]
    assert not recorder.notes
