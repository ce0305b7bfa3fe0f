"""Profiles from traces: the real logs of the 8B model, judged by halves that the profile has not seen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.step_rows import step_row
from support.trace_files import TRACES, write_rows
from trimtab.domain import StepFlag, speculate
from trimtab.errors import DataError
from trimtab.replay.profiles.check import JUDGING_ROWS, first_half, held_out_errors
from trimtab.replay.profiles.fit import cells_of, fit_profile
from trimtab.replay.profiles.sample_files import read_samples
from trimtab.replay.profiles.wanted import Wanted
from trimtab.replay.traces.importing import import_traces
from trimtab.replay.traces.schema import TraceEngine
from trimtab.replay.traces.writer import TraceWriter

PROMPT_TOKENS = {"ctx64": 64, "per_request": 64, "ctx4k": 4096, "bs225": 64}
WITHIN = 0.06


@pytest.mark.parametrize(("name", "prompt_tokens"), PROMPT_TOKENS.items())
def test_a_profile_of_one_half_says_the_other_half_within_six_percent(
    tmp_path: Path, name: str, prompt_tokens: int
) -> None:
    import_traces([TRACES / f"llama8b_fa3_{name}.csv.gz"], tmp_path / "t.parquet")
    samples = read_samples(tmp_path / "t.parquet", Wanted(prompt_tokens=prompt_tokens)).samples
    errors = held_out_errors(samples)
    half = first_half(samples)
    for learnt, judged in ((half, ~half), (~half, half)):
        fit_profile(samples.where(learnt))
        others = samples.where(judged)
        judgeable = {
            (cell.batch_size, str(others.modes[cell.mode]))
            for cell in cells_of(others)
            if len(cell.rows) >= JUDGING_ROWS
        }
        assert judgeable <= set(errors), "every cell with 20 samples in the other half is judged"
    worst = max(errors, key=lambda cell: abs(errors[cell]))
    assert abs(errors[worst]) <= WITHIN, f"{name}: {errors[worst]:+.1%} at batch {worst[0]}, {worst[1]}"


def test_samples_of_a_trace_carry_all_that_it_knows(tmp_path: Path) -> None:
    rows = [
        step_row(
            speculate(3), 3, step_ns=5_000_000 + i, result_ns=i, padded_batch_size=4, context_tokens_sum=900,
            context_tokens_max=600, flags=StepFlag.GRAPH,
        )
        for i in range(3)
    ]  # fmt: skip
    rows.append(
        step_row(speculate(3), 3, step_ns=None, wall_gap_ns=9, result_ns=9, flags=StepFlag.GAP | StepFlag.GRAPH)
    )
    rows.append(step_row(speculate(3), 3, step_ns=None, result_ns=10, flags=StepFlag.GRAPH))
    found = read_samples(write_rows(tmp_path / "t.parquet", rows), Wanted())
    assert found.left_out == {"gap": 1, "untimed": 1}
    assert found.samples.batch_size.tolist() == [4, 4, 4]
    assert found.samples.requests.tolist() == [3, 3, 3]
    assert found.samples.context_sum.tolist() == [900] * 3
    assert found.samples.context_max.tolist() == [600] * 3
    assert found.samples.steps.tolist() == [1] * 3


def test_batches_are_padded_to_the_graph_sizes_that_the_engine_said(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.parquet", "journal") as writer:
        writer.begin(TraceEngine("a", 0, graph_batch_sizes=(1, 8, 16)))
        writer.write_rows([step_row(batch_size=size, result_ns=size) for size in (3, 9, 20)])
    found = read_samples(tmp_path / "t.parquet", Wanted())
    assert found.samples.batch_size.tolist() == [8, 16, 20]
    found = read_samples(tmp_path / "t.parquet", Wanted(graph_sizes=(4, 32)))
    assert found.samples.batch_size.tolist() == [4, 32, 32]


def test_averages_of_many_steps_count_as_many(tmp_path: Path) -> None:
    import_traces([TRACES / "sglang_0.5.23_fixed.log.gz"], tmp_path / "t.parquet")
    found = read_samples(tmp_path / "t.parquet", Wanted())
    assert set(found.samples.steps) == {10.0}
    assert found.rows == 197 == len(found.samples) + found.left_out.total()


def test_step_rows_are_the_same_samples_as_csv_as_json_and_as_a_trace(tmp_path: Path) -> None:
    rows = [
        {"batch_size": 3, "mode": "plain_warm", "step_ns": 5_000_000 + i, "context_tokens_sum": 900 + i, "flags": 1}
        for i in range(9)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_traces([tmp_path / "rows.jsonl"], tmp_path / "t.parquet")
    one, other = (read_samples(tmp_path / name, Wanted()) for name in ("rows.jsonl", "t.parquet"))
    assert one.left_out == other.left_out
    for column in ("batch_size", "requests", "step_ms", "context_sum"):
        assert np.array_equal(getattr(one.samples, column), getattr(other.samples, column))


def test_progress_of_a_trace_is_told_in_bytes(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "t.parquet", [step_row(result_ns=i) for i in range(50)])
    told: list[int] = []
    read_samples(path, Wanted(), told.append)
    assert told == [path.stat().st_size]


def test_a_truncated_trace_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "t.parquet", [step_row()])
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="is not a whole Parquet file"):
        read_samples(path, Wanted())
