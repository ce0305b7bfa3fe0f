"""A logger that does not repeat itself: what comes and goes all day would fill the engine's log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

WINDOW_S = 60.0
MAX_LINES = 64


class QuietLog:
    """Says the same line once in `WINDOW_S`; the next time it says how often it was held back.

    Args:
        logger: Where lines go.
        clock: Seconds, monotonic.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._said: dict[str, tuple[float, int]] = {}

    def info(self, message: str, *arguments: object) -> None:
        """A line for the record."""
        self._say(logging.INFO, message % arguments)

    def warning(self, message: str, *arguments: object) -> None:
        """A line to look at."""
        self._say(logging.WARNING, message % arguments)

    def _say(self, level: int, line: str) -> None:
        now_s = self._clock()
        since_s, held_back = self._said.get(line, (-WINDOW_S, 0))
        if now_s - since_s < WINDOW_S:
            self._said[line] = since_s, held_back + 1
            return
        if len(self._said) >= MAX_LINES:
            self._said.clear()
        self._said[line] = now_s, 0
        more = f" (and {held_back} times in the last {now_s - since_s:.0f} s)" if held_back else ""
        self._logger.log(level, "%s%s", line, more)
