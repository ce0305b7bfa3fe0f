"""How much and how large: the bounds of everything that comes from the wire, and the checks that keep them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from trimtab.errors import WireError

MAX_ROWS_PER_REPORT = 4096
MAX_MESSAGE_BYTES = 4 << 20
MAX_TEXT = 256
MAX_PATH = 1024
# An engine's id, and its data-parallel rank behind a slash.
MAX_ENGINE = MAX_TEXT + 8
MAX_LABELS = 64
MAX_MODES = 64
MAX_STEPS = 64
MAX_HOOKS = 256
MAX_GRAPH_SIZES = 1024
MAX_RANKS = 65_536
# Ranks of one engine that report what they chose: no host has more GPUs.
MAX_TEAM = 1024
MAX_REQUESTS = 1 << 20
# Serial numbers, clocks and token counts: room for centuries, and sums still fit 64 bits.
MAX_COUNT = 1 << 62
NS_PER_S = 1_000_000_000
# The end of the year 9999, as far as timestamps go.
MAX_SECONDS = 253_402_300_799


class WireLimitError(WireError):
    """A message that is larger than what `Welcome.limits` allows."""


def whole(field: str, value: int, high: int = MAX_COUNT, low: int = 0) -> int:
    """The number, if it is in `[low, high]`."""
    if not low <= value <= high:
        raise WireError(field, f"must be {low} to {high}, is {value}")
    return value


def name(field: str, value: str, limit: int = MAX_TEXT) -> str:
    """A text that identifies something: not empty, not too long, printable."""
    if not value:
        raise WireError(field, "is empty")
    return text(field, value, limit)


def text(field: str, value: str, limit: int = MAX_TEXT) -> str:
    """A text that is not too long and printable."""
    if len(value) > limit:
        raise WireError(field, f"has {len(value)} characters, at most {limit}")
    if not value.isprintable():
        raise WireError(field, "has characters that cannot be printed")
    return value


def clipped(value: str, limit: int = MAX_TEXT) -> str:
    """A text for people, on one line and cut to the limit: it never makes a message unusable."""
    line = "".join(c if c.isprintable() else " " for c in value[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "…"


def at_most(field: str, values: Any, limit: int) -> Any:
    """The collection, if it has no more than `limit` entries."""
    if len(values) > limit:
        raise WireError(field, f"has {len(values)} entries, at most {limit}")
    return values


def ascending(field: str, values: Iterable[int], high: int) -> tuple[int, ...]:
    """The numbers in ascending order, each once, if all are in `[1, high]`."""
    found = tuple(sorted(set(values)))
    if found and not 1 <= found[0] <= found[-1] <= high:
        raise WireError(field, f"must be within 1 to {high}")
    return found


def texts(field: str, values: Mapping[str, str]) -> dict[str, str]:
    """Labels: not too many, with short names and values."""
    at_most(field, values, MAX_LABELS)
    return {name(f"{field} key", key): text(f"{field}[{key}]", value) for key, value in values.items()}


def counters(field: str, values: Mapping[str, int]) -> dict[str, int]:
    """Counts by reason: not too many reasons, no absurd counts."""
    at_most(field, values, MAX_LABELS)
    return {name(f"{field} key", key): whole(f"{field}[{key}]", value) for key, value in values.items()}


def duration_s(field: str, value: Duration, low: float, high: float) -> float:
    """Seconds of a duration, if it is well formed and in `[low, high]`."""
    seconds = value.seconds + value.nanos / NS_PER_S
    if abs(value.nanos) >= NS_PER_S or not math.isfinite(seconds) or not low <= seconds <= high:
        raise WireError(field, f"must be {low:.9g} s to {high:.9g} s, is {seconds:.9g} s")
    return seconds


def moment_ns(field: str, value: Timestamp) -> int:
    """Nanoseconds since the epoch of a timestamp, if it is well formed and of this or the last centuries."""
    if not 0 <= value.nanos < NS_PER_S:
        raise WireError(field, f"has {value.nanos} nanoseconds beside its seconds")
    return whole(field, value.seconds, MAX_SECONDS) * NS_PER_S + value.nanos


def duration(seconds: float) -> Duration:
    """The duration of so many seconds."""
    message = Duration()
    message.FromNanoseconds(round(seconds * NS_PER_S))
    return message
