"""The fuse: one exception of ours, and the engine's own policy rules until restart."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

logger = logging.getLogger("trimtab")


class Fuse:
    """Blows at most once, logs once, and calls `on_blow(reason)` once. Never raises.

    Attributes:
        blown: Whether it has blown. Hooks look at it first.
        reason: What happened; empty while it has not blown.
    """

    __slots__ = ("_on_blow", "blown", "reason")

    def __init__(self, on_blow: Callable[[str], None]) -> None:
        self.blown = False
        self.reason = ""
        self._on_blow = on_blow

    def blow(self, where: str, error: BaseException, hand_over: Callable[[str], None] | None = None) -> None:
        """Give up after `error` in `where`: from now on the plugin does nothing but get out of the way.

        `hand_over` takes the place of `on_blow` where another thread than the scheduler's gives up.
        """
        if self.blown:
            return
        self.blown = True
        self.reason = f"{where}: {type(error).__name__}: {error}"[:500]
        try:
            (hand_over or self._on_blow)(self.reason)
        except Exception:  # noqa: BLE001 - the scheduler thread comes first, whatever went wrong here
            self.reason += ", and handing over failed"
        with contextlib.suppress(Exception):
            logger.error("trimtab gave up, the engine's own policy rules: %s", self.reason, exc_info=error)
