"""Step rows as columns: what comes back, what is left out, and under which name that is counted."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.scripted_engine import decode_row
from trimtab.domain import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, DepthCounts, StepFlag, StepRow, speculate
from trimtab.wire import MAX_ROWS_PER_REPORT, WireLimitError, columns_to_rows, rows_to_columns
from trimtabpb.v1 import control_pb2 as pb

MODES = [PLAIN_WARM, PLAIN_COLD, PLAIN_NATIVE, speculate(1), speculate(3), speculate(64)]
counts = st.integers(0, 1 << 20)
times = st.integers(0, 1 << 41)
maybe_counts = st.none() | counts
maybe_times = st.none() | times


@st.composite
def cascades(draw: st.DrawFn, requests: int) -> DepthCounts:
    """Counts by depth as a step makes them: each draft goes to those that accepted the one before, or fewer."""
    falling = sorted(draw(st.lists(st.integers(0, requests), max_size=16)), reverse=True)
    pairs = falling[: len(falling) // 2 * 2]
    return DepthCounts(tuple(pairs[::2]), tuple(pairs[1::2]))


@st.composite
def step_rows(draw: st.DrawFn) -> StepRow:
    fresh, stale = draw(st.integers(0, 300)), draw(st.integers(0, 300))
    return StepRow(
        launch_id=draw(times), step=draw(times), result_ns=draw(times), mode=draw(st.sampled_from(MODES)),
        batch_size=draw(counts), emitted_tokens=draw(counts), fresh_requests=fresh, fresh=draw(cascades(fresh)),
        stale_requests=stale, stale=draw(cascades(stale)), lease_version=draw(times),
        table_entry=draw(st.none() | st.integers(0, 63)), rank=draw(st.integers(0, 9)), dp_rank=draw(st.integers(0, 9)),
        padded_batch_size=draw(maybe_counts), global_batch_size=draw(maybe_counts), step_ns=draw(maybe_times),
        wall_gap_ns=draw(maybe_times), prefill_tokens=draw(counts), context_tokens_sum=draw(maybe_times),
        context_tokens_max=draw(maybe_times), kv_used_tokens=draw(maybe_times), running_requests=draw(maybe_counts),
        waiting_requests=draw(maybe_counts), retracted_requests=draw(maybe_counts), greedy_requests=draw(maybe_counts),
        grammar_requests=draw(maybe_counts), lora_requests=draw(maybe_counts),
        accepted_worst_decile=draw(st.none() | st.floats(0, 64, width=32)), catch_up_ns=draw(maybe_times),
        flags=StepFlag(draw(st.integers(0, 31))),
    )  # fmt: skip


@given(st.lists(step_rows(), max_size=5))
def test_rows_come_back_as_they_went(rows: list[StepRow]) -> None:
    sent = rows_to_columns(rows).SerializeToString()

    assert columns_to_rows(pb.StepRows.FromString(sent)) == (tuple(rows), {})


def columns(**changes: Any) -> pb.StepRows:
    """Three good rows, with some columns replaced."""
    message = rows_to_columns([decode_row(step, speculate(2), batch_size=4) for step in (1, 2, 3)])
    for name, values in changes.items():
        message.ClearField(name)  # type: ignore[arg-type]
        message.MergeFrom(pb.StepRows(**{name: values}))
    return message


def test_an_empty_column_is_absent_for_every_row() -> None:
    optional = ["step_ns", "wall_gap_ns", "padded_batch_size", "table_entry", "accepted_worst_decile"]
    zeros = ["rank", "prefill_tokens", "lease_version", "stale_requests", "flags", "stale"]
    rows, refused = columns_to_rows(columns(**dict.fromkeys([*optional, *zeros[:-1]], ()), stale=pb.CountsByDepth()))

    assert not refused
    assert all(getattr(row, name) is None for row in rows for name in optional)
    assert all(not getattr(row, name) for row in rows for name in zeros[:-1])
    assert all(row.stale == DepthCounts() for row in rows)


def test_minus_one_is_absent_for_its_row_alone() -> None:
    rows, refused = columns_to_rows(columns(step_ns=[5, -1, 7], accepted_worst_decile=[-1.0, 0.5, 0.0]))

    assert not refused
    assert [row.step_ns for row in rows] == [5, None, 7]
    assert [row.accepted_worst_decile for row in rows] == [None, 0.5, 0.0]


def test_flags_of_a_later_protocol_are_ignored() -> None:
    rows, refused = columns_to_rows(columns(flags=[1 | 1 << 9, 1 << 31, 2]))

    assert not refused
    assert [row.flags for row in rows] == [StepFlag.GRAPH, StepFlag.NONE, StepFlag.GAP]


BAD_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown kind of mode": ({"mode_kind": [1, 77, 1]}, "mode_range"),
    "plain with steps": ({"mode_kind": [1, 2, 1]}, "mode_range"),
    "speculation without steps": ({"mode_steps": [2, 0, 2]}, "mode_range"),
    "too many steps": ({"mode_steps": [2, 65, 2]}, "mode_range"),
    "negative time": ({"step_ns": [5, -2, 5]}, "step_ns_range"),
    "a step of two hours": ({"step_ns": [5, 7_200 * 10**9, 5]}, "step_ns_range"),
    "a batch of millions": ({"batch_size": [1, 1 << 21, 1]}, "batch_size_range"),
    "a clock beyond centuries": ({"result_ns": [1, (1 << 62) + 1, 1]}, "result_ns_range"),
    "no number": ({"accepted_worst_decile": [0.0, math.nan, 0.0]}, "accepted_worst_decile_range"),
    "infinite": ({"accepted_worst_decile": [0.0, math.inf, 0.0]}, "accepted_worst_decile_range"),
    "between absent and zero": ({"accepted_worst_decile": [0.0, -0.5, 0.0]}, "accepted_worst_decile_range"),
    "beyond the table": ({"table_entry": [0, 64, 0]}, "table_entry_range"),
    "more accepted than offered": (
        {"fresh": pb.CountsByDepth(depths=[1, 1, 1], offered=[4, 2, 4], accepted=[1, 3, 1])}, "fresh_range",
    ),
    "offered to more than accepted before": (
        {"fresh": pb.CountsByDepth(depths=[1, 2, 1], offered=[4, 4, 3, 4], accepted=[1, 2, 2, 1])}, "fresh_range",
    ),
    "offered to more than there are": (
        {"fresh": pb.CountsByDepth(depths=[1, 1, 1], offered=[4, 5, 4], accepted=[1, 1, 1])}, "fresh_range",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_a_bad_value_costs_its_row_and_no_other(changes: dict[str, Any], reason: str) -> None:
    rows, refused = columns_to_rows(columns(**changes))

    assert [row.step for row in rows] == [1, 3]
    assert refused == {reason: 1}


def test_a_row_with_several_faults_is_counted_once() -> None:
    rows, refused = columns_to_rows(columns(step_ns=[5, -2, 5], mode_steps=[2, 0, 2]))

    assert len(rows) == 2
    assert refused.total() == 1


BAD_COLUMNS: dict[str, tuple[dict[str, Any], str, str]] = {
    "too short": ({"step_ns": [5]}, "step_ns_length", "step_ns"),
    "too long": ({"kv_used_tokens": range(9)}, "kv_used_tokens_length", "kv_used_tokens"),
    "counts without depths": ({"fresh": pb.CountsByDepth(offered=[1], accepted=[1])}, "fresh_length", "fresh_requests"),
    "depths that do not add up": (
        {"fresh": pb.CountsByDepth(depths=[1, 1, 1], offered=[4, 4], accepted=[1, 1, 1])},
        "fresh_length",
        "fresh_requests",
    ),
    "a depth beyond all drafts": (
        {"fresh": pb.CountsByDepth(depths=[0, 65, 0], offered=[0] * 65, accepted=[0] * 65)},
        "fresh_length",
        "fresh_requests",
    ),
}


@pytest.mark.parametrize(("changes", "reason", "name"), BAD_COLUMNS.values(), ids=BAD_COLUMNS)
def test_a_malformed_column_is_taken_as_absent(changes: dict[str, Any], reason: str, name: str) -> None:
    rows, refused = columns_to_rows(columns(**changes))

    assert len(rows) == 3
    assert refused == {reason: 1}
    assert not any(getattr(row, name) for row in rows)


@pytest.mark.parametrize("name", ["launch_id", "result_ns", "batch_size", "emitted_tokens", "mode_kind", "mode_steps"])
def test_without_a_column_that_every_row_needs_there_are_no_rows(name: str) -> None:
    rows, refused = columns_to_rows(columns(**{name: ()}))

    reason = "mode" if name.startswith("mode_") else name
    assert rows == ()
    assert refused == {f"{reason}_missing": 3}


def test_no_rows_are_no_fault() -> None:
    assert columns_to_rows(pb.StepRows()) == ((), {})


def test_more_rows_than_a_report_may_have_are_refused_as_a_whole() -> None:
    columns_to_rows(pb.StepRows(step=range(MAX_ROWS_PER_REPORT)))
    with pytest.raises(WireLimitError, match=r"report\.rows: has 4097 rows, at most 4096"):
        columns_to_rows(pb.StepRows(step=range(MAX_ROWS_PER_REPORT + 1)))


@given(st.binary(max_size=200))
def test_bytes_that_parse_never_break_the_reader(data: bytes) -> None:
    message = pb.StepRows()
    try:
        message.ParseFromString(data)
    except Exception:  # noqa: BLE001  (what a decoder raises is its own affair)
        return
    rows, _ = columns_to_rows(message)
    assert len(rows) <= len(message.step)
