"""The first look at a trace: bounded samples of costs, steps around changes of mode, and how drafts fared by block."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from support.replay_traces import Recorder, engine, write
from trimtab.domain import speculate
from trimtab.replay.profiles.samples import StepSamples
from trimtab.replay.trace_model.rows import BLOCK_STEPS, RowSource
from trimtab.replay.trace_model.survey import Survey, survey, thinned
from trimtab.replay.traces.recording import read_trace


def look(path: Path) -> Survey:
    with read_trace(path) as trace:
        return survey(RowSource(trace, str(path)))


def samples(sizes: list[int]) -> StepSamples:
    n = len(sizes)
    nothing = np.full(n, np.nan)
    return StepSamples(
        (speculate(3),), np.zeros(n, dtype=np.int64), np.array(sizes), np.array(sizes), np.arange(n, dtype=float),
        np.ones(n), nothing, nothing,
    )  # fmt: skip


def test_frequent_cells_are_thinned_evenly_and_rare_ones_kept_whole() -> None:
    sizes = [8] * 1_000 + [64] * 7
    found = thinned(samples(sizes), 50)
    assert (found.batch_size == 64).sum() == 7
    kept = found.step_ms[found.batch_size == 8]
    assert len(kept) == 50
    assert set(np.diff(kept)) == {20.0}


def test_counts_by_mode_and_position_are_those_of_the_rows(tmp_path: Path) -> None:
    recorder = Recorder()
    for i in range(300):
        recorder.step((3, 1)[i // 30 % 2], [i % 5, 3])
    found = look(write(tmp_path / "t.parquet", (engine(), recorder.rows)))
    for number, steps in enumerate((1, 3)):
        rows = [row for row in recorder.rows if row.mode.steps == steps]
        for d in range(steps):
            assert found.by_mode[0, number, d] == sum(row.fresh.offered[d] for row in rows)
            assert found.by_mode[1, number, d] == sum(row.fresh.accepted[d] for row in rows)
    assert found.blocks.offered.sum(axis=0).tolist() == found.by_mode[0].sum(axis=0).tolist()
    assert found.blocks.steps.tolist() == [float(min(BLOCK_STEPS, 300 - i)) for i in range(0, 300, BLOCK_STEPS)]


def test_only_changes_that_stand_alone_tell_a_price(tmp_path: Path) -> None:
    recorder = Recorder()
    for steps in [3] * 20 + [1] * 20 + [3, 1, 3, 1] + [1] * 20:
        recorder.step(steps, [1])
    found = look(write(tmp_path / "t.parquet", (engine(), recorder.rows)))
    # The row before the change, its first row, and the three after.
    assert np.unique(found.switches.switch, return_counts=True)[1].tolist() == [5]


def test_every_run_of_an_engine_has_its_own_blocks_and_facts(tmp_path: Path) -> None:
    runs = []
    for n, size in ((100, 2), (30, 5)):
        recorder = Recorder()
        for _ in range(n):
            recorder.step(3, [1] * size)
        runs.append(recorder.rows)
    found = look(write(tmp_path / "t.parquet", (engine(), runs[0]), (engine(run=1), runs[1])))
    assert found.blocks.first_block.tolist() == [0, 2, 3]
    assert [(facts.rows, facts.largest_batch) for facts in found.segments] == [(100, 2), (30, 5)]
    assert found.rows == 130


def test_why_rows_are_no_cost_is_counted(tmp_path: Path) -> None:
    recorder = Recorder()
    for i in range(100):
        recorder.step(3, [1], gap_ms=50.0 if i == 50 else 0.0)
    found = look(write(tmp_path / "t.parquet", (engine(), recorder.rows)))
    assert found.left_out == {"untimed": 1}
    assert len(found.samples) == 99
