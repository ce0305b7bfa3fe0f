"""How did first drafts fare before a draw? A part of the state of its steps that no choice of theirs has touched."""

from __future__ import annotations

import numpy as np

from trimtab.replay.arrays import Floats, Ints
from trimtab.replay.traces.columns import StepColumns

# What a draw's counts weigh after the next one, and drafts that the guess before any counts for.
KEPT = 0.8
GUESS, GUESS_DRAFTS = 0.6, 4.0


class RecentAcceptance:
    """Share of first drafts that were accepted, over the last draws of a run. Owned by one reading of a trace."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """A new run begins."""
        self._offered = self._accepted = 0.0
        self._block, self._own = -1, (0.0, 0.0)

    def before(self, columns: StepColumns, block: Ints) -> Floats:
        """For every row the share before its own draw began; `block` is the number of the draw."""
        starts = np.flatnonzero(np.diff(block, prepend=-1))
        offered, accepted = (np.add.reduceat(counts, starts) for counts in _first_drafts(columns))
        share = [
            self._next(number, o, a)
            for number, o, a in zip(block[starts].tolist(), offered.tolist(), accepted.tolist(), strict=True)
        ]
        return np.repeat(share, np.diff(np.append(starts, len(block))))

    def _next(self, block: int, offered: float, accepted: float) -> float:
        if block != self._block:
            self._offered = KEPT * self._offered + self._own[0]
            self._accepted = KEPT * self._accepted + self._own[1]
            self._block, self._own = block, (0.0, 0.0)
        self._own = self._own[0] + offered, self._own[1] + accepted
        return (self._accepted + GUESS * GUESS_DRAFTS) / (self._offered + GUESS_DRAFTS)


def _first_drafts(columns: StepColumns) -> tuple[Floats, Floats]:
    """First drafts offered and accepted of every row; none where counts by depth are unknown."""
    fresh = columns.fresh
    if fresh is None or not fresh.offered.shape[1]:
        return np.zeros(len(columns)), np.zeros(len(columns))
    first = fresh.depths > 0
    return np.where(first, fresh.offered[:, 0], 0.0), np.where(first, fresh.accepted[:, 0], 0.0)
