"""What a decode step cost on the measured GPU: the table as measured, with its gaps filled and its noise ironed out."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from statistics import median

import numpy as np
import numpy.typing as npt

from trimtab.domain import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, Mode, speculate
from trimtab.errors import DataError

TABLE = "step_time_h200.csv"
SHORT_PROMPT_TOKENS = 64
# Taken while requests queued: the scheduler's own work is in these step times.
QUEUED_BATCH_SIZE = 225
PLAIN_MODES = {"warm_plain": PLAIN_WARM, "cold_plain": PLAIN_COLD, "engine_without_speculation": PLAIN_NATIVE}

Floats = npt.NDArray[np.float64]
Cells = dict[tuple[int, Mode, int], float]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step times of one model and attention backend, without holes.

    Attributes:
        batch_sizes: Measured sizes, ascending; shape `(n_sizes,)`.
        ms: For each measured mode its step time at each size; never falls with batch size or steps.
        context_ms_per_token: Step time that one more token of context of one request adds.
    """

    batch_sizes: tuple[int, ...]
    ms: dict[Mode, tuple[float, ...]]
    context_ms_per_token: float


def read_step_times(model: str, attention_backend: str) -> StepTimes:
    """The measured step times of this model and backend.

    Raises:
        DataError: The table has no rows for them.
    """
    text = resources.files("trimtab.data").joinpath(TABLE).read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    mine = [row for row in rows if (row["model"], row["attention_backend"]) == (model, attention_backend)]
    if not mine:
        known = sorted({f"{row['model']} {row['attention_backend']}" for row in rows})
        raise DataError(TABLE, f"nothing was measured for {model} {attention_backend}; there is: {', '.join(known)}")
    cells = _median_over_runs(mine)
    short: dict[Mode, dict[int, float]] = defaultdict(dict)
    for (prompt, mode, size), ms in cells.items():
        if prompt == SHORT_PROMPT_TOKENS and size != QUEUED_BATCH_SIZE:
            short[mode][size] = ms
    sizes = tuple(sorted(short[PLAIN_WARM]))
    return StepTimes(sizes, _complete(short, sizes), _context_slope(cells))


def _median_over_runs(rows: Iterable[dict[str, str]]) -> Cells:
    found: dict[tuple[int, Mode, int], list[float]] = defaultdict(list)
    for row in rows:
        mode = PLAIN_MODES.get(row["mode"]) or speculate(int(row["num_steps"]))
        found[int(row["prompt_tokens"]), mode, int(row["batch_size"])].append(float(row["step_ms_p50"]))
    return {cell: median(values) for cell, values in found.items()}


def _context_slope(cells: Cells) -> float:
    """Least squares through the origin of what long prompts add, over tokens of context in the batch."""
    pairs = [
        (size * (prompt - SHORT_PROMPT_TOKENS), ms - cells[SHORT_PROMPT_TOKENS, mode, size])
        for (prompt, mode, size), ms in cells.items()
        if prompt > SHORT_PROMPT_TOKENS and (SHORT_PROMPT_TOKENS, mode, size) in cells
    ]
    weight = sum(tokens * tokens for tokens, _ in pairs)
    return max(0.0, sum(tokens * ms for tokens, ms in pairs) / weight) if weight else 0.0


def _complete(measured: dict[Mode, dict[int, float]], sizes: Sequence[int]) -> dict[Mode, tuple[float, ...]]:
    """Fill the holes of the speculative modes together, and of each further plain mode beside warm plain."""
    ladder = sorted((m for m in measured if m is PLAIN_WARM or m.steps), key=lambda m: m.steps)
    steps = np.array([mode.steps for mode in ladder], dtype=float)
    table = _fill(np.array([[measured[m].get(size, np.nan) for m in ladder] for size in sizes]), sizes, steps)
    table = iron(table)
    found = {mode: tuple(table[:, j].tolist()) for j, mode in enumerate(ladder)}
    for mode in (PLAIN_COLD, PLAIN_NATIVE):
        if mode in measured:
            column = np.array([measured[mode].get(size, np.nan) for size in sizes])
            beside = _fill(np.column_stack([table[:, 0], column]), sizes, None)[:, 1]
            found[mode] = tuple(np.minimum(isotonic(beside), table[:, 0]).tolist())
    return found


def _fill(table: Floats, sizes: Sequence[int], steps: Floats | None) -> Floats:
    """Replace what was not measured: between neighbours in steps, then in batch size, then as the mode before grows.

    Args:
        table: Shape `(n_sizes, n_modes)`, NaN where nothing was measured; the first column is complete.
        sizes: Batch size of each row.
        steps: Steps of each column, ascending; None if the columns are not ordered by steps.
    """
    if steps is not None:
        for row in table:
            _interpolate(steps, row)
    for j in range(1, table.shape[1]):
        column = table[:, j]
        _interpolate(np.asarray(sizes, dtype=float), column)
        known = np.flatnonzero(~np.isnan(column))
        for i in np.flatnonzero(np.isnan(column)):
            nearest = known[0] if i < known[0] else known[-1]
            column[i] = column[nearest] * table[i, j - 1] / table[nearest, j - 1]
    return table


def _interpolate(x: Floats, y: Floats) -> None:
    """Fill in place what lies between two known values of `y`; what lies outside stays NaN."""
    known = ~np.isnan(y)
    holes = ~known
    y[holes] = np.interp(x[holes], x[known], y[known], left=np.nan, right=np.nan)


def iron(table: Floats) -> Floats:
    """The nearby table that falls along neither axis: isotonic fits of rows and columns, in turn."""
    for _ in range(100):
        before = table
        table = np.apply_along_axis(isotonic, 0, np.apply_along_axis(isotonic, 1, table))
        if np.allclose(before, table, rtol=1e-9):
            break
    return table


def isotonic(values: Floats) -> Floats:
    """Least-squares fit that never falls: neighbours that fall are pooled to their mean (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            other, n = pools.pop()
            mean, count = (other * n + mean * count) / (n + count), count + n
        pools.append((mean, count))
    return np.repeat([mean for mean, _ in pools], [count for _, count in pools])
