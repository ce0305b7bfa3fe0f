"""Single key presses from a terminal."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from types import TracebackType


class Keyboard:
    """Hands out key presses without waiting for Return; the terminal is as before afterwards.

    Without a terminal there are no keys, and `pressed` only waits.
    """

    def __enter__(self) -> Keyboard:
        self._fd = sys.stdin.fileno() if sys.stdin.isatty() else -1
        if self._fd >= 0:
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def pressed(self, timeout_s: float) -> str:
        """The key pressed within this time, or an empty string."""
        if self._fd < 0:
            time.sleep(timeout_s)
            return ""
        ready, _, _ = select.select([self._fd], [], [], timeout_s)
        return sys.stdin.read(1) if ready else ""
