"""How fast may one peer talk? One that says more is read more slowly, and flow control holds it back."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar

# At the shortest interval an engine sends 10 reports and about as many answers a second.
UNITS_PER_S = 200.0
BURST_UNITS = 400.0
ROWS_PER_UNIT = 100
# So that 200 units a second are 2 MiB a second; the burst holds the largest message.
BYTES_PER_UNIT = 10_486
# Callers whose debts are remembered; the one that has been quiet longest is forgotten first.
MAX_CALLERS = 1024


class Pace:
    """A token bucket in units of work: a message is one, every 100 rows are another, and so are every 10 KiB."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._units = BURST_UNITS
        self._since_s = now_s()

    def debt_s(self, rows: int = 0, size: int = 0) -> float:
        """Book one message with so many rows and bytes; seconds to wait before the next one."""
        now_s = self._now_s()
        self._units = min(BURST_UNITS, self._units + (now_s - self._since_s) * UNITS_PER_S)
        self._since_s = now_s
        self._units -= 1 + rows / ROWS_PER_UNIT + size / BYTES_PER_UNIT
        return max(0.0, -self._units / UNITS_PER_S)

    @property
    def behind_s(self) -> float:
        """How long it will take until what was booked is within the limit again."""
        return max(0.0, -self._units / UNITS_PER_S - (self._now_s() - self._since_s))

    async def keep(self, rows: int = 0, size: int = 0) -> bool:
        """Book one message and wait as long as it takes to be within the limit again; whether that took any time."""
        debt_s = self.debt_s(rows, size)
        await asyncio.sleep(debt_s)
        return debt_s > 0


# The pace of the caller whose call runs in this task.
PACE: ContextVar[Pace | None] = ContextVar("pace", default=None)


class Paces:
    """The pace of every caller, by what it is known by. Callers that nothing tells apart share one.

    Args:
        now_s: A monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._of: OrderedDict[str, Pace] = OrderedDict()

    def of(self, caller: str) -> Pace:
        """The caller's pace, a fresh one if nothing is remembered of it."""
        pace = self._of.get(caller)
        if pace is None:
            pace = self._of[caller] = Pace(self._now_s)
        self._of.move_to_end(caller)
        if len(self._of) > MAX_CALLERS:
            self._of.popitem(last=False)
        return pace
