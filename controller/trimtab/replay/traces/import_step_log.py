"""Step logs as rows of a trace.

A step log is a CSV file with a row for each decode result: `t_s`, `num_steps` (-1: cold plain, 0: warm plain),
`batch_size`, `accepted_drafts`. It does not say what lay between two results, so that is told from the times: the
first row, one in which the batch grew, and one that took `GAP_FACTOR` times the median of its batch size and mode come
after a prefill or idle time. The file is read twice: for the medians, then for the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trimtab.domain import PLAIN_COLD, StepFlag, speculate
from trimtab.errors import DataError
from trimtab.replay.arrays import Floats, Ints, Mask
from trimtab.replay.traces.input_file import InputFile, LeftOut, Progress, part_of
from trimtab.replay.traces.schema import TraceEngine
from trimtab.replay.traces.source import Block, csv_batches
from trimtab.replay.traces.step_time_histograms import StepTimeHistograms
from trimtab.wire.bounds import MAX_REQUESTS, MAX_STEPS

# A result that took so many times the median of its batch size and mode came after a prefill or idle time.
GAP_FACTOR = 5.0
LOG_COLUMNS = ("t_s", "num_steps", "batch_size", "accepted_drafts")
_TYPES: dict[str, Any] = dict(zip(LOG_COLUMNS, (pa.float64(), pa.int64(), pa.int64(), pa.int64()), strict=True))
# More does not go into nanoseconds.
LONGEST_S = 9e9
# Modes by `num_steps` + 1.
_NAMES = pa.array([str(PLAIN_COLD), *(str(speculate(k)) for k in range(MAX_STEPS + 1))])


class StepLog:
    """One step log; see `TraceSource`."""

    kind = "step_log"

    def __init__(self, path: Path, engine: str, header: tuple[str, ...], progress: Progress) -> None:
        self.rows = 0
        self.left_out = LeftOut()
        self.ignored_columns = tuple(name for name in header if name not in LOG_COLUMNS)
        self._path = path
        self._header = header
        self._engine = TraceEngine(engine, 0)
        self._progress = progress

    def blocks(self) -> Iterator[Block]:
        """All rows that can be steps of an engine."""
        times = StepTimeHistograms()
        for steps in self._read(part_of(self._progress, 0, 2)):
            times.add(steps.cell, steps.wall_ns)
        medians = times.medians()
        self.rows, self.left_out = 0, LeftOut()
        for steps in self._read(part_of(self._progress, 1, 2)):
            keep = self._judge(steps)
            yield Block(self._engine, steps.columns(steps.after_gap(medians), keep))

    def _judge(self, steps: _Steps) -> Mask:
        """Which rows can be steps of an engine; the others are left out."""
        keep = np.ones(len(steps), dtype=bool)
        for reason, bad in steps.faults().items():
            self._leave_out(reason, steps.line[keep & bad])
            keep &= ~bad
        return keep

    def _leave_out(self, reason: str, lines: Ints) -> None:
        if len(lines):
            self.left_out.add(reason, int(lines[0]), len(lines))

    def _read(self, progress: Progress) -> Iterator[_Steps]:
        """The log from its beginning; rows that lack a field are left out."""
        before = _Before()
        with InputFile(self._path, progress) as file:
            for batch in csv_batches(file, self._header, _TYPES):
                steps = _Steps(*self._complete(batch), before)
                self._check_order(steps)
                before = steps.last(before)
                yield steps

    def _complete(self, batch: Any) -> tuple[Ints, dict[str, npt.NDArray[Any]]]:
        """Lines and columns of the rows that have all fields."""
        line: Ints = np.arange(len(batch), dtype=np.int64) + (self.rows + 2)
        self.rows += len(batch)
        has_all = pc.less(pc.abs(batch.column("t_s")), LONGEST_S).fill_null(False)
        for name in LOG_COLUMNS[1:]:
            if batch.column(name).null_count:
                has_all = pc.and_(has_all, batch.column(name).is_valid())
        keep = has_all.to_numpy(zero_copy_only=False)
        if not keep.all():
            self._leave_out("incomplete", line[~keep])
            batch, line = batch.filter(has_all), line[keep]
        return line, {name: batch.column(name).to_numpy(zero_copy_only=False) for name in LOG_COLUMNS}

    def _check_order(self, steps: _Steps) -> None:
        falls = np.flatnonzero(steps.wall_ns < 0)
        if len(falls):
            place = f"{self._path}:{steps.line[falls[0]]}"
            raise DataError(place, "time goes backwards: the rows are not in their order")


class _Before:
    """The row before: what the next one is compared with."""

    def __init__(self, result_ns: int | None = None, size: int = 0, num_steps: int = 0) -> None:
        self.result_ns, self.size, self.num_steps = result_ns, size, num_steps


class _Steps:
    """Rows of a log that follow each other, with the times between results."""

    def __init__(self, line: Ints, columns: Mapping[str, npt.NDArray[Any]], before: _Before) -> None:
        self.line = line
        self.num_steps, self.size, self.accepted = (columns[name] for name in LOG_COLUMNS[1:])
        self.result_ns: Ints = np.round(columns["t_s"] * 1e9).astype(np.int64)
        self.is_first = np.zeros(len(line), dtype=bool)
        if before.result_ns is None and len(line):
            self.is_first[0] = True
            before = _Before(int(self.result_ns[0]), int(self.size[0]), int(self.num_steps[0]))
        self.wall_ns: Ints = np.diff(self.result_ns, prepend=before.result_ns or 0)
        self.grew: Mask = np.diff(self.size, prepend=before.size) > 0
        self.switched: Mask = np.diff(self.num_steps, prepend=before.num_steps) != 0
        # Batch size and mode in one number; the first row has no time.
        self.cell: Ints = np.where(self.is_first, -1, self.size * (MAX_STEPS + 2) + self.num_steps + 1)

    def __len__(self) -> int:
        return len(self.line)

    def last(self, before: _Before) -> _Before:
        """What the next row is compared with."""
        if not len(self):
            return before
        return _Before(int(self.result_ns[-1]), int(self.size[-1]), int(self.num_steps[-1]))

    def faults(self) -> dict[str, Mask]:
        """Rows that cannot be steps, by what is wrong with them."""
        steps, most = self.num_steps, np.maximum(self.num_steps, 0) * self.size
        return {
            "num_steps_range": (steps < -1) | (steps > MAX_STEPS),
            "batch_size_range": (self.size < 1) | (self.size > MAX_REQUESTS),
            "accepted_drafts_range": (self.accepted < 0) | (self.accepted > most),
        }

    def after_gap(self, medians: Mapping[int, float]) -> Mask:
        """Rows that come after a prefill or idle time."""
        cells, at = np.unique(self.cell, return_inverse=True)
        limit: Floats = GAP_FACTOR * np.array([medians.get(int(cell), np.inf) for cell in cells])
        found: Mask = self.is_first | self.grew | (self.wall_ns > limit[at])
        return found

    def columns(self, gap: Mask, keep: Mask) -> dict[str, Any]:
        """Columns of a trace, of the rows to keep."""
        flags = int(StepFlag.GAP) * gap + int(StepFlag.SWITCHED) * self.switched
        return {
            "result_ns": self.result_ns[keep],
            "mode": pa.DictionaryArray.from_arrays(pa.array((self.num_steps[keep] + 1).astype(np.int32)), _NAMES),
            "batch_size": self.size[keep],
            "emitted_tokens": (self.size + self.accepted)[keep],
            "accepted_tokens": self.accepted[keep],
            "step_ns": pa.array(self.wall_ns[keep], mask=gap[keep]),
            "wall_gap_ns": pa.array(self.wall_ns[keep], mask=self.is_first[keep]),
            "flags": flags[keep],
        }
