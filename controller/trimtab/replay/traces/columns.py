"""Rows of a trace as numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.domain import Mode
from trimtab.replay.arrays import Floats, Ints, Mask
from trimtab.replay.traces.schema import ABSENT, FRACTIONS

Counts = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Segment:
    """One run of one engine: so many rows of the trace, from `first_row` on."""

    engine: str
    run: int
    first_row: int
    rows: int

    @property
    def end(self) -> int:
        """Number of the row after its last."""
        return self.first_row + self.rows


@dataclass(frozen=True, slots=True)
class DepthArrays:
    """Drafts by depth, shape `(n_rows, n_depths)`: column d holds depth d + 1; 0 beyond a row's own depth.

    There are at least as many columns as the trace's deepest mode drafts.

    Attributes:
        offered: Requests that reached the draft.
        accepted: Those that had it accepted.
        depths: Depths that each row has, shape `(n_rows,)`; -1 where counts are unknown.
    """

    offered: Counts
    accepted: Counts
    depths: Counts

    @property
    def known(self) -> Mask:
        """Rows that have counts, if only of no draft at all."""
        return self.depths >= 0

    def rows(self, rows: slice) -> DepthArrays:
        """These rows alone."""
        return DepthArrays(self.offered[rows], self.accepted[rows], self.depths[rows])


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Rows of one segment that follow each other.

    Attributes:
        segment: Where they belong.
        first_row: Number of the first of them in the trace.
        modes: Modes of the whole trace; `mode` counts along these.
        arrays: Columns by name, each of shape `(n_rows,)`: integers as int64, -1 where a row has none; `mode` as
            codes; `probability` and `accepted_worst_decile` as float64, NaN where a row has none. Columns that were
            not asked for are missing.
        fresh: Drafts by depth of requests whose draft cache is whole; None if not asked for.
        stale: The same of the other requests.
    """

    segment: Segment
    first_row: int
    modes: tuple[Mode, ...]
    arrays: Mapping[str, npt.NDArray[Any]]
    fresh: DepthArrays | None = None
    stale: DepthArrays | None = None

    def __len__(self) -> int:
        return len(self.arrays["result_ns"])

    def ints(self, name: str) -> Ints:
        """A column of integers, -1 where a row has none."""
        column: Ints = self.arrays[name]
        return column

    def floats(self, name: str) -> Floats:
        """A column as float64, NaN where a row has none."""
        column = self.arrays[name]
        return np.asarray(column if name in FRACTIONS else np.where(column == ABSENT, np.nan, column))

    @property
    def steps(self) -> Ints:
        """Decode steps that each row stands for, at least 1."""
        return np.asarray(np.maximum(1, self.arrays["steps"]))

    @property
    def has_counts(self) -> Mask:
        """Rows that have counts by depth of their fresh requests."""
        return np.zeros(len(self), dtype=bool) if self.fresh is None else self.fresh.known

    def rows(self, start: int, stop: int) -> StepColumns:
        """Rows from `start` up to `stop`, counted from the first of these; arrays are views."""
        part = slice(start, stop)
        return replace(
            self,
            first_row=self.first_row + start,
            arrays={name: column[part] for name, column in self.arrays.items()},
            fresh=self.fresh and self.fresh.rows(part),
            stale=self.stale and self.stale.rows(part),
        )
