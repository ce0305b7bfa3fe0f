"""Lengths of time as operators write and read them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from trimtab.errors import TrimtabError

UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
SHORTEST_S, LONGEST_S = 1, 30 * UNIT_S["d"]


def parse_duration_s(text: str) -> float:
    """Seconds in `30s`, `10m`, `2h` or `1d`.

    Raises:
        TrimtabError: Anything else, nothing at all, under a second, or over 30 days.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text.strip())
    seconds = float(match[1]) * UNIT_S[match[2]] if match else 0.0
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise TrimtabError(f"--for {text!r} is not a length of time from 1s to 30d: write it as 30s, 10m, 2h or 1d")
    return seconds


def parse_time_ns(option: str, text: str, now_ns: int | None = None) -> int:
    """Nanoseconds since the epoch of a time such as `2026-11-30T14:00` (UTC unless it says otherwise), or `2h` ago.

    Raises:
        TrimtabError: Anything else; `option` is named.
    """
    ago = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text.strip())
    if ago:
        return (time.time_ns() if now_ns is None else now_ns) - int(float(ago[1]) * UNIT_S[ago[2]] * 1e9)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise TrimtabError(
            f"{option} {text!r} is no time: write it as 2026-11-30T14:00 (UTC), or as 2h for two hours ago"
        ) from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1e6) * 1000


def format_duration(seconds: float) -> str:
    """The two largest units that matter: `0.4s`, `42s`, `9m58s`, `2h05m`, `3d04h`."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f}s"
    whole = round(seconds)
    if whole < UNIT_S["m"]:
        return f"{whole}s"
    if whole < UNIT_S["h"]:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < UNIT_S["d"]:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"
