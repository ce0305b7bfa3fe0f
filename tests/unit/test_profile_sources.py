"""Files that step times are learnt from: what is taken of each, what is left out and why, and what is refused."""

from __future__ import annotations

import gzip
import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from trimtab.domain import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, StepFlag, speculate
from trimtab.errors import DataError
from trimtab.replay.profiles.sample_files import read_samples
from trimtab.replay.profiles.samples import cost_samples
from trimtab.replay.profiles.wanted import Found, Wanted

TRACES = Path(__file__).parents[1] / "data" / "traces"
LOG_HEADER = "t_s,num_steps,batch_size,accepted_drafts"


def found_in(folder: Path, text: str, wanted: Wanted | None = None, name: str = "trace.csv") -> Found:
    path = folder / name
    path.write_text(text)
    return read_samples(path, wanted or Wanted())


def step_log(rows: list[tuple[float, int, int, int]]) -> str:
    return "\n".join([LOG_HEADER, *(",".join(map(str, row)) for row in rows), ""])


def steady(
    t0: float, ms: float, steps: int, size: int, rows: int, accepted: int = 0
) -> list[tuple[float, int, int, int]]:
    """Rows that follow each other at the same pace, the first at `t0 + ms`."""
    return [(round(t0 + ms / 1e3 * (i + 1), 6), steps, size, accepted) for i in range(rows)]


# -- step logs ---------------------------------------------------------------------------------------


def test_a_step_log_gives_the_times_between_results(tmp_path: Path) -> None:
    found = found_in(tmp_path, step_log([(0.0, -1, 4, 0), *steady(0, 5, -1, 4, 8)]))
    assert found.rows == 9
    assert found.samples.modes == (PLAIN_COLD,)
    assert found.samples.step_ms == pytest.approx([5.0] * 8)
    assert set(found.samples.batch_size) == {4}
    assert found.left_out == {"untimed": 1}
    assert np.isnan(found.samples.context_sum).all()


def test_prefill_and_idle_time_are_no_cost(tmp_path: Path) -> None:
    rows = [(0.0, 3, 4, 0), *steady(0, 5, 3, 4, 5), *steady(0.075, 5, 3, 4, 5), *steady(0.100, 7, 3, 8, 5)]
    found = found_in(tmp_path, step_log(rows))
    assert found.left_out == {"untimed": 1, "gap": 2}, "50 ms idle; then the batch grew"
    assert sorted(set(np.round(found.samples.step_ms, 3))) == [5.0, 7.0]


def test_rows_beside_a_switch_are_no_cost(tmp_path: Path) -> None:
    rows = [(0.0, 3, 4, 0), *steady(0, 5, 3, 4, 8), *steady(0.04, 4, 1, 4, 8)]
    found = found_in(tmp_path, step_log(rows))
    assert found.left_out == {"untimed": 1, "beside_switch": 5}
    assert np.bincount(found.samples.mode).tolist() == [4, 7]
    assert found.samples.modes == (speculate(1), speculate(3))


def test_with_the_length_of_the_prompts_the_context_follows_from_what_was_generated(tmp_path: Path) -> None:
    rows = [(0.0, 1, 2, 2), *steady(0, 5, 1, 2, 3, accepted=2), *steady(0.5, 5, 1, 2, 3, accepted=1)]
    found = found_in(tmp_path, step_log(rows), Wanted(prompt_tokens=100))
    # Each step gave each request 2 tokens; the long gap began anew, with a token and a half a step.
    assert found.samples.context_sum.tolist() == [204, 208, 212, 203, 206]


def test_batches_are_padded_to_the_sizes_that_were_captured(tmp_path: Path) -> None:
    found = found_in(tmp_path, step_log([(0.0, 1, 9, 0), *steady(0, 5, 1, 9, 6), *steady(0.03, 5, 1, 3, 6)]),
                     Wanted(graph_sizes=(2, 4, 8)))  # fmt: skip
    assert set(found.samples.batch_size) == {9, 4}
    assert set(found.samples.requests) == {9, 3}


def test_every_row_of_a_real_log_is_counted() -> None:
    path = TRACES / "llama8b_fa3_per_request.csv.gz"
    found = read_samples(path, Wanted())
    with gzip.open(path) as file:
        assert found.rows == sum(1 for _ in file) - 1
    assert len(found.samples) + found.left_out.total() == found.rows


# -- the measured table ------------------------------------------------------------------------------


def test_the_measured_table_gives_its_medians_with_the_steps_behind_them(tmp_path: Path) -> None:
    text = resources.files("trimtab.data").joinpath("step_time_h200.csv").read_text()
    found = found_in(tmp_path, text, Wanted("8B", "fa3"))
    assert set(found.samples.modes) >= {PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, speculate(7)}
    assert 225 not in found.samples.batch_size
    assert found.left_out["other_model"] + found.left_out["queued"] + len(found.samples) == found.rows
    at = (found.samples.batch_size == 243) & (found.samples.mode == found.samples.modes.index(speculate(7)))
    assert found.samples.step_ms[at] == pytest.approx([58.356])
    assert found.samples.steps[at].tolist() == [14]
    assert found.samples.context_sum[at].tolist() == [243 * 64]


# -- step rows ---------------------------------------------------------------------------------------


ROWS = [
    {"batch_size": 3, "padded_batch_size": 4, "mode": "plain_warm", "step_ns": 5_000_000, "context_tokens_sum": 900,
     "context_tokens_max": 600, "flags": 1},
    {"batch_size": 3, "padded_batch_size": 4, "mode": "plain_warm", "step_ns": 5_500_000, "context_tokens_sum": 903,
     "context_tokens_max": 601, "flags": int(StepFlag.GRAPH | StepFlag.SWEEP)},
]  # fmt: skip


