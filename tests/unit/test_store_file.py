"""How a journal's file is opened, shared, and begun anew; what is not ours is left alone."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from support.journals import FACTS, WALL_NS, Bare, note, rows_of
from trimtab.store.entries import Kind
from trimtab.store.journal_file import Bounds, JournalFile, RunFacts, TakenError
from trimtab.store.reading import Journal
from trimtab.store.schema import APPLICATION_ID, ForeignFileError

ACK = (Kind.ACK, b"yes")
LARGE = (Kind.ACK, os.urandom(4000))


def numbers(path: Path) -> list[int]:
    with Journal(path) as journal:
        return [entry.seq for entry in journal.entries()]


def damaged(directory: Path) -> list[Path]:
    return sorted(directory.glob("journal.db.damaged-*"))


def test_a_new_journal_is_the_daemons_alone(tmp_path: Path) -> None:
    bare = Bare(tmp_path / "new" / "state")
    bare.add(ACK)
    for name in ("journal.db", "journal.db-wal", "journal.lock"):
        assert stat.S_IMODE((tmp_path / "new" / "state" / name).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new" / "state").stat().st_mode) == 0o700
    bare.close()
    assert sorted(os.listdir(tmp_path / "new" / "state")) == ["journal.db", "journal.lock"]


def test_numbers_go_on_where_the_last_run_ended(tmp_path: Path) -> None:
    for _ in range(3):
        bare = Bare(tmp_path)
        bare.add(ACK, ACK)
        bare.close()
    assert numbers(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_two_daemons_never_write_one_journal(tmp_path: Path) -> None:
    first = Bare(tmp_path)
    with pytest.raises(TakenError):
        Bare(tmp_path)
    first.add(ACK)
    first.close()
    Bare(tmp_path).close()


@pytest.mark.parametrize("content", [b"my notes", b"SQLite format 2\x00", bytes(5000)])
def test_another_programs_file_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(content)
    with pytest.raises(ForeignFileError, match="is no journal of Trimtab"):
        Bare(tmp_path)
    assert path.read_bytes() == content


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    rows_of(path, "CREATE TABLE mine (a)")
    before = path.read_bytes()
    with pytest.raises(ForeignFileError, match="is no journal of Trimtab"):
        Bare(tmp_path)
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["journal.db", "journal.lock"]


def test_a_newer_versions_journal_is_left_alone(tmp_path: Path) -> None:
    Bare(tmp_path).close()
    rows_of(tmp_path / "journal.db", "PRAGMA user_version = 3")
    before = (tmp_path / "journal.db").read_bytes()
    with pytest.raises(ForeignFileError, match=r"is a journal of a newer Trimtab \(schema 3, this one reads 2\)"):
        Bare(tmp_path)
    assert (tmp_path / "journal.db").read_bytes() == before


def test_an_older_versions_journal_is_brought_up_to_date_and_keeps_what_is_in_it(tmp_path: Path) -> None:
    path, index = tmp_path / "journal.db", "SELECT sql FROM sqlite_schema WHERE name = 'landmarks'"
    bare = Bare(tmp_path)
    bare.add((Kind.CHECKPOINT, b"{}"))
    bare.close()
    (wanted,) = rows_of(path, index)
    rows_of(path, "DROP INDEX landmarks")
    rows_of(path, "CREATE INDEX landmarks ON entries (engine, kind, seq) WHERE kind IN ('checkpoint', 'resumed')")
    rows_of(path, "PRAGMA user_version = 1")

    Bare(tmp_path).close()

    assert rows_of(path, index) == [wanted]
    assert rows_of(path, "PRAGMA user_version") == [(2,)]
    assert rows_of(path, "SELECT seq, kind FROM entries") == [(1, "checkpoint")]


def test_a_file_in_which_nothing_is_yet_is_begun(tmp_path: Path) -> None:
    """As `kill -9` leaves it between the first page and the tables."""
    db = sqlite3.connect(tmp_path / "journal.db")
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    assert (tmp_path / "journal.db").stat().st_size > 0
    bare = Bare(tmp_path)
    bare.add(ACK)
    bare.close()
    assert rows_of(tmp_path / "journal.db", "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert damaged(tmp_path) == []


EARLIER = replace(FACTS, started_wall_ns=WALL_NS - 5)


def filled(directory: Path, entries: int = 60) -> Path:
    bare = Bare(directory, facts=EARLIER)
    bare.write([bare.group(LARGE, at_s=i) for i in range(entries)])
    bare.close()
    return directory / "journal.db"


def test_a_damaged_file_is_moved_aside_and_a_new_one_begun(tmp_path: Path) -> None:
    path = filled(tmp_path)
    os.truncate(path, path.stat().st_size // 2)
    half = path.read_bytes()
    bare = Bare(tmp_path)
    bare.add(ACK)
    bare.close()

    (aside,) = damaged(tmp_path)
    assert aside.read_bytes() == half
    assert numbers(tmp_path) == [1]


def test_a_file_that_turns_out_to_be_damaged_while_it_is_read_is_moved_aside(tmp_path: Path) -> None:
    filled(tmp_path)
    bare = Bare(tmp_path)

    def read(db: sqlite3.Connection) -> str:
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    assert bare.file.read(read, "nothing") == "nothing"
    bare.add(ACK)
    bare.close()
    assert len(damaged(tmp_path)) == 1
    assert numbers(tmp_path) == [61]
    with Journal(tmp_path) as journal:
        assert journal.gaps() == []


def test_a_file_that_is_damaged_while_it_is_written_is_moved_aside_and_nothing_that_waits_is_lost(
    tmp_path: Path,
) -> None:
    path = filled(tmp_path)
    bare = Bare(tmp_path)
    bare.add(note("before"))
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    # SQLite must look at the disk again.
    bare.file.db.execute("PRAGMA cache_size = 0")
    group = bare.group(note("after"))
    for _ in range(3):
        try:
            bare.write([group])
        except sqlite3.DatabaseError:
            continue
        break
    bare.close()

    assert len(damaged(tmp_path)) >= 1
    with Journal(tmp_path) as journal:
        assert [entry.payload for entry in journal.entries()] == [b"after"]
        assert journal.gaps() == []
        assert [run.ended_wall_ns is None for run in journal.runs()] == [False]


@pytest.mark.parametrize("how", ["deleted", "moved", "moved with its directory", "replaced by an older one"])
def test_a_file_that_somebody_takes_away_is_begun_anew_and_numbers_go_on(tmp_path: Path, how: str) -> None:
    state, other = tmp_path / "state", tmp_path / "other"
    filled(other, entries=3)
    bare = Bare(state)
    bare.add(note("one"), note("two"))
    path = state / "journal.db"
    if how == "deleted":
        path.unlink()
    elif how == "moved with its directory":
        state.rename(tmp_path / "elsewhere")
        Bare(tmp_path / "elsewhere" / "another").close()
    else:
        path.rename(tmp_path / "moved.db")
    if how == "replaced by an older one":
        shutil.copy(other / "journal.db", path)
    bare.add(note("three"))
    bare.add(note("four"))
    with pytest.raises(TakenError):
        Bare(state)
    bare.close()

    with Journal(state) as journal:
        entries = [(entry.seq, entry.payload) for entry in journal.entries(kinds={Kind.NOTE})]
        assert journal.gaps() == []
    assert entries == ([(4, b"three"), (5, b"four")] if "older" in how else [(3, b"three"), (4, b"four")])
    assert bare.file.begun_anew == 1
    moved = {"moved": tmp_path / "moved.db", "moved with its directory": tmp_path / "elsewhere" / "journal.db"}
    if how in moved:
        assert rows_of(moved[how], "SELECT seq FROM entries") == [(1,), (2,)]


def test_a_place_that_cannot_be_written_at_first_is_taken_later_and_what_was_dropped_shows(tmp_path: Path) -> None:
    blocked = tmp_path / "state"
    blocked.touch()
    file = JournalFile(blocked, Bounds(), FACTS, {})
    with pytest.raises(OSError, match="exists"):
        file.open()
    blocked.unlink()
    other = Bare(tmp_path / "numbers")
    other.group(ACK, ACK)
    file.write([other.group(ACK)], WALL_NS)
    file.end_run(WALL_NS)
    file.release()
    other.close()
    assert numbers(blocked) == [3]
    with Journal(blocked) as journal:
        assert [(gap.after, gap.lost) for gap in journal.gaps()] == [(0, 2)]


def test_a_file_that_cannot_be_used_is_not_left_open(tmp_path: Path) -> None:
    rows_of(tmp_path / "journal.db", "CREATE TABLE mine (a)")
    file = JournalFile(tmp_path, Bounds(), FACTS, {})
    with pytest.raises(ForeignFileError):
        file.open()
    assert not file.is_open
    file.release()


def test_every_run_is_written_down(tmp_path: Path) -> None:
    for number in range(2):
        bare = Bare(tmp_path, facts=RunFacts(WALL_NS + number, 5, "boot", f"0.{number}", '{"a": 1}'))
        bare.add(ACK)
        bare.close()
    with Journal(tmp_path) as journal:
        runs = journal.runs()
    assert [(run.number, run.started_wall_ns - WALL_NS, run.version, run.settings) for run in runs] == [
        (1, 0, "0.0", '{"a": 1}'),
        (2, 1, "0.1", '{"a": 1}'),
    ]
