"""How well does a profile say what was measured? By cell, and by halves of the rows that it was not learnt from."""

from __future__ import annotations

import numpy as np

from trimtab.errors import DataError
from trimtab.policies.profile import CostProfile
from trimtab.profile_file import CellRecord
from trimtab.replay.arrays import Floats, Mask, weighted_median
from trimtab.replay.profiles.fit import MIN_CELL_STEPS, Cell, cells_of, fit_profile, more_ms
from trimtab.replay.profiles.samples import StepSamples

# Rows that a half must have of a cell to judge a profile of the other half.
JUDGING_ROWS = 20
# Rows that stay together when a cell is halved: times come in short patterns.
BLOCK_ROWS = 10


def judge(profile: CostProfile, samples: StepSamples) -> list[CellRecord]:
    """How well the profile says the step times of every cell that was measured often enough."""
    records = []
    for cell in cells_of(samples):
        steps = samples.steps[cell.rows]
        if steps.sum() >= MIN_CELL_STEPS:
            measured_ms = samples.step_ms[cell.rows]
            # Row by row, so that a cell with short and long contexts is judged at each of them.
            error = weighted_median(predictions_ms(profile, samples, cell) / measured_ms, steps) - 1
            median_ms = weighted_median(measured_ms, steps)
            mode = str(samples.modes[cell.mode])
            records.append(CellRecord(cell.batch_size, mode, int(steps.sum()), round(median_ms, 4), round(error, 4)))
    return records


def held_out_errors(samples: StepSamples, moe: bool = False) -> dict[tuple[int, str], float]:
    """Errors by cell of a profile of one half of the rows on the other half, and the other way round; the worse one.

    Cells that have fewer than `JUDGING_ROWS` in a half are not judged by it.
    """
    half = first_half(samples)
    worst: dict[tuple[int, str], float] = {}
    for learnt in (half, ~half):
        try:
            profile = fit_profile(samples.where(learnt), moe)
        except DataError:
            return {}
        others = samples.where(~learnt)
        rows = {(cell.batch_size, str(others.modes[cell.mode])): len(cell.rows) for cell in cells_of(others)}
        for record in judge(profile, others):
            key = record.batch_size, record.mode
            if rows[key] >= JUDGING_ROWS and abs(record.error) >= abs(worst.get(key, 0.0)):
                worst[key] = record.error
    return worst


def first_half(samples: StepSamples) -> Mask:
    """Every other block of the rows of every cell."""
    half = np.zeros(len(samples), dtype=bool)
    for cell in cells_of(samples):
        half[cell.rows[np.arange(len(cell.rows)) // BLOCK_ROWS % 2 == 0]] = True
    return half


def predictions_ms(profile: CostProfile, samples: StepSamples, cell: Cell) -> Floats:
    """What the profile says of each row of a cell."""
    mode, rows = samples.modes[cell.mode], cell.rows
    base, context = profile.step_ms(mode, cell.batch_size), profile.context
    if context is None:
        return np.full(len(rows), base)
    return np.maximum(base / 10, base + more_ms(samples, rows, context))
