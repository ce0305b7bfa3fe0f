"""How the daemon's log looks: lines for people, or JSON for programs. Always on stderr."""

from __future__ import annotations

import sys
from typing import Any

import structlog


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
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
