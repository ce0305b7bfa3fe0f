"""Case files of kind `env`: JSON lines that describe a load, its luck and what steps cost.

The first line is `meta` with `"trace": "env"`; then come one `cost` line, one `arms` line and the `step` lines:

* `cost`: `k`, the step counts that have a column; `bs` and `ms`, a row for each batch size (the first listed size
  that holds the step's batch counts, the last row beyond that), or `by_ctx` and `cells` (`bs` exact, the first cell
  with `ctx_le` at or above the step's `ctx`); `switch_ms`, charged for every step whose k differs from the last.
* `arms`: `k`, what a policy may choose; `start`, what is in force before the first step.
* `step`: `bs`; `run` (for each request how many drafts in a row would be accepted) or `run_hist`; optionally
  `ctx`, `prefill` and `phase`.

Lines of other kinds, such as `expect`, are left alone. All that is wrong with a file is one `DataError` that names
the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from trimtab.domain import modes_of, speculate
from trimtab.errors import DataError
from trimtab.replay.environment import MAX_DEPTH, StepLoad, load_of
from trimtab.replay.simulation.cases import CaseEnvironment, CostRow, find_cost_row


class _Kind(msgspec.Struct):
    kind: str


class _Meta(msgspec.Struct):
    trace: str
    id: str = ""


class _Cell(msgspec.Struct):
    bs: int
    ctx_le: int
    ms: list[float]


class _Cost(msgspec.Struct):
    k: list[int]
    bs: list[int] = []
    ms: list[list[float]] = []
    by_ctx: bool = False
    cells: list[_Cell] = []
    switch_ms: float = 0.0


class _Arms(msgspec.Struct):
    k: list[int]
    start: int


class _Step(msgspec.Struct):
    bs: int
    run: list[int] | None = None
    run_hist: list[int] | None = None
    ctx: int | None = None
    prefill: int = 0
    phase: str | int | float | None = None


_Content = TypeVar("_Content", _Meta, _Cost, _Arms)


@dataclass(frozen=True, slots=True)
class _Line:
    """What a line says, and where it stands."""

    place: str
    content: Any

    def need(self, condition: bool, problem: str) -> None:
        if not condition:
            raise DataError(self.place, problem)


def read_case(path: Path) -> CaseEnvironment:
    """The world that a case file describes.

    Raises:
        DataError: The file cannot be read or used; `place` is the file and line.
    """
    lines = list(_read_lines(path))
    if not lines or not isinstance(lines[0].content, _Meta):
        raise DataError(f"{path}:1", 'the first line must be of kind "meta"')
    trace = lines[0].content.trace
    lines[0].need(trace == "env", f'holds a trace of kind "{trace}"; only "env" can be simulated')
    cost = _only(path, lines, _Cost)
    arms = _only(path, lines, _Arms)
    rows = _cost_rows(cost)
    _check_arms(arms, cost.content.k)
    steps = [line for line in lines if isinstance(line.content, _Step)]
    if not steps:
        raise DataError(str(path), 'has no line of kind "step"')
    loads = [_load(line) for line in steps]
    for line, load in zip(steps, loads, strict=True):
        found = find_cost_row(rows, load.batch_size, load.context_tokens)
        line.need(
            found is not None, f"there is no cost cell for bs {load.batch_size} and ctx {load.context_tokens or 0}"
        )
    return CaseEnvironment(
        lines[0].content.id or path.stem,
        modes_of(arms.content.k),
        speculate(arms.content.start),
        rows,
        loads,
        cost.content.switch_ms,
    )


def _read_lines(path: Path) -> Iterator[_Line]:
    kind_of = msgspec.json.Decoder(_Kind)
    kinds: dict[str, type[Any]] = {"meta": _Meta, "cost": _Cost, "arms": _Arms, "step": _Step}
    decoders = {kind: msgspec.json.Decoder(content) for kind, content in kinds.items()}
    try:
        texts = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror or error}") from error
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        place = f"{path}:{number}"
        try:
            decoder = decoders.get(kind_of.decode(text).kind)
            if decoder is not None:
                yield _Line(place, decoder.decode(text))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DataError(place, f"is not a line of a case: {error}") from error


def _only(path: Path, lines: Sequence[_Line], kind: type[_Content]) -> _Line:
    name = kind.__name__.strip("_").lower()
    found = [line for line in lines if isinstance(line.content, kind)]
    if not found:
        raise DataError(str(path), f'has no line of kind "{name}"')
    if len(found) > 1:
        raise DataError(found[1].place, f'is a second line of kind "{name}"')
    return found[0]


def _cost_rows(line: _Line) -> list[CostRow]:
    cost: _Cost = line.content
    distinct = len(set(cost.k)) == len(cost.k)
    line.need(bool(cost.k) and distinct and min(cost.k) >= 0, f"k must list distinct step counts from 0 up: {cost.k}")
    line.need(isfinite(cost.switch_ms) and cost.switch_ms >= 0, f"switch_ms must not be negative: {cost.switch_ms}")
    rows: list[tuple[int, list[float], int | None]]
    if cost.by_ctx:
        line.need(bool(cost.cells), "by_ctx needs at least one cell")
        rows = [(cell.bs, cell.ms, cell.ctx_le) for cell in cost.cells]
    else:
        ascends = all(a < b for a, b in pairwise(cost.bs))
        line.need(bool(cost.bs) and ascends, f"bs must list ascending batch sizes: {cost.bs}")
        line.need(len(cost.ms) == len(cost.bs), f"has {len(cost.bs)} batch sizes and {len(cost.ms)} rows of ms")
        rows = [(size, ms, None) for size, ms in zip(cost.bs, cost.ms, strict=True)]
    for size, ms, _ in rows:
        line.need(size > 0, f"bs must be at least 1: {size}")
        line.need(len(ms) == len(cost.k), f"bs {size} has {len(ms)} times for {len(cost.k)} step counts")
        line.need(all(isfinite(value) and value > 0 for value in ms), f"bs {size} has a time that is not above 0")
    return [CostRow(size, dict(zip(cost.k, ms, strict=True)), ctx_le) for size, ms, ctx_le in rows]


def _check_arms(line: _Line, costed: Sequence[int]) -> None:
    arms: _Arms = line.content
    line.need(bool(arms.k), "k must list at least one step count")
    for steps in (*arms.k, arms.start):
        line.need(steps in costed, f"k {steps} has no column in the cost line, which has {costed}")


def _load(line: _Line) -> StepLoad:
    step: _Step = line.content
    line.need(step.bs > 0, f"bs must be at least 1: {step.bs}")
    line.need(step.ctx is None or step.ctx >= 0, f"ctx must not be negative: {step.ctx}")
    if step.run_hist is not None:
        hist = step.run_hist
        line.need(len(hist) <= MAX_DEPTH + 1, f"run_hist has {len(hist)} entries, at most {MAX_DEPTH + 1}")
        line.need(min(hist, default=0) >= 0, "run_hist has a negative count")
    else:
        runs = step.run
        line.need(runs is not None, "needs run or run_hist")
        line.need(all(0 <= run <= MAX_DEPTH for run in runs or ()), f"run must hold numbers from 0 to {MAX_DEPTH}")
        hist = [0] * (MAX_DEPTH + 1)
        for run in runs or ():
            hist[run] += 1
    line.need(sum(hist) == step.bs, f"has bs {step.bs} but runs of {sum(hist)} requests")
    return load_of(hist, step.ctx, step.prefill, "" if step.phase is None else str(step.phase))
