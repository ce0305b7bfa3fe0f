"""How the daemon's log looks: lines for people, or JSON for programs. Always on stderr.

A line that says the same as one just before is left out; the next one of its kind says how many there were.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog

# A field that is not printed: this line is written however often it comes.
EVERY_ONE = "every_one"
SAME_WITHIN_S = 10.0
# Fields in which two lines may differ and still say the same: every connection has another port.
ASIDE = frozenset({"peer"})
MAX_KINDS = 1024

Event = MutableMapping[str, Any]


class Repeats:
    """Drops a line if one with the same fields was written within `SAME_WITHIN_S`.

    Args:
        now_s: A monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._written: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __call__(self, logger: object, method: str, event: Event) -> Event:
        """Pass the line on, with the number of those left out since; or drop it."""
        if event.pop(EVERY_ONE, False):
            return event
        kind, now_s = repr([(key, event[key]) for key in sorted(event) if key not in ASIDE]), self._now_s()
        written_s, left_out = self._written.get(kind, (-SAME_WITHIN_S, 0))
        if now_s - written_s < SAME_WITHIN_S:
            self._written[kind] = written_s, left_out + 1
            raise structlog.DropEvent
        self._written[kind] = now_s, 0
        self._written.move_to_end(kind)
        if len(self._written) > MAX_KINDS:
            self._written.popitem(last=False)
        if left_out:
            event["repeated"] = left_out
        return event


class Unfailing:
    """A stream whose writes may get lost: a log on a full disk is no reason to let go of an engine."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Bring out what can be brought out."""
        with suppress(OSError):
            self._stream.flush()


def configure_log(as_json: bool) -> None:
    """Set up structlog for this process: event, fields, time in UTC."""
    final: list[Any] = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)]
    if as_json:
        final = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            Repeats(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *final,
        ],
        logger_factory=structlog.PrintLoggerFactory(file=cast(TextIO, Unfailing(sys.stderr))),
        cache_logger_on_first_use=True,
    )
