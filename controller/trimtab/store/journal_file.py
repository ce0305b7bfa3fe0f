"""The journal's file as its one writer sees it: opened, numbered on, written a batch at a time, kept within bounds."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import structlog

from trimtab.errors import TrimtabError
from trimtab.store.entries import NEWEST_STATES, PACKED
from trimtab.store.pruning import Pruner
from trimtab.store.records import Record
from trimtab.store.schema import FILE_NAME, PRUNED_THROUGH, check_header, check_schema, create, transaction, upgrade

LOCK_NAME = "journal.lock"
OWNER_ONLY, DIRECTORY_OWNER_ONLY = 0o600, 0o700
PAGE_BYTES = 4096
# The write-ahead log is folded into the file at this share of the file's size, within these pages.
LOG_SHARE = 64
LOG_PAGES = (16, 1000)
# Below this zlib gains nothing.
WORTH_PACKING_BYTES = 128
PACK_LEVEL = 1
BUSY_S = 1.0
NEVER = 1 << 62
# SQLite's own codes for a file that cannot be trusted any more.
CORRUPT_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

Answer = TypeVar("Answer")

log = structlog.get_logger("trimtab")


class TakenError(TrimtabError):
    """Another daemon writes this journal."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a journal keeps."""

    max_bytes: int = 1 << 30
    max_age_s: float = 14 * 86_400.0


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is written down of a run of the daemon; see `reading.Run`."""

    started_wall_ns: int
    started_ns: int
    boot_id: str
    version: str
    settings: str


@dataclass(frozen=True, slots=True)
class Group:
    """What happened at one moment: entries that are written together or not at all.

    Attributes:
        number: Of the first of them, counted from 1 in this run; `engine_seq` likewise, of its engine's.
    """

    number: int
    engine: str
    engine_seq: int
    now_ns: int
    wall_ns: int
    records: Sequence[Record]


class JournalFile:
    """One journal that this process alone writes. Its errors are those of SQLite and of the operating system.

    Args:
        directory: Where the file is; made if it is not there.
        bounds: How much is kept.
        run: This run of the daemon.

    Attributes:
        profiles: The cost profiles of this run by id, as JSON; to be filled before they are spoken of.
        begun_anew: Times that a file was found unusable, or gone, and a new one was begun in its place.
    """

    def __init__(self, directory: Path, bounds: Bounds, run: RunFacts, profiles: Mapping[str, str]) -> None:
        self.path = directory / FILE_NAME
        self.begun_anew = 0
        self.profiles = dict(profiles)
        self.bounds = bounds
        self._facts = run
        self._lock: int | None = None
        self._db: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._log_identity: tuple[int, int] | None = None
        self._pruner: Pruner
        self._run = 0
        # What a number of this run lacks to be one of the file.
        self._offset: int | None = None

    @property
    def db(self) -> sqlite3.Connection:
        """The open file; it must be open."""
        assert self._db is not None
        return self._db

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._db is not None

    def open(self, first: int = 1) -> None:
        """Open or make the file; entries from number `first` of this run on are to come.

        A file that is damaged is moved aside.

        Raises:
            TakenError: Another daemon writes it.
            ForeignFileError: It is no journal, or one of a newer Trimtab.
            OSError, sqlite3.Error: It cannot be used at present.
        """
        self._make_directory()
        self._take_lock()
        try:
            with self._closed_on_error():
                self._attach(first)
        except sqlite3.DatabaseError as error:
            if not is_corrupt(error):
                raise
            with self._closed_on_error():
                self._attach(first)

    def write(self, groups: Sequence[Group], wall_ns: int) -> None:
        """Write these groups and keep the bounds, all at once. After an error the file is closed."""
        with self._closed_on_error():
            self._check_identity(groups[0].number)
            with transaction(self.db):
                rows = [row for group in groups for row in self._rows(group)]
                self.db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
                self._pruner.added((row[2], row[0]) for row in rows if row[4] in NEWEST_STATES)
                self._pruner.prune(wall_ns, rows[0][0])
            self._pruner.shrink()

    def tidy(self, wall_ns: int) -> None:
        """Delete what became too old, also where nothing is written any more. After an error the file is closed."""
        with self._closed_on_error(), transaction(self.db):
            self._pruner.prune(wall_ns, NEVER)
            self._pruner.prune_kept(wall_ns)

    def end_run(self, wall_ns: int) -> None:
        """This run ends in good order: nothing of it is missing."""
        self.db.execute("UPDATE runs SET ended_wall_ns = ? WHERE run = ?", (wall_ns, self._run))

    def read(self, action: Callable[[sqlite3.Connection], Answer], otherwise: Answer) -> Answer:
        """What the action finds in the open file; `otherwise` if the file turns out to be damaged, and is begun anew.

        Raises:
            sqlite3.Error: The file cannot be read at present.
        """
        try:
            with self._closed_on_error():
                return action(self.db)
        except sqlite3.DatabaseError as error:
            if not is_corrupt(error):
                raise
            self._attach(1)
            return otherwise

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """After an error the file is opened afresh; one that is damaged is moved aside."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.Error) and is_corrupt(error):
                self._move_aside(str(error))
            raise

    def close(self) -> None:
        """Close the file; the lock stays."""
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def release(self) -> None:
        """Close the file and let others write it."""
        self.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def size_bytes(self) -> int:
        """What the file and its write-ahead log take on the disk."""
        return sum(_size(Path(f"{self.path}{suffix}")) for suffix in ("", "-wal"))

    def oldest_wall_ns(self) -> int | None:
        """When the oldest entry was written that is not only kept for a restart; None without one."""
        row = self.db.execute(
            "SELECT wall_ns FROM entries WHERE seq > ? ORDER BY seq LIMIT 1", (self._pruner.through,)
        ).fetchone()
        return None if row is None else int(row[0])

    # -- opening ---------------------------------------------------------------------------------

    def _make_directory(self) -> None:
        self.path.parent.mkdir(mode=DIRECTORY_OWNER_ONLY, parents=True, exist_ok=True)

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        lock = os.open(
            self.path.with_name(LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, OWNER_ONLY
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise TakenError(str(self.path)) from error
        self._lock = lock

    def _attach(self, first: int) -> None:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY))
        check_header(self.path)
        self._db = db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        known = check_schema(self.path, db)
        self._configure(db, known)
        if known:
            upgrade(db)
        else:
            create(db)
        self._begin_run(db, first)
        self._pruner = Pruner(db, self.bounds.max_bytes - 2 * self._log_pages * PAGE_BYTES, self.bounds.max_age_s)
        self._identity, self._log_identity = _identity_of(self.path), _identity_of(self._log_path)

    def _configure(self, db: sqlite3.Connection, known: bool) -> None:
        if not known:
            db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL").fetchone()
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA wal_autocheckpoint = {self._log_pages}").fetchone()
        db.execute(f"PRAGMA journal_size_limit = {self._log_pages * PAGE_BYTES}").fetchone()

    @property
    def _log_path(self) -> Path:
        return Path(f"{self.path}-wal")

    @property
    def _log_pages(self) -> int:
        low, high = LOG_PAGES
        return max(low, min(high, self.bounds.max_bytes // LOG_SHARE // PAGE_BYTES))

    def _begin_run(self, db: sqlite3.Connection, first: int) -> None:
        """Go on numbering, with one number left out where the last run died: nobody knows how many it lost."""
        anew = self._offset is not None
        if anew and self._is_ours(db):
            return
        (last,) = db.execute("SELECT coalesce(max(seq), 0) FROM entries").fetchone()
        newest = db.execute("SELECT ended_wall_ns FROM runs ORDER BY run DESC LIMIT 1").fetchone()
        died = newest is not None and newest[0] is None
        self._offset = last + died if self._offset is None else max(self._offset, last + 1 - first)
        with transaction(db):
            self._insert_run(db)
            if anew and not last:
                # A new file in the middle of a run: what came before is not lost, it is in the other file.
                through = self._offset + first - 1
                db.execute("UPDATE meta SET value = ? WHERE key = ?", (through, PRUNED_THROUGH))
        self.begun_anew += anew

    def _insert_run(self, db: sqlite3.Connection) -> None:
        facts = self._facts
        cursor = db.execute(
            "INSERT INTO runs (started_wall_ns, started_ns, boot_id, version, settings) VALUES (?, ?, ?, ?, ?)",
            (facts.started_wall_ns, facts.started_ns, facts.boot_id, facts.version, facts.settings),
        )
        self._run = cursor.lastrowid or 0
        db.executemany("INSERT OR IGNORE INTO profiles VALUES (?, ?)", self.profiles.items())

    def _is_ours(self, db: sqlite3.Connection) -> bool:
        """Whether this run has begun in this file before."""
        facts = self._facts
        row = db.execute("SELECT started_wall_ns, started_ns FROM runs WHERE run = ?", (self._run,)).fetchone()
        return bool(row == (facts.started_wall_ns, facts.started_ns))

    def _move_aside(self, why: str) -> None:
        """Nothing is deleted: somebody may want to look at it."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        aside = self.path.with_name(f"{FILE_NAME}.damaged-{stamp}-{os.getpid()}")
        for suffix in ("", "-wal", "-shm"):
            with_suffix = Path(f"{self.path}{suffix}")
            if with_suffix.exists():
                with_suffix.rename(f"{aside}{suffix}")
        log.warning("journal_damaged", path=str(self.path), moved_to=str(aside), why=why)

    def _check_identity(self, first: int) -> None:
        """Begin anew if somebody moved or deleted the file: what is written to it would be seen by nobody."""
        if self._db is not None and _identity_of(self.path) == self._identity:
            return
        if self._db is not None:
            log.warning("journal_gone", path=str(self.path))
            self._let_go()
        self.open(first)

    def _let_go(self) -> None:
        """Leave the file that was moved complete, and nothing of it beside the new one."""
        with suppress(sqlite3.Error):
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        # The lock may be in a directory that was moved as well.
        self.release()
        if self._log_identity is not None and _identity_of(self._log_path) == self._log_identity:
            for suffix in ("-wal", "-shm"):
                Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    # -- writing ---------------------------------------------------------------------------------

    def _rows(self, group: Group) -> list[tuple[int, int, str, int, str, int, int, int, bytes]]:
        rows = []
        for i, (kind, payload) in enumerate(group.records):
            packed = kind in PACKED and len(payload) > WORTH_PACKING_BYTES
            content = zlib.compress(payload, PACK_LEVEL) if packed else payload
            seq = (self._offset or 0) + group.number + i
            rows.append((
                seq, self._run, group.engine, group.engine_seq + i, str(kind), group.now_ns, group.wall_ns,
                int(packed), content,
            ))  # fmt: skip
        return rows


def is_corrupt(error: sqlite3.Error) -> bool:
    """Whether the file itself is damaged."""
    return primary_code(error) in CORRUPT_CODES


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's code of an error without its refinement; 0 if it has none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
