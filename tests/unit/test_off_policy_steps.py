"""Which steps of a trace count for estimates, which draw chose their mode, and what is known of their state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.step_rows import MadeUpEngine, step_row
from support.trace_files import write_rows
from trimtab.domain import PLAIN_WARM, DepthCounts, StepFlag, StepRow, speculate
from trimtab.replay.off_policy.logged_steps import (
    QUIET_BLOCK_STEPS,
    UNTOLD_BLOCK_STEPS,
    LoggedSteps,
    StepReader,
    Stretches,
)
from trimtab.replay.off_policy.recorded_rows import step_rows
from trimtab.replay.traces.recording import read_trace
from trimtab.replay.traces.schema import TraceEngine
from trimtab.replay.traces.writer import TraceWriter

MODES = (PLAIN_WARM, speculate(1), speculate(3))


def rows_at(steps: Sequence[int], **fields: Any) -> list[StepRow]:
    return [step_row(speculate(3), step=step, result_ns=step * 10_000_000, **fields) for step in steps]


def read(path: Path, batch_rows: int = 100_000) -> tuple[StepReader, list[LoggedSteps]]:
    with read_trace(path) as trace:
        reader = StepReader(MODES, trace.rows)
        return reader, [reader.read(columns) for columns in trace.batches(rows=batch_rows)]


def one(path: Path) -> LoggedSteps:
    (logged,) = read(path)[1]
    return logged


def sizes_of_blocks(logged: LoggedSteps) -> list[int]:
    sizes: list[int] = np.unique(logged.block, return_counts=True)[1].tolist()
    return sizes


# -- which count ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("no_requests", {"batch_size": 0}),
        ("sweep", {"flags": StepFlag.SWEEP}),
        ("warm_up", {"flags": StepFlag.WARM_UP}),
        ("gap", {"flags": StepFlag.GAP}),
        ("untimed", {"step_ns": None}),
    ],
)
def test_steps_that_say_nothing_of_their_mode_are_left_out_by_reason(
    tmp_path: Path, reason: str, fields: dict[str, Any]
) -> None:
    rows = [*rows_at([1, 2]), step_row(speculate(3), step=3, result_ns=30_000_000, **fields), *rows_at([4])]
    reader, (logged,) = read(write_rows(tmp_path / "t.parquet", rows))
    assert +reader.left_out == {reason: 1}
    assert reader.counted == len(logged.mode) == 3
    assert logged.counted.tolist() == [True, True, False, True]


def test_rewards_are_tokens_and_the_time_of_the_step(tmp_path: Path) -> None:
    logged = one(write_rows(tmp_path / "t.parquet", rows_at([1], batch_size=4, accepted=6, step_ns=8_000_000)))
    assert (logged.tokens.tolist(), logged.ms.tolist(), logged.batch_size.tolist()) == ([10], [8], [4])
    assert [MODES[mode] for mode in logged.mode] == [speculate(3)]


def test_a_row_of_several_steps_counts_for_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with TraceWriter(path, "sglang_log") as writer:
        writer.begin(TraceEngine("a", 0))
        writer.write(
            {"result_ns": [1], "mode": ["speculate(3)"], "batch_size": [2], "accepted_tokens": [30], "steps": [10],
             "step_ns": [5_000_000]}
        )  # fmt: skip
    logged = one(path)
    # No tokens are told: 30 accepted and one for each of 2 requests in 10 steps.
    assert (logged.steps.tolist(), logged.tokens.tolist(), logged.ms.tolist()) == ([10], [50], [50])
    assert np.isnan(logged.probability).all()


# -- blocks ------------------------------------------------------------------------------------------


def test_a_block_is_what_one_draw_of_the_lease_chose(tmp_path: Path) -> None:
    steps = range(5, 40)
    path = write_rows(tmp_path / "t.parquet", rows_at(steps), probabilities=[0.5] * 35, dwell_steps=[16] * 35)
    # Draws are at steps 16 and 32.
    assert sizes_of_blocks(one(path)) == [11, 16, 8]


def test_a_lease_with_other_draws_begins_another_block(tmp_path: Path) -> None:
    rows = rows_at(range(16, 32))
    path = write_rows(tmp_path / "t.parquet", rows, probabilities=[0.5] * 16, dwell_steps=[16] * 10 + [6] * 6)
    assert sizes_of_blocks(one(path)) == [10, 4, 2]


@pytest.mark.parametrize(
    ("probability", "dwell_steps", "length"),
    [(1.0, 0, QUIET_BLOCK_STEPS), (1.0, None, QUIET_BLOCK_STEPS), (0.9, None, UNTOLD_BLOCK_STEPS)],
)
def test_without_draws_or_without_their_length_blocks_have_a_fixed_one(
    tmp_path: Path, probability: float, dwell_steps: int | None, length: int
) -> None:
    n = 2 * UNTOLD_BLOCK_STEPS
    rows = rows_at(range(n))
    path = write_rows(tmp_path / "t.parquet", rows, probabilities=[probability] * n, dwell_steps=[dwell_steps] * n)
    assert sizes_of_blocks(one(path)) == [length] * (n // length)


def test_blocks_do_not_depend_on_how_the_file_is_read(tmp_path: Path) -> None:
    rows = rows_at(range(100))
    path = write_rows(tmp_path / "t.parquet", rows, probabilities=[0.5] * 100, dwell_steps=[16] * 100)
    whole, parts = read(path)[1], read(path, 7)[1]
    for name in ("block", "features", "tokens"):
        together = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(together, np.concatenate([getattr(part, name) for part in whole]))


def test_every_run_of_an_engine_has_its_own_blocks(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with TraceWriter(path, "journal") as writer:
        for run in (0, 1):
            writer.begin(TraceEngine("a", run))
            writer.write_rows(rows_at(range(10)), [0.5] * 10, [16] * 10)
    blocks = [logged.block.tolist() for logged in read(path)[1]]
    assert blocks == [[1] * 10, [2] * 10]


# -- state -------------------------------------------------------------------------------------------


def test_acceptance_before_a_draw_is_part_of_the_state_and_that_of_the_draw_is_not(tmp_path: Path) -> None:
    def rows(first: int, accepted: int) -> list[StepRow]:
        return rows_at(range(first, first + 16), batch_size=8, depths=DepthCounts((8, accepted, 0), (accepted, 0, 0)))

    found = []
    for accepted in (0, 8):
        path = write_rows(
            tmp_path / f"{accepted}.parquet",
            [*rows(0, accepted), *rows(16, 4)],
            probabilities=[0.5] * 32,
            dwell_steps=[16] * 32,
        )
        found.append(one(path).features[:, 3])
    before, after = np.array(found)[:, [0, 16]].T
    assert before[0] == before[1]
    assert after[0] < 0.1
    assert after[1] > 0.9


def test_counts_that_are_unknown_leave_acceptance_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with TraceWriter(path, "step_log") as writer:
        writer.begin(TraceEngine("a", 0))
        writer.write({"result_ns": np.arange(64), "mode": ["speculate(3)"] * 64, "batch_size": np.full(64, 4),
                      "accepted_tokens": np.full(64, 8), "step_ns": np.full(64, 1)})  # fmt: skip
    assert np.ptp(one(path).features[:, 3]) == 0


# -- stretches ---------------------------------------------------------------------------------------


def test_steps_of_one_draw_one_mode_and_one_wish_become_one_stretch(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "t.parquet",
        rows_at(range(16, 48), batch_size=4, accepted=6, step_ns=8_000_000),
        probabilities=[0.25] * 32,
        dwell_steps=[16] * 32,
    )
    stretches = Stretches(len(MODES))
    first, second = stretches.code_of((1.0, 0.0, 0.0)), stretches.code_of((0.5, 0.0, 0.5))
    stretches.add(one(path), np.array([first] * 20 + [second] * 12))
    choices = stretches.choices()
    assert choices.steps.tolist() == [16, 4, 12]
    assert np.diff(choices.block).tolist() == [1, 0]
    assert choices.wanted.tolist() == [[1, 0, 0], [1, 0, 0], [0.5, 0, 0.5]]
    assert choices.weights.tolist() == [0, 0, 2]
    assert (choices.tokens.tolist(), choices.ms.tolist()) == ([160, 40, 120], [128, 32, 96])
    assert choices.batch_size.tolist() == [4, 4, 4]


# -- rows --------------------------------------------------------------------------------------------


def test_a_session_is_told_the_rows_that_the_engine_reported(tmp_path: Path) -> None:
    rows = MadeUpEngine(1).report(lambda size: MODES[size % 3], 200)
    with read_trace(write_rows(tmp_path / "t.parquet", rows)) as trace:
        assert [row for columns in trace.batches(rows=64) for row in step_rows(columns)] == rows


def test_what_a_trace_lacks_is_filled_in_as_an_engine_would(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with TraceWriter(path, "step_log") as writer:
        writer.begin(TraceEngine("a", 0))
        writer.write({"result_ns": [5, 9], "mode": ["speculate(1)"] * 2, "batch_size": [4, 4],
                      "accepted_tokens": [3, 2]})  # fmt: skip
    with read_trace(path) as trace:
        (rows,) = [step_rows(columns) for columns in trace.batches()]
    assert rows == [
        StepRow(
            launch_id=n, step=n, result_ns=at, mode=speculate(1), batch_size=4, emitted_tokens=tokens, fresh_requests=4
        )
        for n, at, tokens in ((1, 5, 7), (2, 9, 6))
    ]
