"""Step rows as packed columns and back.

A report comes four times a second from every engine, so the usual case, where nothing is wrong, is checked
a column at a time; single values are looked at only in a column that failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from trimtab.domain import DepthCounts, Mode, StepFlag, StepRow
from trimtab.wire.bounds import MAX_COUNT, MAX_RANKS, MAX_REQUESTS, MAX_ROWS_PER_REPORT, MAX_STEPS, WireLimitError
from trimtab.wire.modes import KIND_TO_WIRE, MODES
from trimtab_sglang.lease import MAX_TABLE_ENTRIES
from trimtabpb.v1 import control_pb2 as pb

ABSENT = -1
MAX_EMITTED = 1 << 24
MAX_STEP_NS = 3_600 * 1_000_000_000

# What a row cannot do without, with the largest value.
REQUIRED = {
    "launch_id": MAX_COUNT, "step": MAX_COUNT, "result_ns": MAX_COUNT, "batch_size": MAX_REQUESTS,
    "emitted_tokens": MAX_EMITTED,
}  # fmt: skip
# Columns whose absence means 0.
ZERO_IF_ABSENT = {
    "rank": MAX_RANKS, "dp_rank": MAX_RANKS, "lease_version": MAX_COUNT, "fresh_requests": MAX_REQUESTS,
    "stale_requests": MAX_REQUESTS, "prefill_tokens": (1 << 32) - 1, "flags": (1 << 32) - 1,
    "missed_tokens": MAX_COUNT, "caught_up_tokens": MAX_COUNT,
}  # fmt: skip
# Signed columns: -1 is absent.
NONE_IF_ABSENT = {
    "table_entry": MAX_TABLE_ENTRIES - 1, "padded_batch_size": MAX_REQUESTS, "global_batch_size": MAX_REQUESTS,
    "step_ns": MAX_STEP_NS, "wall_gap_ns": MAX_COUNT, "context_tokens_sum": MAX_COUNT, "context_tokens_max": MAX_COUNT,
    "kv_used_tokens": MAX_COUNT, "running_requests": MAX_REQUESTS, "waiting_requests": MAX_REQUESTS,
    "retracted_requests": MAX_REQUESTS, "greedy_requests": MAX_REQUESTS, "grammar_requests": MAX_REQUESTS,
    "lora_requests": MAX_REQUESTS, "accepted_worst_decile": MAX_STEPS, "catch_up_ns": MAX_COUNT,
}  # fmt: skip
FIELDS = tuple(field.name for field in fields(StepRow))
ALL_FLAGS = sum(StepFlag)
FLAGS = tuple(StepFlag(bits) for bits in range(ALL_FLAGS + 1))
NO_COUNTS = DepthCounts()


def columns_to_rows(message: pb.StepRows) -> tuple[tuple[StepRow, ...], Counter[str]]:
    """The rows of these columns, and what was left out of them by reason.

    A value out of range costs its row (`COLUMN_range`), a column of another length than `step` is taken as
    absent (`COLUMN_length`), and without a column that every row needs there are no rows (`COLUMN_missing`).

    Raises:
        WireLimitError: More rows than a report may have.
    """
    n = len(message.step)
    if n > MAX_ROWS_PER_REPORT:
        raise WireLimitError("report.rows", f"has {n} rows, at most {MAX_ROWS_PER_REPORT}")
    return _Reader(message, n).rows()


def rows_to_columns(rows: Sequence[StepRow]) -> pb.StepRows:
    """The columns of these rows, with every column present."""
    message = pb.StepRows()
    for name in (*REQUIRED, *ZERO_IF_ABSENT):
        getattr(message, name).extend(int(getattr(row, name)) for row in rows)
    for name in NONE_IF_ABSENT:
        values = (getattr(row, name) for row in rows)
        getattr(message, name).extend(ABSENT if value is None else value for value in values)
    message.mode_kind.extend(KIND_TO_WIRE[row.mode.kind] for row in rows)
    message.mode_steps.extend(row.mode.steps for row in rows)
    _pack(message.fresh, (row.fresh for row in rows))
    _pack(message.stale, (row.stale for row in rows))
    return message


def _pack(message: pb.CountsByDepth, counts: Iterable[DepthCounts]) -> None:
    for of_row in counts:
        message.depths.append(len(of_row.offered))
        message.offered.extend(of_row.offered)
        message.accepted.extend(of_row.accepted)


class _Reader:
    """Reads one message. `bad` holds the first reason against each bad row."""

    def __init__(self, message: pb.StepRows, n: int) -> None:
        self.message = message
        self.n = n
        self.refused: Counter[str] = Counter()
        self.bad: dict[int, str] = {}

    def rows(self) -> tuple[tuple[StepRow, ...], Counter[str]]:
        """All good rows, and what was refused."""
        columns: dict[str, Sequence[Any] | None] = {name: self._numbers(name, REQUIRED[name]) for name in REQUIRED}
        columns["mode"] = self._modes()
        missing = [name for name, column in columns.items() if column is None]
        if missing:
            return (), Counter({f"{missing[0]}_missing": self.n}) if self.n else Counter()
        for name, high in ZERO_IF_ABSENT.items():
            columns[name] = self._numbers(name, high) or (0,) * self.n
        for name, high in NONE_IF_ABSENT.items():
            columns[name] = self._optional(name, high)
        columns["fresh"] = self._counts("fresh", columns)
        columns["stale"] = self._counts("stale", columns)
        columns["flags"] = [FLAGS[bits & ALL_FLAGS] for bits in columns["flags"] or ()]
        rows = self._good(zip(*(columns[name] or () for name in FIELDS), strict=True))
        return tuple(rows), self.refused + Counter(self.bad.values())

    def _good(self, values: Iterable[tuple[Any, ...]]) -> list[StepRow]:
        if not self.bad:
            return [StepRow(*row) for row in values]
        return [StepRow(*row) for i, row in enumerate(values) if i not in self.bad]

    def _column(self, name: str) -> list[Any] | None:
        """The values, one a row; None if there are none or not as many as rows."""
        values = getattr(self.message, name)
        if len(values) == self.n:
            return list(values)
        if values:
            self.refused[f"{name}_length"] += 1
        return None

    def _numbers(self, name: str, high: int) -> list[int] | None:
        column = self._column(name)
        if column and max(column) > high:
            self._blame(f"{name}_range", (i for i, value in enumerate(column) if value > high))
        return column

    def _optional(self, name: str, high: int) -> Sequence[float | None]:
        """The values, None for each absent one. Not a number fails every comparison, so it is never in range."""
        column = self._column(name)
        if not column:
            return (None,) * self.n
        if not all(value == ABSENT or 0 <= value <= high for value in column):
            self._blame(
                f"{name}_range", (i for i, value in enumerate(column) if not (value == ABSENT or 0 <= value <= high))
            )
        return [None if value == ABSENT else value for value in column] if ABSENT in column else column

    def _modes(self) -> list[Mode | None] | None:
        kinds, steps = self._column("mode_kind"), self._column("mode_steps")
        if kinds is None or steps is None:
            return None
        modes = [MODES.get(mode) for mode in zip(kinds, steps, strict=True)]
        if None in modes:
            self._blame("mode_range", (i for i, mode in enumerate(modes) if mode is None))
        return modes

    def _counts(self, name: str, columns: dict[str, Sequence[Any] | None]) -> Sequence[DepthCounts]:
        """Counts by depth. Malformed ones are taken as absent, and so are the requests that they speak of."""
        message: pb.CountsByDepth = getattr(self.message, name)
        if not message.depths and not message.offered and not message.accepted:
            return (NO_COUNTS,) * self.n
        depths = list(message.depths) if len(message.depths) == self.n else []
        if not len(message.offered) == len(message.accepted) == sum(depths) or not depths or max(depths) > MAX_STEPS:
            self.refused[f"{name}_length"] += 1
            columns[f"{name}_requests"] = (0,) * self.n
            return (NO_COUNTS,) * self.n
        return self._split(name, depths, message, columns[f"{name}_requests"] or ())

    def _split(
        self, name: str, depths: list[int], message: pb.CountsByDepth, requests: Sequence[int]
    ) -> list[DepthCounts]:
        offered, accepted = tuple(message.offered), tuple(message.accepted)
        counts, start = [], 0
        for i, depth in enumerate(depths):
            if not depth:
                counts.append(NO_COUNTS)
                continue
            end = start + depth
            of_row = DepthCounts(offered[start:end], accepted[start:end])
            if not _is_cascade(of_row, requests[i]):
                self._blame(f"{name}_range", (i,))
            counts.append(of_row)
            start = end
        return counts

    def _blame(self, reason: str, rows: Iterable[int]) -> None:
        for i in rows:
            self.bad.setdefault(i, reason)


def _is_cascade(counts: DepthCounts, requests: int) -> bool:
    """Whether no draft was offered to, or accepted by, more requests than the draft before it left over."""
    left = requests
    for offered, accepted in zip(counts.offered, counts.accepted, strict=True):
        if not left >= offered >= accepted:
            return False
        left = accepted
    return True