def as_csv(rows: list[dict[str, object]]) -> str:
    header = list(rows[0])
    return "\n".join([",".join(header), *(",".join(str(row[name]) for name in header) for row in rows), ""])


def as_json_lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("write", [as_csv, as_json_lines])
def test_step_rows_come_as_csv_or_json_lines(tmp_path: Path, write: object) -> None:
    found = found_in(tmp_path, write(ROWS))  # type: ignore[operator]
    samples = found.samples
    assert samples.modes == (PLAIN_WARM,)
    assert samples.step_ms.tolist() == [5.0, 5.5]
    assert samples.batch_size.tolist() == [4, 4]
    assert samples.requests.tolist() == [3, 3]
    assert samples.context_sum.tolist() == [900, 903]
    assert samples.context_max.tolist() == [600, 601]
    assert not found.left_out


def test_json_rows_may_leave_out_what_they_do_not_know(tmp_path: Path) -> None:
    lines = '{"batch_size": 5, "mode": {"kind": "speculate", "steps": 3}, "step_ms": 6.5, "new": 1}\n\n'
    found = found_in(tmp_path, lines, Wanted(graph_sizes=(8,)))
    assert found.samples.modes == (speculate(3),)
    assert found.samples.step_ms.tolist() == [6.5]
    assert found.samples.batch_size.tolist() == [8]
    assert np.isnan(found.samples.context_max).all()


NO_COSTS = {
    "empty": {"batch_size": 0},
    "untimed": {"step_ns": -1},
    "warm_up": {"flags": int(StepFlag.GRAPH | StepFlag.WARM_UP)},
    "gap": {"flags": int(StepFlag.GRAPH | StepFlag.GAP)},
    "beside_switch": {"flags": int(StepFlag.GRAPH | StepFlag.SWITCHED)},
    "eager": {"flags": 0},
    "retraction": {"retracted_requests": 1},
    "grammar": {"grammar_requests": 2},
}


@pytest.mark.parametrize(("reason", "changes"), NO_COSTS.items(), ids=NO_COSTS)
def test_rows_that_are_no_cost_are_left_out_and_counted(reason: str, changes: dict[str, int]) -> None:
    row = {"batch_size": 4, "mode": 0, "step_ns": 5e6, "flags": 1, "retracted_requests": 0, "grammar_requests": 0}
    rows = [row, {**row, **changes}, *[row] * 4]
    columns = {name: np.array([r[name] for r in rows], dtype=np.float64) for name in row}
    samples, left_out = cost_samples([PLAIN_WARM], columns)
    assert set(left_out) == {reason}
    assert len(samples) == len(rows) - left_out.total()


# -- what is refused ---------------------------------------------------------------------------------


BAD_FILES = {
    "nothing": ("", "is none of: a measured table"),
    "foreign": ("a,b\n1,2\n", "is none of: a measured table"),
    "backwards": (step_log([(0, 1, 1, 0), (1, 1, 1, 0), (0.5, 1, 1, 0)]), ":4: time goes backwards"),
    "no number": (f"{LOG_HEADER}\n0,1,1,0\n1,1,one,0\n", ":3: batch_size is no number: 'one'"),
    "half a line": (f"{LOG_HEADER}\n0,1,1,0\n1,1\n", ":3: has 2 fields, not 4"),
    "unknown mode": ("batch_size,mode,step_ns\n1,fast,5000000\n", "unknown mode 'fast'; there are: plain_warm"),
    "no time": ("batch_size,mode\n1,plain_warm\n", "has neither step_ns nor step_ms"),
    "half an object": (
        '{"batch_size": 1, "mode": "plain_warm", "step_ms": 1}\n{"batch_size": 1, "mo',
        ":2: is no step row",
    ),
    "no column": ("step_ms_p50,mode\n1,2\n", ":1: has no column 'model'"),
}


@pytest.mark.parametrize(("text", "problem"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_cannot_be_used_is_one_error_with_the_place(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(DataError) as caught:
        found_in(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "trace.csv"))
    assert problem in str(caught.value)


def test_a_missing_a_truncated_and_a_binary_file_are_named(tmp_path: Path) -> None:
    whole = (TRACES / "llama8b_fa3_ctx64.csv.gz").read_bytes()
    contents = {
        "truncated.csv.gz": whole[:9000],
        "corrupt.csv.gz": whole[:5000] + b"x" * 4000,
        "binary": b"\xff\xfe" * 50,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for name in [*contents, "missing"]:
        with pytest.raises(DataError, match="cannot be read") as caught:
            read_samples(tmp_path / name, Wanted())
        assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (Wanted(), "is of several: 32B, 8B; choose one with --model"),
        (Wanted("8B"), "is of several: fa3, triton; choose one with --attention-backend"),
        (Wanted("9B", "fa3"), "has no rows of model '9B'; there are: 32B, 8B"),
    ],
)
def test_a_table_of_several_models_asks_for_one(tmp_path: Path, wanted: Wanted, problem: str) -> None:
    text = resources.files("trimtab.data").joinpath("step_time_h200.csv").read_text()
    with pytest.raises(DataError, match=problem):
        found_in(tmp_path, text, wanted)


def test_progress_is_told_in_bytes_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text(step_log([(i / 100, 1, 4, 0) for i in range(50_000)]))
    told: list[int] = []
    found = read_samples(path, Wanted(), told.append)
    assert found.rows == 50_000
    assert told == sorted(told)
    assert 0 < told[-1] <= path.stat().st_size
