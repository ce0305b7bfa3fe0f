"""Columns of numbers as numpy arrays: their types, rows grouped by a code, and medians with weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def rows_by_code(code: Ints) -> list[Ints]:
    """The numbers of the rows of each code, codes and rows in ascending order."""
    if not len(code):
        return []
    order: Ints = np.argsort(code, kind="stable").astype(np.int64)
    return np.split(order, np.flatnonzero(np.diff(code[order])) + 1)


def weighted_median(values: Floats, weights: Floats) -> float:
    """The value with half of the weight on each side; between two such values their mean."""
    order = np.argsort(values, kind="stable")
    values, reached = values[order], np.cumsum(weights[order])
    half = reached[-1] / 2
    at = int(np.searchsorted(reached, half, side="left"))
    if reached[at] == half and at + 1 < len(values):
        return float(values[at] + values[at + 1]) / 2
    return float(values[at])
