"""Which recorded steps count for estimates from a log, and which of them one draw chose the mode for?

Steps count that are timed, with nothing in between, of a real batch: prefill and pauses are the same whoever chooses
the mode. The first step after a switch counts as well: that it paid for the switch is part of what happened.

A lease draws a mode once for `exploration_dwell_steps` steps of the decode step counter, so the steps of one
`step // exploration_dwell_steps` stand or fall together. Each has the probability of its own row; that a lease or a
band changes in the middle of a block is taken to be no doing of the block's own draw, and the few steps that a mode is
held on for its minimum dwell count with the probability that it was drawn with. Where nothing was drawn, or the trace
does not say how long draws last, blocks are `QUIET_BLOCK_STEPS` and `UNTOLD_BLOCK_STEPS` long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.domain import Mode, StepFlag
from trimtab.replay.arrays import Floats, Ints, Mask
from trimtab.replay.off_policy.choices import Choices
from trimtab.replay.off_policy.recent_acceptance import RecentAcceptance
from trimtab.replay.off_policy.recorded_rows import emitted_tokens
from trimtab.replay.trace_model.environment import places_of
from trimtab.replay.traces.columns import Segment, StepColumns

QUIET_BLOCK_STEPS = 32
# Several of the longest draws that policies take.
UNTOLD_BLOCK_STEPS = 128


@dataclass(frozen=True, slots=True)
class LoggedSteps:
    """Rows that count, N of M that were read. Arrays have shape `(N,)` unless said.

    Attributes:
        counted: Which of the rows count; shape `(M,)`.
        block: Number of the row's draw.
        steps: Decode steps of the row.
        mode: Number of the mode that ran.
        probability: With which it was chosen; NaN if unknown.
        tokens: Over all steps of the row.
        ms: Over all steps of the row.
        batch_size: Requests.
        features: What tokens and time may depend on; shape `(N, F)`.
    """

    counted: Mask
    block: Ints
    steps: Floats
    mode: Ints
    probability: Floats
    tokens: Floats
    ms: Floats
    batch_size: Floats
    features: Floats


class StepReader:
    """Reads the rows of one trace in their order.

    Args:
        modes: Modes that numbers of modes count along.
        rows: Rows of the trace.

    Attributes:
        counted: Rows that count.
        left_out: Others, by reason.
    """

    def __init__(self, modes: Sequence[Mode], rows: int) -> None:
        self.counted = 0
        self.left_out: Counter[str] = Counter()
        self._modes = modes
        self._rows = max(1, rows)
        self._segment: Segment | None = None
        self._segments = 0
        self._last_key = np.full((3, 1), -1, dtype=np.int64)
        self._blocks = 0
        self._acceptance = RecentAcceptance()

    def read(self, columns: StepColumns) -> LoggedSteps:
        """The next rows."""
        if columns.segment != self._segment:
            self._segment, self._segments = columns.segment, self._segments + 1
            self._acceptance.forget()
        counted, block = self._counted(columns), self._block(columns)
        steps, size = columns.steps.astype(np.float64), columns.floats("batch_size")
        return LoggedSteps(
            counted=counted,
            block=block[counted],
            steps=steps[counted],
            mode=places_of(columns.modes, self._modes)[columns.ints("mode")][counted],
            probability=columns.floats("probability")[counted],
            tokens=emitted_tokens(columns)[counted].astype(np.float64),
            ms=(columns.floats("step_ns") / 1e6 * steps)[counted],
            batch_size=size[counted],
            features=self._features(columns, block)[counted],
        )

    def _counted(self, columns: StepColumns) -> Mask:
        flags = np.maximum(0, columns.ints("flags"))
        reasons = {
            "no_requests": columns.ints("batch_size") <= 0,
            "sweep": (flags & StepFlag.SWEEP) > 0,
            "warm_up": (flags & StepFlag.WARM_UP) > 0,
            "gap": (flags & StepFlag.GAP) > 0,
            "untimed": columns.ints("step_ns") <= 0,
            "no_tokens": emitted_tokens(columns) < 0,
        }
        counted = np.ones(len(columns), dtype=bool)
        for reason, mask in reasons.items():
            self.left_out[reason] += int((counted & mask).sum())
            counted &= ~mask
        self.counted += int(counted.sum())
        return counted

    def _block(self, columns: StepColumns) -> Ints:
        """Number of every row's draw within the trace."""
        row = columns.first_row - columns.segment.first_row + np.arange(len(columns))
        step = np.where(columns.ints("step") >= 0, columns.ints("step"), row)
        dwell = columns.ints("exploration_dwell_steps")
        certain = (dwell == 0) | (columns.floats("probability") == 1)
        length = np.where(dwell > 0, dwell, np.where(certain, QUIET_BLOCK_STEPS, UNTOLD_BLOCK_STEPS))
        key = np.stack([np.full(len(row), self._segments), length, step // length])
        begins = (np.diff(key, prepend=self._last_key, axis=1) != 0).any(axis=0)
        block: Ints = self._blocks + np.cumsum(begins)
        self._last_key, self._blocks = key[:, -1:], int(block[-1])
        return block

    def _features(self, columns: StepColumns, block: Ints) -> Floats:
        """Batch and padded batch in octaves, context of a request in octaves, acceptance before, place in the trace."""
        size = np.maximum(1, columns.ints("batch_size"))
        padded = np.where(columns.ints("padded_batch_size") > 0, columns.ints("padded_batch_size"), size)
        context = np.maximum(0, columns.ints("context_tokens_sum")) / size
        place = (columns.first_row + np.arange(len(columns))) / self._rows
        before = self._acceptance.before(columns, block)
        return np.column_stack([np.log2(size), np.log2(padded), np.log2(1 + context), before, place])


class Stretches:
    """Puts steps together that a candidate wants the same for, draw by draw. Owned by one candidate's estimate.

    Args:
        modes: Number of modes.
    """

    def __init__(self, modes: int) -> None:
        self._parts: list[dict[str, Floats | Ints]] = []
        self._wishes: dict[tuple[float, ...], int] = {}
        self._modes = modes

    def code_of(self, wish: tuple[float, ...]) -> int:
        """Number of a wish: the probability of every mode."""
        return self._wishes.setdefault(wish, len(self._wishes))

    def add(self, logged: LoggedSteps, wish: Ints) -> None:
        """Take in rows that count, with the number of what the candidate wants for each."""
        told = np.nan_to_num(logged.probability, nan=-1.0)
        key = np.stack([logged.block, logged.mode, told, wish])
        starts = np.flatnonzero((np.diff(key, axis=1, prepend=-2) != 0).any(axis=0))
        steps = np.add.reduceat(logged.steps, starts)

        def mean(values: Floats) -> Floats:
            found: Floats = (np.add.reduceat((values.T * logged.steps).T, starts, axis=0).T / steps).T
            return found

        self._parts.append(
            {
                "block": logged.block[starts],
                "steps": steps,
                "mode": logged.mode[starts],
                "probability": logged.probability[starts],
                "tokens": np.add.reduceat(logged.tokens, starts),
                "ms": np.add.reduceat(logged.ms, starts),
                "batch_size": mean(logged.batch_size),
                "features": mean(logged.features),
                "wish": wish[starts],
            }
        )

    def choices(self) -> Choices:
        """All of it."""
        columns = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        wishes = np.array(list(self._wishes)).reshape(len(self._wishes), self._modes)
        return Choices(wanted=wishes[columns.pop("wish")], **columns)
