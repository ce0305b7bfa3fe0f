"""The recorded run, and one mode for all of a trace: without a session, whole columns at a time.

A fixed mode through the session gives the same figures: its lease is in force from the first step to the last.
"""

from __future__ import annotations

import numpy as np

from trimtab.domain import Mode
from trimtab.replay.counterfactual.ledger import Ledger
from trimtab.replay.trace_model.environment import Stretch, TraceEnvironment


class RecordedCourse:
    """What ran. Owned by one replay."""

    def __init__(self, environment: TraceEnvironment) -> None:
        self.ledger = Ledger(environment)

    def play(self, stretch: Stretch) -> None:
        """Take in the next rows."""
        self.ledger.add_recorded(stretch)

    def finish(self) -> None:
        """Nothing is left over."""


class FixedCourse:
    """One mode for each segment. Owned by one replay.

    Args:
        environment: The trace.
        modes: Mode of every segment.
        starts: Mode in force before each segment's first row.
    """

    def __init__(self, environment: TraceEnvironment, modes: list[Mode], starts: list[Mode]) -> None:
        self.ledger = Ledger(environment)
        self._price_ms = environment.costs.price.ms
        places = {mode: place for place, mode in enumerate(environment.modes)}
        # The mode of a run without rows may be none of the trace's.
        self._places = [places.get(mode, 0) for mode in modes]
        self._switches = [mode != start for mode, start in zip(modes, starts, strict=True)]

    def play(self, stretch: Stretch) -> None:
        """Take in the next rows."""
        segment, n = stretch.rows.segment, len(stretch)
        place = np.full(n, self._places[segment], dtype=np.int64)
        self.ledger.add(stretch, np.arange(n), place, np.ones(n))
        if self._switches[segment]:
            self._switches[segment] = False
            self.ledger.add_switches(stretch.bin[:1], self._price_ms)

    def finish(self) -> None:
        """Nothing is left over."""
