"""Reads a journal, also while a daemon writes it: entries by engine, kind and time, in bounded memory.

    with Journal(path) as journal:
        for engine in journal.engines():
            for entry in journal.entries(engine, {Kind.HELLO, Kind.REPORT, Kind.LEASE}):
                ...

Nothing is changed on disk. Every error is a `DataError` that names the file.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from trimtab.errors import DataError
from trimtab.session.profiles import KeyedProfile
from trimtab.store.content import read_profile_content
from trimtab.store.entries import Entry, Kind
from trimtab.store.schema import FILE_NAME, PRUNED_THROUGH, check_header, check_schema

# Entries read in one go; a reader that stays on one page of the file would keep the daemon from tidying up.
CHUNK = 256
BUSY_S = 5.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the daemon. `ended_wall_ns` None: it lives, or it died.

    Attributes:
        number: Counts from 1.
        boot_id: The host's, new whenever the machine starts: monotonic clocks of one boot can be compared.
        version: Trimtab's.
        settings: The daemon's settings, as JSON.
    """

    number: int
    started_wall_ns: int
    started_ns: int
    boot_id: str
    version: str
    settings: str
    ended_wall_ns: int | None


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries that are missing: `lost` of them after entry `after`. `died`: the run ended there, so how many is not
    known."""

    after: int
    lost: int
    run: int
    died: bool


class Journal:
    """One journal file, open for reading; entries that are written later are not seen.

    Args:
        path: The file, or the directory that it is in.

    Attributes:
        pruned_through: Entries up to this number were pruned, except for what a restart needs.
        last_seq: Number of the newest entry; 0 if there is none.

    Raises:
        DataError: There is no such file, or it is no journal that can be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / FILE_NAME if path.is_dir() else path
        self._placed = False
        with self._explained():
            check_header(self.path)
            self._still = not self._log.exists()
            self._db = _open(self.path, self._still)
        try:
            with self._explained():
                if not check_schema(self.path, self._db):
                    raise DataError(str(self.path), "is an empty journal: no daemon has written to it yet")
                self.pruned_through = self._number("SELECT value FROM meta WHERE key = ?", PRUNED_THROUGH)
                self.last_seq = self._number("SELECT coalesce(max(seq), 0) FROM entries")
        except DataError:
            self._db.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def runs(self) -> list[Run]:
        """Every run of which there are entries, the oldest first."""
        with self._explained():
            rows = self._db.execute(
                "SELECT run, started_wall_ns, started_ns, boot_id, version, settings, ended_wall_ns FROM runs"
                " ORDER BY run"
            )
            return [Run(*row) for row in rows]

    def engines(self) -> list[str]:
        """Every engine of which there are entries, by name."""
        self._place()
        with self._explained():
            return [name for (name,) in self._db.execute("SELECT DISTINCT engine FROM place WHERE engine != ''")]

    def count(self, engine: str | None = None) -> int:
        """Number of entries, or of one engine's."""
        self._place()
        with self._explained():
            if engine is None:
                return self._number("SELECT count(*) FROM place")
            return self._number("SELECT count(*) FROM place WHERE engine = ?", engine)

    def entries(
        self,
        engine: str | None = None,
        kinds: Collection[Kind] | None = None,
        since_wall_ns: int | None = None,
        until_wall_ns: int | None = None,
    ) -> Iterator[Entry]:
        """Entries in the order in which they happened.

        Args:
            engine: Only this engine's; None: all, and those of no single engine.
            kinds: Only these.
            since_wall_ns: Only what happened at this wall time or later.
            until_wall_ns: Only what happened before this wall time.
        """
        counted: dict[tuple[int, str], int] = {}
        wanted = frozenset(Kind if kinds is None else kinds)
        for row in self._rows(engine, wanted):
            seq, run, name, engine_seq, kind, now_ns, wall_ns, packed, payload = row
            missing = engine_seq - counted.get((run, name), 0) - 1
            counted[run, name] = engine_seq
            if kind not in wanted or not _within(wall_ns, since_wall_ns, until_wall_ns):
                continue
            yield Entry(
                seq,
                run,
                name,
                missing,
                Kind(kind),
                now_ns,
                wall_ns,
                unpacked(f"{self.path}, entry {seq}", packed, payload),
            )

    def gaps(self) -> list[Gap]:
        """Where entries were lost, the oldest gap first; what was pruned is no gap."""
        with self._explained():
            rows = self._db.execute(
                "SELECT last, seq - last - 1, run, next_run != run FROM (SELECT seq, run AS next_run,"
                " lag(seq, 1, ?1) OVER (ORDER BY seq) AS last, lag(run, 1, run) OVER (ORDER BY seq) AS run"
                " FROM entries WHERE seq > ?1 AND seq <= ?2) WHERE seq > last + 1",
                (self.pruned_through, self.last_seq),
            )
            return [Gap(after, lost, run, bool(died)) for after, lost, run, died in rows]

    def profile(self, profile_id: str) -> KeyedProfile:
        """The cost profile with this id.

        Raises:
            DataError: It is not there.
        """
        with self._explained():
            row = self._db.execute("SELECT content FROM profiles WHERE id = ?", (profile_id,)).fetchone()
        if row is None:
            raise DataError(str(self.path), f"lacks the profile {profile_id}")
        return read_profile_content(row[0])

    # -- inside ----------------------------------------------------------------------------------

    @property
    def _log(self) -> Path:
        """The write-ahead log: it is there while a daemon writes, and after one that died."""
        return self.path.with_name(f"{self.path.name}-wal")

    def _check_still(self) -> None:
        if self._still and self._log.exists():
            raise DataError(str(self.path), "a daemon began to write it in the meantime: read it again")

    def _rows(self, engine: str | None, wanted: frozenset[Kind]) -> Iterator[tuple[Any, ...]]:
        listed = ", ".join(f"'{kind}'" for kind in wanted)
        columns = (
            "e.seq, e.run, e.engine, e.engine_seq, e.kind, e.now_ns, e.wall_ns, e.packed,"
            f" CASE WHEN e.kind IN ({listed}) THEN e.payload ELSE x'' END"
        )
        source = "entries e WHERE e.seq > ? AND e.seq <= ?"
        if engine is not None:
            self._place()
            source = "place p JOIN entries e ON e.seq = p.seq WHERE p.seq > ? AND p.seq <= ? AND p.engine = ?"
        order, more = ("e.seq", ()) if engine is None else ("p.seq", (engine,))
        last, found = -1, CHUNK
        while found == CHUNK:
            found = 0
            self._check_still()
            with self._explained():
                chunk = self._db.execute(
                    f"SELECT {columns} FROM {source} ORDER BY {order} LIMIT {CHUNK}", (last, self.last_seq, *more)
                ).fetchall()
            for row in chunk:
                found, last = found + 1, row[0]
                yield row

    def _place(self) -> None:
        """List each engine's entries, once, in a temporary table: the file has no index for this."""
        if self._placed:
            return
        with self._explained():
            self._db.execute(
                "CREATE TEMP TABLE place (engine TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (engine, seq))"
                " WITHOUT ROWID"
            )
            self._db.execute(
                "INSERT INTO place SELECT engine, seq FROM entries WHERE seq <= ? ORDER BY engine, seq",
                (self.last_seq,),
            )
        self._placed = True

    def _number(self, query: str, *values: object) -> int:
        (number,) = self._db.execute(query, values).fetchone()
        return int(number)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise DataError(str(self.path), "does not exist") from error
        except OSError as error:
            raise DataError(str(self.path), f"cannot be read: {error.strerror or error}") from error
        except sqlite3.DatabaseError as error:
            raise DataError(str(self.path), f"cannot be read as a journal: {error}") from error


def _open(path: Path, still: bool) -> sqlite3.Connection:
    """The file for reading only. One that is `still`, since nobody writes it, is read as it lies there: SQLite would
    leave files of its own beside it otherwise.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if still else ''}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)


def _within(wall_ns: int, since_ns: int | None, until_ns: int | None) -> bool:
    return (since_ns is None or wall_ns >= since_ns) and (until_ns is None or wall_ns < until_ns)


def unpacked(place: str, packed: int, payload: bytes) -> bytes:
    """The payload as it was before it was compressed; `DataError` names the place if it is damaged."""
    if not packed or not payload:
        return payload
    try:
        return zlib.decompress(payload)
    except zlib.error as error:
        raise DataError(place, f"is damaged: {error}") from error
