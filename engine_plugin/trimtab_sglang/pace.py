"""How fast may the controller talk? One that says more is read more slowly, and flow control holds it back.

Every message costs the scheduler's process a turn of the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable

# At the shortest report interval a controller sends some 10 leases a second.
MESSAGES_PER_S = 20.0
BURST = 40.0


class Pace:
    """A token bucket of messages."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._left = BURST
        self._since_s = self._calm_at_s = now_s()

    def debt_s(self) -> float:
        """Book one message; seconds to wait before the next one is read."""
        now_s = self._now_s()
        self._left = min(BURST, self._left + (now_s - self._since_s) * MESSAGES_PER_S) - 1
        self._since_s = now_s
        if self._left > BURST / 2:
            self._calm_at_s = now_s
        return max(0.0, -self._left / MESSAGES_PER_S)

    @property
    def strained_s(self) -> float:
        """For how long the controller has been saying more than it should."""
        return self._since_s - self._calm_at_s
