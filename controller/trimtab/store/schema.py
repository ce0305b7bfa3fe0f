"""The journal as a SQLite file: its tables, and whether a file is one.

    meta      `pruned_through`: entries up to here were pruned; of these only those that a restart needs are left
    runs      one row a run of the daemon; `ended_wall_ns` is null while it lives, and for ever if it died
    profiles  cost profiles that sessions were given, as JSON
    entries   one row for everything that happened

`entries.seq` counts without a gap what happened, and is given at the moment that it happens. A number that is missing
after `pruned_through` is an entry that was lost: the queue was full, or the run died (then one number at least is
missing). `engine_seq` counts in the same way within a run and an engine. `payload` is described in `content.py`; with
`packed` 1 it is compressed with zlib. `now_ns` is the monotonic clock of the host, `wall_ns` the time since the epoch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trimtab.errors import DataError
from trimtab.store.entries import LANDMARKS

FILE_NAME = "journal.db"
# "TRIM" as a number, in the header of the file.
APPLICATION_ID = 0x5452494D
# Version 1 knew neither shadows nor standing orders.
SCHEMA_VERSION = 2
PRUNED_THROUGH = "pruned_through"
MAGIC = b"SQLite format 3\x00"
LANDMARK_LIST = ", ".join(f"'{kind}'" for kind in sorted(LANDMARKS))
# What a restarted daemon looks for, engine by engine. Rows of reports are many and are read in order.
LANDMARKS_INDEX = f"CREATE INDEX landmarks ON entries (engine, kind, seq) WHERE kind IN ({LANDMARK_LIST})"
TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE runs (run INTEGER PRIMARY KEY, started_wall_ns INTEGER NOT NULL, started_ns INTEGER NOT NULL,"
    " boot_id TEXT NOT NULL, version TEXT NOT NULL, settings TEXT NOT NULL, ended_wall_ns INTEGER)",
    "CREATE TABLE profiles (id TEXT PRIMARY KEY, content TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE entries (seq INTEGER PRIMARY KEY, run INTEGER NOT NULL, engine TEXT NOT NULL,"
    " engine_seq INTEGER NOT NULL, kind TEXT NOT NULL, now_ns INTEGER NOT NULL, wall_ns INTEGER NOT NULL,"
    " packed INTEGER NOT NULL, payload BLOB NOT NULL)",
    LANDMARKS_INDEX,
    f"INSERT INTO meta VALUES ('{PRUNED_THROUGH}', 0)",
)


class ForeignFileError(DataError):
    """A file that is no journal, or one of a newer Trimtab. Nobody touches it."""


def check_header(path: Path) -> None:
    """Raise `ForeignFileError` if the file is there, is not empty, and is no SQLite file at all."""
    with path.open("rb") as file:
        head = file.read(len(MAGIC))
    if head and head != MAGIC:
        raise ForeignFileError(str(path), "is no journal of Trimtab")


def check_schema(path: Path, db: sqlite3.Connection) -> bool:
    """Whether the tables are there; False for a file in which nothing is yet.

    Raises:
        ForeignFileError: The tables are somebody else's, or a newer Trimtab's.
    """
    application, version = pragma(db, "application_id"), pragma(db, "user_version")
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not tables:
        return False
    if application != APPLICATION_ID:
        raise ForeignFileError(str(path), "is no journal of Trimtab")
    if version > SCHEMA_VERSION:
        raise ForeignFileError(
            str(path), f"is a journal of a newer Trimtab (schema {version}, this one reads {SCHEMA_VERSION})"
        )
    return True


def create(db: sqlite3.Connection) -> None:
    """Make the tables, all of them or none."""
    with transaction(db):
        for statement in TABLES:
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def upgrade(db: sqlite3.Connection) -> None:
    """Bring the tables of an older Trimtab up to date; nothing in them is lost."""
    if pragma(db, "user_version") >= SCHEMA_VERSION:
        return
    with transaction(db):
        db.execute("DROP INDEX IF EXISTS landmarks")
        db.execute(LANDMARKS_INDEX)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """A block that is written as a whole or not at all."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # Some errors have ended the transaction already.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def pragma(db: sqlite3.Connection, name: str) -> int:
    """The number that this pragma answers."""
    (value,) = db.execute(f"PRAGMA {name}").fetchone()
    return int(value)
