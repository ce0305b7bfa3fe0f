"""The load that engines are measured under, as a TOML file says it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
HASH_DIGITS = 12


class LoadError(Exception):
    """A load file that cannot be used; the message says where."""


class Lengths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lengths in tokens, smallest and largest."""

    prompt_tokens: tuple[Count, Count]
    output_tokens: tuple[Count, Count]


class Closed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clients that wait for their answers; `window_s` for each cell and contender, `passes` over all cells."""

    clients: tuple[Count, ...]
    window_s: Positive
    passes: Count


class Open(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bursty arrivals, at shares of the engine's saturation; times are means of exponential ones but `acceptance_s`."""

    rates: tuple[Positive, ...]
    seconds: Positive
    drain_s: Positive
    burst: Positive
    burst_s: Positive
    between_s: Positive
    acceptance_s: Positive
    max_clients: Count
    requests: Lengths


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Windows from which step times come, and the mode and time in which saturation is measured."""

    acceptance: str
    window_s: Positive
    saturation_steps: Count
    saturation_s: Positive


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The same work on two engines in turns, `pairs` times at each number of clients."""

    acceptance: str
    steps: Count
    clients: tuple[Count, ...]
    prompt_tokens: Count
    window_s: Positive
    pairs: Count


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of the file. `acceptance` is by label: probabilities by draft position, the last for all further ones."""

    seed: int
    acceptance: dict[str, Annotated[tuple[Share, ...], msgspec.Meta(min_length=1)]]
    requests: Lengths
    closed: Closed
    open: Open
    calibration: Calibration
    price: Price

    @property
    def hash(self) -> str:
        """Tells loads apart; comments and layout of the file do not count."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:HASH_DIGITS]

    @property
    def labels(self) -> tuple[str, ...]:
        """The acceptances, in the order in which the plugin numbers them."""
        return tuple(self.acceptance)

    def probabilities(self, label: str, depth: int) -> list[float]:
        """By draft position, for `depth` drafts."""
        given = self.acceptance[label]
        return [given[min(i, len(given) - 1)] for i in range(depth)]


def read_load(path: Path) -> Load:
    """The load in this file; `LoadError` names what is wrong."""
    try:
        load = msgspec.toml.decode(path.read_bytes(), type=Load)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LoadError(f"{path}: {error}") from error
    for table, label in (("calibration", load.calibration.acceptance), ("price", load.price.acceptance)):
        if label not in load.acceptance:
            raise LoadError(f"{path}: {table}.acceptance is {label!r}; there are: {', '.join(load.acceptance)}")
    for name, lengths in (("requests", load.requests), ("open.requests", load.open.requests)):
        for key in ("prompt_tokens", "output_tokens"):
            low, high = getattr(lengths, key)
            if low > high:
                raise LoadError(f"{path}: {name}.{key} must go from small to large, is {low}, {high}")
    return load
