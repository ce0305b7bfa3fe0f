"""Decode steps as columns: which rows of a trace are a cost, and what is known of each.

`cost_samples` is where every source of step rows comes in, whatever its format (see `sample_files.py` for files).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from trimtab.domain import Mode, StepFlag
from trimtab.replay.arrays import Floats, Ints, Mask

Columns = Mapping[str, npt.NDArray[np.generic]]

# Rows of a new mode until the host has caught up with the device again.
SETTLING_ROWS = 4


@dataclass(frozen=True, slots=True)
class StepSamples:
    """Step times and what they may depend on; every array has shape `(n_rows,)`.

    Attributes:
        modes: Modes that occur.
        mode: Number of the row's mode in `modes`.
        batch_size: Size that the batch was padded to.
        requests: Requests in it.
        step_ms: Time of the step.
        steps: Steps that the row stands for: more than 1 where it is a median already.
        context_sum: Tokens of context in the batch; NaN if unknown.
        context_max: Tokens of its longest request; NaN if unknown.
    """

    modes: tuple[Mode, ...]
    mode: Ints
    batch_size: Ints
    requests: Ints
    step_ms: Floats
    steps: Floats
    context_sum: Floats
    context_max: Floats

    def __len__(self) -> int:
        return len(self.step_ms)

    def where(self, mask: Mask) -> StepSamples:
        """These rows alone."""
        return StepSamples(self.modes, *(getattr(self, f.name)[mask] for f in fields(self)[1:]))


def joined(parts: Sequence[StepSamples]) -> StepSamples:
    """All rows of all parts, in their order."""
    modes = tuple(sorted({mode for part in parts for mode in part.modes}))
    numbers = [np.array([modes.index(mode) for mode in part.modes], dtype=np.int64) for part in parts]
    columns = [np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(StepSamples)[2:]]
    return StepSamples(modes, np.concatenate([n[part.mode] for n, part in zip(numbers, parts, strict=True)]), *columns)


def cost_samples(modes: Sequence[Mode], columns: Columns) -> tuple[StepSamples, Counter[str]]:
    """The rows whose time is a cost, and how many others there are by reason.

    A cost is timed, of a real batch, from a captured graph where graphs are in use, with nothing in between, without
    retractions or grammar, and away from a change of mode: a result comes after the next launch, so a switch slows
    the row before it, and the rows after it catch up.

    Args:
        modes: What the numbers in `columns["mode"]` stand for.
        columns: Columns by the names of `StepRow`, NaN or a negative number where a row has none. There must be
            `mode`, `batch_size` and `step_ns`; `steps`, for rows that are medians, may be there besides.
    """
    n = len(columns["batch_size"])
    size, step_ns = _column(columns, "batch_size", n), _column(columns, "step_ns", n)
    flags = np.nan_to_num(_column(columns, "flags", n, 0.0)).astype(np.int64)
    graph = (flags & StepFlag.GRAPH) > 0
    reasons = {
        "empty": ~(size > 0),
        "untimed": ~(step_ns > 0),
        "warm_up": (flags & StepFlag.WARM_UP) > 0,
        "gap": (flags & StepFlag.GAP) > 0,
        "beside_switch": _beside((flags & StepFlag.SWITCHED) > 0),
        "eager": ~graph if graph.any() else np.zeros(n, dtype=bool),
        "retraction": _column(columns, "retracted_requests", n) > 0,
        "grammar": _column(columns, "grammar_requests", n) > 0,
    }
    good = np.ones(n, dtype=bool)
    left_out: Counter[str] = Counter()
    for reason, mask in reasons.items():
        left_out[reason] = int((good & mask).sum())
        good &= ~mask
    padded = _column(columns, "padded_batch_size", n)
    samples = StepSamples(
        modes=tuple(modes),
        mode=columns["mode"].astype(np.int64),
        batch_size=np.where(padded > 0, padded, np.nan_to_num(size)).astype(np.int64),
        requests=np.nan_to_num(size).astype(np.int64),
        step_ms=step_ns / 1e6,
        steps=_column(columns, "steps", n, 1.0),
        context_sum=_positive(_column(columns, "context_tokens_sum", n)),
        context_max=_positive(_column(columns, "context_tokens_max", n)),
    )
    return samples.where(good), +left_out


def _beside(switched: Mask) -> Mask:
    """The row before every change of mode, its first row, and those that catch up."""
    beside = switched.copy()
    beside[:-1] |= switched[1:]
    for after in range(1, SETTLING_ROWS):
        beside[after:] |= switched[:-after]
    return beside


def _column(columns: Columns, name: str, n: int, absent: float = np.nan) -> Floats:
    found = columns.get(name)
    return np.full(n, absent) if found is None else found.astype(np.float64)


def _positive(values: Floats) -> Floats:
    return np.where(values > 0, values, np.nan)
