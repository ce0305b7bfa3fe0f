"""Medians of step times by batch size and mode, of any number of rows in bounded memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trimtab.replay.arrays import Ints

# Bins of 1%, from a microsecond to a minute.
BINS, OCTAVES, FIRST_OCTAVE = 64, 26, 10
# Cells beyond these are left alone; there are never so many but in a file that is something else.
MAX_CELLS = 20_000


class StepTimeHistograms:
    """Counts step times by cell and bin; a cell is any number, such as one of a batch size and a mode."""

    def __init__(self) -> None:
        self._counts: dict[int, npt.NDArray[np.int32]] = {}

    def add(self, cell: Ints, ns: Ints) -> None:
        """Count these times; those of cells below 0 are left alone."""
        timed = cell >= 0
        octave = np.log2(np.maximum(1, ns[timed])) - FIRST_OCTAVE
        bins = np.clip(octave * BINS, 0, OCTAVES * BINS - 1).astype(np.int64)
        cells, at = np.unique(cell[timed], return_inverse=True)
        size = OCTAVES * BINS
        counts = np.bincount(at * size + bins, minlength=len(cells) * size).astype(np.int32)
        for number, row in zip(cells.tolist(), counts.reshape(len(cells), size), strict=True):
            known = self._counts.get(number)
            if known is not None:
                known += row
            elif len(self._counts) < MAX_CELLS:
                self._counts[number] = row.copy()

    def medians(self) -> dict[int, float]:
        """The median of each cell in ns, within half a bin."""
        return {cell: _median_ns(counts) for cell, counts in self._counts.items()}


def _median_ns(counts: npt.NDArray[np.int32]) -> float:
    """The middle bin, or the mean of the two in the middle."""
    reached, half = np.cumsum(counts), counts.sum() / 2
    at = np.array([np.searchsorted(reached, half, side) for side in ("left", "right")])
    return float(np.mean(2.0 ** ((at + 0.5) / BINS + FIRST_OCTAVE)))
