"""Case files: what they mean, and what is said about those that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.small_cases import load_with_runs
from trimtab.domain import PLAIN_NATIVE, PLAIN_WARM, speculate
from trimtab.errors import DataError
from trimtab.replay.simulation.case_file import read_case
from trimtab.replay.simulation.cases import CaseEnvironment, CostRow

CASES = Path(__file__).parents[1] / "data" / "cases"
META = {"kind": "meta", "id": "tiny", "trace": "env"}
COST = {"kind": "cost", "k": [0, 1, 3], "bs": [2, 4], "ms": [[5.0, 6.0, 7.0], [8.0, 9.0, 10.0]], "switch_ms": 0.5}
CELLS = {
    "kind": "cost", "by_ctx": True, "k": [0, 3], "switch_ms": 0.5,
    "cells": [{"bs": 1, "ctx_le": 1000, "ms": [5.0, 6.0]}, {"bs": 1, "ctx_le": 9000, "ms": [7.0, 8.0]}],
}  # fmt: skip
ARMS = {"kind": "arms", "k": [0, 3], "start": 3}
STEP = {"kind": "step", "i": 0, "bs": 2, "run": [0, 4]}


def case_file(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "tiny.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def read(tmp_path: Path, *lines: Any) -> CaseEnvironment:
    return read_case(case_file(tmp_path, *lines))


def test_a_case_is_read_as_it_is_written(tmp_path: Path) -> None:
    case = read(
        tmp_path, META, COST, ARMS, STEP, {"kind": "step", "bs": 1, "run_hist": [0, 1], "phase": 2, "prefill": 1}
    )
    assert (case.name, case.modes, case.start) == ("tiny", (PLAIN_WARM, speculate(3)), speculate(3))
    assert (case.graph_batch_sizes, case.switch_ms) == ((2, 4), 0.5)
    first, second = case.loads
    assert (first.batch_size, first.runs, first.phase, first.context_tokens) == (2, (0, 4), "", None)
    assert (second.batch_size, second.runs, second.phase, second.prefill) == (1, (1,), "2", 1)
    assert case.load(1, 123.0) is second
    assert case.load(2, 0.0) is None


@pytest.mark.parametrize(("size", "ms"), [(1, 7.0), (2, 7.0), (3, 10.0), (4, 10.0), (9, 10.0)])
def test_the_first_listed_size_that_holds_the_batch_counts_and_the_last_row_beyond(
    tmp_path: Path, size: int, ms: float
) -> None:
    case = read(tmp_path, META, COST, ARMS, {"kind": "step", "bs": size, "run": [0] * size})
    assert case.step_ms(speculate(3), case.loads[0]) == ms
    assert max(case.graph_batch_sizes) >= size


@pytest.mark.parametrize(("context", "ms"), [(None, 6.0), (300, 6.0), (1000, 6.0), (1001, 8.0), (9000, 8.0)])
def test_with_cells_the_first_that_holds_the_context_counts(tmp_path: Path, context: int | None, ms: float) -> None:
    case = read(tmp_path, META, CELLS, ARMS, {"kind": "step", "bs": 1, "run": [8], "ctx": context})
    assert case.step_ms(speculate(3), case.loads[0]) == ms


def test_every_kind_of_plain_costs_what_zero_steps_cost(tmp_path: Path) -> None:
    case = read(tmp_path, META, COST, ARMS, STEP)
    assert case.step_ms(PLAIN_WARM, case.loads[0]) == case.step_ms(PLAIN_NATIVE, case.loads[0]) == 5.0


def test_costs_and_tokens_of_every_step_in_every_mode(tmp_path: Path) -> None:
    case = read(tmp_path, META, COST, ARMS, STEP, {"kind": "step", "bs": 3, "run": [1, 2, 8]})
    assert case.ms_by_mode().tolist() == [[5.0, 7.0], [8.0, 10.0]]
    assert case.tokens_by_mode().tolist() == [[2, 5], [3, 9]]


def test_blank_lines_and_lines_of_other_kinds_are_left_alone(tmp_path: Path) -> None:
    case = read(tmp_path, META, "", COST, ARMS, {"kind": "expect", "m": "anything", "v": 1}, STEP, {"kind": "note"})
    assert len(case.loads) == 1


@pytest.mark.parametrize(
    ("lines", "place", "problem"),
    [
        ([COST, ARMS, STEP], ":1", 'the first line must be of kind "meta"'),
        ([], ":1", 'the first line must be of kind "meta"'),
        ([{"kind": "meta", "trace": "log"}], ":1", 'holds a trace of kind "log"; only "env" can be simulated'),
        ([META, ARMS, STEP], "", 'has no line of kind "cost"'),
        ([META, COST, STEP], "", 'has no line of kind "arms"'),
        ([META, COST, ARMS], "", 'has no line of kind "step"'),
        ([META, COST, ARMS, COST, STEP], ":4", 'is a second line of kind "cost"'),
        ([META, COST, ARMS, "{not json"], ":4", "is not a line of a case: JSON is malformed"),
        ([META, COST, ARMS, '"text"'], ":4", "is not a line of a case: Expected `object`"),
        ([META, COST, ARMS, {"bs": 1}], ":4", "missing required field `kind`"),
        ([META, COST, ARMS, {"kind": "step", "run": [1]}], ":4", "missing required field `bs`"),
        ([META, COST, ARMS, {**STEP, "bs": "two"}], ":4", "Expected `int`, got `str`"),
        ([META, COST, ARMS, {**STEP, "bs": 0, "run": []}], ":4", "bs must be at least 1: 0"),
        ([META, COST, ARMS, {**STEP, "bs": 3}], ":4", "has bs 3 but runs of 2 requests"),
        ([META, COST, ARMS, {**STEP, "run": [9, 1]}], ":4", "run must hold numbers from 0 to 8"),
        ([META, COST, ARMS, {**STEP, "run": [-1, 1]}], ":4", "run must hold numbers from 0 to 8"),
        ([META, COST, ARMS, {**STEP, "run": None}], ":4", "needs run or run_hist"),
        ([META, COST, ARMS, {**STEP, "run_hist": [1] * 10}], ":4", "run_hist has 10 entries, at most 9"),
        ([META, COST, ARMS, {**STEP, "run_hist": [3, -1]}], ":4", "run_hist has a negative count"),
        ([META, COST, ARMS, {**STEP, "ctx": -5}], ":4", "ctx must not be negative: -5"),
        ([META, COST, {**ARMS, "k": [0, 5]}, STEP], ":3", "k 5 has no column in the cost line, which has [0, 1, 3]"),
        ([META, COST, {**ARMS, "start": 7}, STEP], ":3", "k 7 has no column in the cost line"),
        ([META, COST, {**ARMS, "k": []}, STEP], ":3", "k must list at least one step count"),
        ([META, {**COST, "k": [0, 3, 3]}, ARMS, STEP], ":2", "k must list distinct step counts from 0 up: [0, 3, 3]"),
        ([META, {**COST, "bs": [4, 2]}, ARMS, STEP], ":2", "bs must list ascending batch sizes: [4, 2]"),
        ([META, {**COST, "bs": [2]}, ARMS, STEP], ":2", "has 1 batch sizes and 2 rows of ms"),
        ([META, {**COST, "ms": [[1, 2, 3], [4, 5]]}, ARMS, STEP], ":2", "bs 4 has 2 times for 3 step counts"),
        ([META, {**COST, "ms": [[1, 2, 3], [4, 0, 6]]}, ARMS, STEP], ":2", "bs 4 has a time that is not above 0"),
        ([META, {**COST, "switch_ms": -1}, ARMS, STEP], ":2", "switch_ms must not be negative: -1.0"),
        ([META, {**CELLS, "cells": []}, ARMS, STEP], ":2", "by_ctx needs at least one cell"),
        ([META, CELLS, ARMS, STEP], ":4", "there is no cost cell for bs 2 and ctx 0"),
        ([META, CELLS, ARMS, {**STEP, "bs": 1, "run": [0], "ctx": 9001}], ":4", "no cost cell for bs 1 and ctx 9001"),
    ],
)  # fmt: skip
def test_a_bad_case_is_one_error_that_names_the_line(
    tmp_path: Path, lines: list[Any], place: str, problem: str
) -> None:
    path = case_file(tmp_path, *lines)
    with pytest.raises(DataError) as caught:
        read_case(path)
    assert caught.value.place == f"{path}{place}"
    assert problem in caught.value.problem
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "cannot be read: No such file"), (b"\xff\xfe\x00", "is not a line of a case")]
)
def test_a_file_that_is_no_case_at_all_is_one_error_too(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "some.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=problem):
        read_case(path)


def test_a_hand_made_case_without_a_cost_for_a_step_is_refused() -> None:
    row = CostRow(1, {0: 5.0}, ctx_le=100)
    with pytest.raises(DataError, match="there is no cost for batch size 1, context 200"):
        CaseEnvironment("mine", (PLAIN_WARM,), PLAIN_WARM, [row], [load_with_runs([0], context_tokens=200)])


@pytest.mark.parametrize(
    ("name", "steps", "largest", "phases", "arms"),
    [
        ("c01_flap_at_pivot", 1500, 1, 1, [3, 5]),
        ("c04_recover_from_plain", 1200, 8, 4, [0, 1, 3, 7]),
        ("m01_h200_8b_mixed_load", 6000, 243, 12, [0, 1, 2, 3, 5, 7]),
        ("m02_h200_32b_mixed_load", 4000, 61, 7, [0, 1, 2, 3, 5, 7]),
        ("m03_h200_8b_context", 4000, 16, 9, [0, 1, 2, 3, 5, 7]),
    ],
)
def test_the_cases_of_this_project_can_be_read(
    name: str, steps: int, largest: int, phases: int, arms: list[int]
) -> None:
    case = read_case(CASES / f"{name}.jsonl")
    assert (case.name, len(case.loads)) == (name, steps)
    assert max(load.batch_size for load in case.loads) == largest
    assert len({load.phase for load in case.loads}) == phases
    assert [mode.steps for mode in case.modes] == arms
    assert case.start == speculate(3)
