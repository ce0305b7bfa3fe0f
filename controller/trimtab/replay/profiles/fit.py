"""Learns a cost profile from step times: medians by cell, set right for context, and never falling where it must not.

A cell is a padded batch size in a mode. In this order:

1. What a token of context costs, from how times vary inside the cells (Huber regression: robust against outliers).
2. The median of each cell, with every time first brought to the same context.
3. Cells that were never measured: the nearest mode of that size, times the ratio of the two modes at other sizes.
4. Isotonic regression on the logarithm, by batch size and, for dense models, by steps, in turn until nothing changes.
   A wider verify of a mixture of experts need not be slower, so there the steps stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.isotonic import isotonic_regression
from sklearn.linear_model import HuberRegressor

from trimtab.domain import PLAIN_WARM, Mode
from trimtab.errors import DataError
from trimtab.policies.profile import ContextCost, CostProfile, ProfilePoint, profile_of
from trimtab.replay.arrays import Floats, Ints, rows_by_code, weighted_median
from trimtab.replay.profiles.samples import StepSamples

MIN_CELL_STEPS = 5
# Rows of a cell that tell what context costs.
CONTEXT_ROWS = 500
# How much a cell counts that was never measured. The others count the same: what a median of a few steps is off by is
# mostly not chance.
GUESS_WEIGHT = 0.01
ROUNDS = 200
# Change of log time that no longer matters.
CONVERGED = 1e-8


@dataclass(frozen=True, slots=True)
class Cell:
    """One batch size in one mode, and its rows."""

    batch_size: int
    mode: int
    rows: Ints


def fit_profile(samples: StepSamples, moe: bool = False) -> CostProfile:
    """The profile of these step times.

    Args:
        samples: Rows that are a cost.
        moe: Whether the model is a mixture of experts: more steps may then be faster.

    Raises:
        DataError: There is too little to learn from.
    """
    cells = [cell for cell in cells_of(samples) if samples.steps[cell.rows].sum() >= MIN_CELL_STEPS]
    _require_enough(samples, cells)
    context = _context_cost(samples, cells)
    sizes = sorted({cell.batch_size for cell in cells})
    numbers = sorted({cell.mode for cell in cells})
    log_ms, weight = np.full((len(sizes), len(numbers)), np.nan), np.full((len(sizes), len(numbers)), GUESS_WEIGHT)
    for cell in cells:
        at = sizes.index(cell.batch_size), numbers.index(cell.mode)
        log_ms[at], weight[at] = np.log(_median_ms(samples, cell, context)), 1.0
    modes = [samples.modes[number] for number in numbers]
    _fill(log_ms, np.log(sizes), [mode.steps for mode in modes])
    ms = np.exp(_iron(log_ms, weight, _ladder(modes) if not moe else []))
    points = [
        ProfilePoint(size, dict(zip(modes, row.tolist(), strict=True))) for size, row in zip(sizes, ms, strict=True)
    ]
    return profile_of(points, context)


def cells_of(samples: StepSamples) -> Iterator[Cell]:
    """Every batch size and mode that occurs, in this order, with the numbers of its rows in theirs."""
    for rows in rows_by_code(samples.batch_size * len(samples.modes) + samples.mode):
        yield Cell(int(samples.batch_size[rows[0]]), int(samples.mode[rows[0]]), rows)


def _require_enough(samples: StepSamples, cells: Sequence[Cell]) -> None:
    if len({cell.mode for cell in cells}) >= 2:
        return
    has = f"{len(samples)} usable rows, {len(cells)} batch sizes and modes of them with {MIN_CELL_STEPS} steps or more"
    raise DataError(
        "profile", f"there is too little to learn from: {has}; it takes at least two modes, {MIN_CELL_STEPS} steps each"
    )


def more_ms(samples: StepSamples, rows: Ints, context: ContextCost) -> Floats:
    """What the context of each row costs more than at the reference; 0 where it is unknown."""
    requests, total = samples.requests[rows], samples.context_sum[rows]
    longest = np.where(np.isnan(samples.context_max[rows]), total / requests, samples.context_max[rows])
    more: Floats = context.ms_per_token * (total - requests * context.reference_tokens)
    more = more + context.ms_per_longest_token * (longest - context.reference_tokens)
    return np.nan_to_num(more)


def _median_ms(samples: StepSamples, cell: Cell, context: ContextCost | None) -> float:
    """The cell's median at the reference context."""
    ms, steps = samples.step_ms[cell.rows], samples.steps[cell.rows]
    as_measured = weighted_median(ms, steps)
    if context is None:
        return as_measured
    return max(as_measured / 10, weighted_median(ms - more_ms(samples, cell.rows, context), steps))


