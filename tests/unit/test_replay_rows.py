"""Rows of a trace as replay takes them: what is left out, what is a cost, and where blocks begin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.replay_traces import Recorder, all_rows, engine, write
from trimtab.domain import DepthCounts, StepFlag
from trimtab.errors import DataError
from trimtab.replay.trace_model.rows import BLOCK_STEPS, RowSource
from trimtab.replay.traces.recording import read_trace
from trimtab.replay.traces.writer import TraceWriter


def recorded(tmp_path: Path, n: int = 200) -> Path:
    recorder = Recorder()
    for i in range(n):
        recorder.step((3, 1)[i // 20 % 2], [i % 4, 2])
    return write(tmp_path / "t.parquet", (engine(), recorder.rows))


def test_what_is_summed_up_by_block_does_not_depend_on_how_the_file_is_read(tmp_path: Path) -> None:
    path = recorded(tmp_path, 1000)
    with read_trace(path) as trace:
        whole, parts = ([*RowSource(trace, "t").stretches(rows=rows)] for rows in (5_000, 150))
    assert len(parts) > 4
    for stretch in parts:
        assert stretch.first_row % BLOCK_STEPS == 0
    for name in ("block", "mode", "switched", "cost", "tokens"):
        together = np.concatenate([getattr(stretch, name) for stretch in parts])
        # A change of mode at the very edge of a stretch is not seen from the stretch before.
        different = (together != getattr(whole[0], name)).sum()
        assert different <= (len(parts) if name == "cost" else 0)


def test_dummy_requests_and_empty_batches_take_no_part_and_are_counted(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.step(3, [1, 2], flags=StepFlag.GRAPH | StepFlag.SWEEP)
    recorder.step(3, [1, 2], batch_size=0)
    recorder.step(3, [1, 2])
    path = write(tmp_path / "t.parquet", (engine(), recorder.rows))
    with read_trace(path) as trace:
        source = RowSource(trace, "t")
        (rows,) = source.stretches()
    assert len(rows) == 1
    assert source.left_out_rows == {"sweep": 1, "no_requests": 1}


def test_a_time_is_a_cost_away_from_gaps_warm_ups_and_changes_of_mode(tmp_path: Path) -> None:
    recorder = Recorder()
    for steps in [3] * 8 + [1] * 8:
        recorder.step(steps, [1])
    recorder.step(1, [1], gap_ms=30.0)
    recorder.step(1, [1], flags=StepFlag.GRAPH | StepFlag.WARM_UP)
    recorder.step(1, [1])
    (rows,) = all_rows(write(tmp_path / "t.parquet", (engine(), recorder.rows)))
    assert np.flatnonzero(~rows.cost).tolist() == [7, 8, 9, 10, 11, 16, 17]
    assert np.flatnonzero(np.isnan(rows.step_ms)).tolist() == [16]
    assert np.flatnonzero(rows.switched).tolist() == [8]


def test_the_first_row_is_no_change_of_mode_and_each_run_begins_anew(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    first.step(3, [1])
    second.step(1, [1])
    path = write(tmp_path / "t.parquet", (engine(), first.rows), (engine(run=1), second.rows))
    stretches = all_rows(path)
    assert [(s.segment, s.switched.tolist()) for s in stretches] == [(0, [False]), (1, [False])]


def test_runs_by_depth_are_those_of_fresh_and_stale_requests_together(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.step(3, [3, 1], batch_size=4, stale_requests=2, stale=DepthCounts((2, 1, 0), (1, 0, 0)))
    (rows,) = all_rows(write(tmp_path / "t.parquet", (engine(), recorder.rows)))
    assert rows.reached.tolist() == [[4, 3, 1, 1]]
    assert rows.accepted.tolist() == [5]
    assert rows.counted.tolist() == [True]


def by_columns(path: Path, **columns: object) -> Path:
    with TraceWriter(path, "step_rows") as writer:
        writer.begin(engine())
        writer.write(columns)
    return path


def test_without_counts_the_sum_is_what_was_said_or_what_came_out(tmp_path: Path) -> None:
    base = {"result_ns": np.arange(1, 4), "mode": ["speculate(3)"] * 3, "batch_size": np.full(3, 4)}
    by_sum = by_columns(tmp_path / "a.parquet", **base, accepted_tokens=np.array([5, 6, 7]))
    by_output = by_columns(tmp_path / "b.parquet", **base, emitted_tokens=np.array([9, 10, 11]))
    for path in (by_sum, by_output):
        (rows,) = all_rows(path)
        assert rows.accepted.tolist() == [5, 6, 7]
        assert rows.tokens.tolist() == [9, 10, 11]
        assert not rows.counted.any()


def test_plain_rows_count_as_counted_whatever_they_say(tmp_path: Path) -> None:
    columns = {"result_ns": np.arange(1, 3), "mode": ["plain_warm"] * 2, "batch_size": np.full(2, 4)}
    (rows,) = all_rows(by_columns(tmp_path / "t.parquet", **columns, accepted_tokens=np.zeros(2, dtype=np.int64)))
    assert rows.counted.all()
    assert rows.reached.tolist() == [[4], [4]]


def test_a_row_that_says_neither_sum_nor_output_is_named(tmp_path: Path) -> None:
    columns = {"result_ns": np.arange(1, 4), "mode": ["speculate(3)"] * 3, "batch_size": np.full(3, 4)}
    path = by_columns(tmp_path / "t.parquet", **columns)
    with pytest.raises(DataError, match=r"t\.parquet: row 1: says neither what was accepted nor what came out"):
        all_rows(path)


def test_a_row_may_stand_for_many_steps(tmp_path: Path) -> None:
    columns = {
        "result_ns": np.arange(1, 21) * 10**9,
        "mode": ["speculate(3)"] * 20,
        "batch_size": np.full(20, 4),
        "accepted_tokens": np.full(20, 240),
        "steps": np.full(20, 40),
        "step_ns": np.full(20, 9_000_000),
    }
    (rows,) = all_rows(by_columns(tmp_path / "t.parquet", **columns))
    assert rows.requests.tolist() == [160] * 20
    assert rows.tokens.tolist() == [400] * 20
    # Blocks are of steps, but of eight rows at least.
    assert rows.block.tolist() == [0] * 8 + [1] * 8 + [2] * 4
