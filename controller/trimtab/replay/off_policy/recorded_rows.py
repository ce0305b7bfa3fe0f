"""Rows of a trace as the step rows that a session is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from trimtab.domain import DepthCounts, StepFlag, StepRow
from trimtab.replay.arrays import Ints
from trimtab.replay.traces.columns import DepthArrays, StepColumns
from trimtab.replay.traces.schema import ABSENT
from trimtab.wire.rows import ALL_FLAGS, ZERO_IF_ABSENT

FIELDS = tuple(field.name for field in fields(StepRow))
_FLAGS = tuple(StepFlag(bits) for bits in range(ALL_FLAGS + 1))
_NO_COUNTS = DepthCounts()


def step_rows(columns: StepColumns) -> list[StepRow]:
    """The rows as an engine would have reported them. There must be all columns.

    Where a trace lacks what every report has, the number of the row stands for the step, the batch for the requests
    with a whole draft cache, and the accepted drafts with one token a request for what came out.
    """
    found: list[StepRow] = list(map(StepRow, *(_column(name, columns) for name in FIELDS)))
    return found


def emitted_tokens(columns: StepColumns) -> Ints:
    """Tokens that came out of each row; -1 where nobody knows."""
    emitted, accepted = columns.ints("emitted_tokens"), columns.ints("accepted_tokens")
    by_sum = np.where(accepted >= 0, columns.ints("batch_size") * columns.steps + accepted, ABSENT)
    return np.where(emitted >= 0, emitted, by_sum)


def _column(name: str, columns: StepColumns) -> Sequence[Any]:
    match name:
        case "mode":
            return [columns.modes[code] for code in columns.ints("mode").tolist()]
        case "fresh" | "stale":
            return _counts(getattr(columns, name))
        case "flags":
            return [_FLAGS[bits & ALL_FLAGS] if bits > 0 else StepFlag.NONE for bits in columns.ints("flags").tolist()]
        case "accepted_worst_decile":
            return [None if value != value else value for value in columns.floats(name).tolist()]
    return _integers(name, columns)


def _integers(name: str, columns: StepColumns) -> list[int | None]:
    values: list[int] = columns.ints(name).tolist()
    if name in ("step", "launch_id"):
        return [n + 1 if value < 0 else value for n, value in enumerate(values, columns.first_row)]
    if name == "emitted_tokens":
        return [max(0, value) for value in emitted_tokens(columns).tolist()]
    if name == "fresh_requests":
        sizes: list[int] = columns.ints("batch_size").tolist()
        return [size if value < 0 else value for size, value in zip(sizes, values, strict=True)]
    absent = 0 if name in ZERO_IF_ABSENT else None
    return [absent if value < 0 else value for value in values]


def _counts(arrays: DepthArrays) -> list[DepthCounts]:
    rows = zip(arrays.offered.tolist(), arrays.accepted.tolist(), arrays.depths.tolist(), strict=True)
    return [DepthCounts(tuple(o[:d]), tuple(a[:d])) if d > 0 else _NO_COUNTS for o, a, d in rows]
