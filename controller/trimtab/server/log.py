"""How the daemon's log looks: lines for people, or JSON for programs. Always on stderr."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog


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
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *final,
        ],
        logger_factory=structlog.PrintLoggerFactory(file=cast(TextIO, Unfailing(sys.stderr))),
        cache_logger_on_first_use=True,
    )
