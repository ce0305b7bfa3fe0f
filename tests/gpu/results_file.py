"""Results: one JSON object a line, each complete in itself, so that runs can end anywhere and files can be joined.

Every record says for what it holds (`key`): card, version of SGLang, model, attention backend and load. Records of one
key belong into one table, from however many files, machines and days.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# What tells records of one key apart; a later one with the same goes before an earlier one.
IDENTITY = {
    "engine": ("engine", "started_at"),
    "calibration": (),
    "closed": ("cell", "contender"),
    "open": ("rate", "contender"),
    "price": ("condition", "clients"),
}
# Kinds that stay what they are when a policy is mended.
LASTING = ("engine", "calibration")
PREFIX = "results"


@dataclass(frozen=True, order=True)
class Key:
    """What results hold for."""

    card: str
    sglang: str
    model: str
    backend: str
    load: str

    def __str__(self) -> str:
        return f"{self.model} on {self.card}, SGLang {self.sglang}, {self.backend}, load {self.load}"


class ResultsError(Exception):
    """A results file that cannot be read; the message says where."""


class Results:
    """The records of one key so far, and the file that further ones go to.

    Args:
        key: Only its records count.
        path: Where new ones go.
        earlier: Files and folders with records of earlier runs.
        since: Windows of before that time (UTC, as in the records' `at`) do not count; empty for all.
        about: What every new record says besides: command and so on.
    """

    def __init__(
        self, key: Key, path: Path, earlier: Iterable[Path], about: Mapping[str, Any], since: str = ""
    ) -> None:
        self._key, self._path, self._about = key, path, about
        known = merged(read_all([*earlier, path.parent])).get(key, {})
        self._found = {
            place: record for place, record in known.items() if place[0] in LASTING or str(record["at"]) >= since
        }

    def add(self, kind: str, record: Mapping[str, Any]) -> None:
        """Append a record; it is on the disk when this returns."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        full = {"kind": kind, "key": asdict(self._key), "at": at, **self._about, **record}
        with self._path.open("a") as file:
            file.write(json.dumps(full) + "\n")
        self._found[identity(full)] = full

    def get(self, kind: str, **fields: Any) -> dict[str, Any] | None:
        """The newest record of this kind with these fields, or None."""
        return self._found.get((kind, *(fields[name] for name in IDENTITY[kind])))

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Every record of this kind."""
        return [record for (of, *_), record in self._found.items() if of == kind]

    def done(self, kind: str, **fields: Any) -> bool:
        """Whether there is one."""
        return self.get(kind, **fields) is not None


def identity(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Kind and place of a record."""
    return (record["kind"], *(record[name] for name in IDENTITY[record["kind"]]))


def read_all(places: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Every record in these files and folders; a last line that was cut off is left out."""
    for place in places:
        for path in sorted(place.rglob(f"{PREFIX}*.jsonl")) if place.is_dir() else [place]:
            yield from _read(path)


def _read(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text().split("\n")
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror or error}") from error
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            record = json.loads(line)
            identity(record)
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                return
            raise ResultsError(f"{path}:{number}: is no result ({error!r})") from error
        yield record


def merged(records: Iterable[dict[str, Any]]) -> dict[Key, dict[tuple[Any, ...], dict[str, Any]]]:
    """By key, then by identity; of several with one identity the newest."""
    found: dict[Key, dict[tuple[Any, ...], dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: str(record.get("at", ""))):
        found.setdefault(Key(**record["key"]), {})[identity(record)] = record
    return found
