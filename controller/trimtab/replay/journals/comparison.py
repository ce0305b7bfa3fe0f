"""Where do two values differ first? Decoded contents of journal entries, floats to 1e-9."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

TOLERANCE = 1e-9
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One place in which two values differ. None stands for a value that is not there as well."""

    field: str
    recorded: Any
    replayed: Any


def first_mismatch(recorded: Any, replayed: Any) -> Mismatch | None:
    """The first place, in the order of the recorded value, in which the two differ; None if they are the same.

    Mappings are compared by key, sequences by position, floats to 1e-9, relative or absolute.
    """
    return next(_mismatches("", recorded, replayed), None)


def _mismatches(field: str, recorded: Any, replayed: Any) -> Iterator[Mismatch]:
    if isinstance(recorded, dict) and isinstance(replayed, dict) and not _is_mode(recorded):
        yield from _in_mappings(field, recorded, replayed)
    elif isinstance(recorded, list | tuple) and isinstance(replayed, list | tuple):
        for i, (old, new) in enumerate(zip_longest(recorded, replayed, fillvalue=_NOTHING)):
            yield from _mismatches(f"{field}[{i}]", old, new)
    elif not _same(recorded, replayed):
        yield Mismatch(field, _shown(recorded), _shown(replayed))


def _in_mappings(field: str, recorded: dict[str, Any], replayed: dict[str, Any]) -> Iterator[Mismatch]:
    for key in [*recorded, *(key for key in replayed if key not in recorded)]:
        old, new = recorded.get(key, _NOTHING), replayed.get(key, _NOTHING)
        yield from _mismatches(f"{field}.{key}" if field else key, old, new)


def _same(recorded: Any, replayed: Any) -> bool:
    if isinstance(recorded, float) and isinstance(replayed, float | int):
        return math.isclose(recorded, replayed, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(recorded == replayed)


def _is_mode(value: dict[str, Any]) -> bool:
    return value.keys() == {"kind", "steps"}


def _shown(value: Any) -> Any:
    if value is _NOTHING:
        return None
    if isinstance(value, dict) and _is_mode(value):
        return f"{value['kind']}({value['steps']})" if value["steps"] else value["kind"]
    return value
