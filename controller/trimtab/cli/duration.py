"""Lengths of time as operators write and read them."""

from __future__ import annotations

import re

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
