"""How fast may one engine talk? One that says more is read more slowly, and flow control holds it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# At the shortest interval an engine sends 10 reports and about as many answers a second.
UNITS_PER_S = 200.0
BURST_UNITS = 400.0
ROWS_PER_UNIT = 100


class Pace:
    """A token bucket in units of work: a message is one, and every 100 rows are another."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._units = BURST_UNITS
        self._since_s = now_s()

    def debt_s(self, rows: int = 0) -> float:
        """Book one message with so many rows; seconds to wait before the next one."""
        now_s = self._now_s()
        self._units = min(BURST_UNITS, self._units + (now_s - self._since_s) * UNITS_PER_S)
        self._since_s = now_s
        self._units -= 1 + rows / ROWS_PER_UNIT
        return max(0.0, -self._units / UNITS_PER_S)

    async def keep(self, rows: int = 0) -> None:
        """Book one message and wait as long as it takes to be within the limit again."""
        await asyncio.sleep(self.debt_s(rows))