def _context_cost(samples: StepSamples, cells: Sequence[Cell]) -> ContextCost | None:
    """What context costs, or None where the rows do not say it."""
    known = ~np.isnan(samples.context_sum)
    if not known.any() or known.mean() < 0.5:
        return None
    reference = weighted_median(samples.context_sum[known] / samples.requests[known], samples.steps[known])
    with_longest = bool((~np.isnan(samples.context_max[known])).all())
    design, target = _context_rows(samples, cells, with_longest)
    slopes = _slopes_above_zero(design, target)
    return ContextCost(reference, *slopes.tolist()) if slopes.any() else None


def _context_rows(samples: StepSamples, cells: Sequence[Cell], with_longest: bool) -> tuple[Floats, Floats]:
    """Tokens and times of each cell around its medians, both as shares of its median time."""
    columns = [samples.context_sum, samples.context_max] if with_longest else [samples.context_sum]
    designs, targets = [np.zeros((0, len(columns)))], [np.zeros(0)]
    for cell in cells:
        rows = cell.rows[~np.isnan(samples.context_sum[cell.rows])]
        rows = rows[:: max(1, len(rows) // CONTEXT_ROWS)]
        if len(rows) < 2:
            continue
        ms, tokens = samples.step_ms[rows], np.column_stack([column[rows] for column in columns])
        level = float(np.median(ms))
        designs.append((tokens - np.median(tokens, axis=0)) / level)
        targets.append((ms - level) / level)
    return np.concatenate(designs), np.concatenate(targets)


def _slopes_above_zero(design: Floats, target: Floats) -> Floats:
    """Robust slopes, shape `(n_columns,)`; columns that would make a step faster are left out, and count 0."""
    slopes = np.zeros(design.shape[1])
    used = [j for j in range(design.shape[1]) if design[:, j].any()]
    while used:
        scale = design[:, used].std(axis=0)
        found = HuberRegressor(fit_intercept=False, max_iter=1000).fit(design[:, used] / scale, target).coef_ / scale
        if (found >= 0).all():
            slopes[used] = found
            break
        used.remove(used[int(found.argmin())])
    return slopes


def _ladder(modes: Sequence[Mode]) -> list[int]:
    """Columns of the modes that go on from each other by steps."""
    found = [j for j, mode in enumerate(modes) if mode.steps or mode == PLAIN_WARM]
    return sorted(found, key=lambda j: modes[j].steps)


def _fill(log_ms: Floats, log_sizes: Floats, steps: Sequence[int]) -> None:
    """Guess every cell that was not measured, in place; shape `(n_sizes, n_modes)`, NaN where nothing is known."""
    measured = ~np.isnan(log_ms)
    guesses = log_ms.copy()
    for i, j in np.argwhere(~measured).tolist():
        known = [m for m in np.flatnonzero(measured[i]).tolist() if (measured[:, m] & measured[:, j]).any()]
        if known:
            near = min(known, key=lambda m: abs(steps[m] - steps[j]))
            both = measured[:, near] & measured[:, j]
            ratio = np.interp(log_sizes[i], log_sizes[both], (log_ms[:, j] - log_ms[:, near])[both])
            guesses[i, j] = log_ms[i, near] + ratio
        else:
            own = measured[:, j]
            guesses[i, j] = np.interp(log_sizes[i], log_sizes[own], log_ms[own, j])
    log_ms[:] = guesses


def _iron(log_ms: Floats, weight: Floats, ladder: Sequence[int]) -> Floats:
    """The nearby table that falls along no column, nor along the ladder of any row."""
    table = log_ms.copy()
    for _ in range(ROUNDS):
        before = table.copy()
        for j in range(table.shape[1]):
            table[:, j] = isotonic_regression(table[:, j], sample_weight=weight[:, j])
        for i in range(table.shape[0] if len(ladder) > 1 else 0):
            table[i, ladder] = isotonic_regression(table[i, ladder], sample_weight=weight[i, ladder])
        if np.abs(table - before).max() < CONVERGED:
            break
    return table
