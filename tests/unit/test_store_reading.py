"""A journal is read by engine, kind and time, while it is written, and without a trace."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from support.journals import WALL_NS, Bare, S, note, rows_of
from trimtab.errors import DataError
from trimtab.store.entries import Entry, Kind
from trimtab.store.reading import CHUNK, Gap, Journal

REPORT = (Kind.REPORT, b"rows " * 100)
ACK = (Kind.ACK, b"yes")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Two engines, and an order for both."""
    bare = Bare(tmp_path)
    bare.add((Kind.HELLO, b"hello"), note("met"), at_s=1)
    bare.add((Kind.HELLO, b"hello"), engine="b", at_s=2)
    bare.add((Kind.ADMIN, b"{}"), engine="", at_s=3)
    for second in range(4, 8):
        bare.add(REPORT, engine="ab"[second % 2], at_s=second)
    bare.close()
    return tmp_path


def told(entries: list[Entry]) -> list[tuple[int, str, str]]:
    return [(entry.seq, entry.engine, str(entry.kind)) for entry in entries]


def test_entries_come_in_the_order_in_which_they_happened(journal: Path) -> None:
    with Journal(journal) as reading:
        found = list(reading.entries())
    assert told(found) == [
        (1, "a", "hello"), (2, "a", "note"), (3, "b", "hello"), (4, "", "admin"),
        (5, "a", "report"), (6, "b", "report"), (7, "a", "report"), (8, "b", "report"),
    ]  # fmt: skip
    assert found[4] == Entry(5, 1, "a", 0, Kind.REPORT, 4 * S, WALL_NS + 4 * S, REPORT[1])


def test_an_engine_kinds_and_times_can_be_chosen(journal: Path) -> None:
    with Journal(journal) as reading:
        assert told(list(reading.entries("b"))) == [(3, "b", "hello"), (6, "b", "report"), (8, "b", "report")]
        assert told(list(reading.entries(kinds={Kind.HELLO, Kind.ADMIN}))) == [
            (1, "a", "hello"), (3, "b", "hello"), (4, "", "admin"),
        ]  # fmt: skip
        since, until = WALL_NS + 3 * S, WALL_NS + 5 * S
        assert told(list(reading.entries(since_wall_ns=since, until_wall_ns=until))) == [
            (4, "", "admin"), (5, "a", "report"),
        ]  # fmt: skip
        assert told(list(reading.entries("nobody"))) == []
        assert (reading.engines(), reading.count(), reading.count("a")) == (["a", "b"], 8, 4)


def test_long_journals_are_read_to_the_end(tmp_path: Path) -> None:
    bare = Bare(tmp_path)
    bare.write([bare.group(ACK, engine=f"e{i % 3}", at_s=i) for i in range(3 * CHUNK)])
    bare.close()
    with Journal(tmp_path) as reading:
        assert [entry.seq for entry in reading.entries()] == list(range(1, 3 * CHUNK + 1))
        assert len(list(reading.entries("e1"))) == CHUNK


def test_what_was_lost_shows_as_a_gap_of_the_journal_and_of_the_engine(tmp_path: Path) -> None:
    bare = Bare(tmp_path)
    bare.add(ACK)
    bare.group(ACK, ACK, engine="b")
    bare.add(ACK)
    bare.group(ACK)
    bare.add(ACK, ACK)
    bare.close()
    with Journal(tmp_path) as reading:
        assert reading.gaps() == [Gap(1, 2, 1, died=False), Gap(4, 1, 1, died=False)]
        assert [(entry.seq, entry.missing) for entry in reading.entries("a")] == [(1, 0), (4, 0), (6, 1), (7, 0)]
        only_acks = reading.entries("a", {Kind.NOTE, Kind.ACK})
        assert [entry.missing for entry in only_acks] == [0, 0, 1, 0]


def test_a_run_that_died_leaves_a_gap_and_one_that_ended_none(tmp_path: Path) -> None:
    for ended in (True, False, True):
        bare = Bare(tmp_path)
        bare.add(ACK)
        bare.close(ended)
    with Journal(tmp_path) as reading:
        assert [entry.seq for entry in reading.entries()] == [1, 2, 4]
        assert reading.gaps() == [Gap(2, 1, 2, died=True)]
        assert [run.ended_wall_ns is None for run in reading.runs()] == [False, True, False]


def test_a_journal_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    bare = Bare(tmp_path)
    bare.add(ACK)
    with Journal(tmp_path) as reading:
        entries = reading.entries()
        bare.add(ACK)
        assert [entry.seq for entry in entries] == [1]
    with Journal(tmp_path) as reading:
        assert reading.last_seq == 2
    bare.close()


def listing(directory: Path) -> dict[str, tuple[int, int]]:
    return {entry.name: (entry.stat().st_size, entry.stat().st_mtime_ns) for entry in os.scandir(directory)}


def test_reading_leaves_no_trace(journal: Path) -> None:
    before = listing(journal)
    with Journal(journal) as reading:
        list(reading.entries("a"))
        reading.gaps()
    assert listing(journal) == before


def test_what_a_killed_daemon_left_is_read_in_full(tmp_path: Path) -> None:
    bare = Bare(tmp_path / "alive")
    bare.add(ACK)
    shutil.copytree(tmp_path / "alive", tmp_path / "left")
    bare.close()
    assert (tmp_path / "left" / "journal.db-wal").stat().st_size > 0
    with Journal(tmp_path / "left") as reading:
        assert reading.last_seq == 1


def test_a_daemon_that_begins_to_write_ends_the_reading_of_a_still_file(journal: Path) -> None:
    with Journal(journal) as reading:
        bare = Bare(journal)
        with pytest.raises(DataError, match="a daemon began to write it in the meantime: read it again"):
            list(reading.entries())
    bare.close()


# -- what is no journal --------------------------------------------------------------------------


def other_database(path: Path) -> None:
    rows_of(path, "CREATE TABLE entries (seq INTEGER)")


def newer(path: Path) -> None:
    Bare(path.parent).close()
    rows_of(path, "PRAGMA user_version = 7")


def cut_short(path: Path) -> None:
    bare = Bare(path.parent)
    bare.write([bare.group((Kind.ACK, os.urandom(3000))) for _ in range(50)])
    bare.close()
    os.truncate(path, path.stat().st_size // 2)


FOREIGN = {
    "text": (lambda path: path.write_text("my notes, long enough"), "is no journal of Trimtab"),
    "other database": (other_database, "is no journal of Trimtab"),
    "newer": (newer, r"is a journal of a newer Trimtab \(schema 7, this one reads 2\)"),
    "empty": (lambda path: path.touch(), "is an empty journal: no daemon has written to it yet"),
    "nothing": (lambda path: None, "does not exist"),
    "cut short": (cut_short, "cannot be read as a journal: database disk image is malformed"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words"), FOREIGN.values(), ids=FOREIGN)
def test_a_file_that_cannot_be_used_is_one_error_with_its_path_and_stays_as_it_is(
    tmp_path: Path, make: object, words: str
) -> None:
    path = tmp_path / "journal.db"
    make(path)  # type: ignore[operator]
    before = listing(tmp_path)
    with pytest.raises(DataError, match=f"^{path}: {words}"), Journal(path) as reading:
        list(reading.entries())
    assert listing(tmp_path) == before


def test_a_payload_that_is_damaged_names_its_entry(journal: Path) -> None:
    rows_of(journal / "journal.db", "UPDATE entries SET payload = x'00ff' WHERE seq = 5")
    with Journal(journal) as reading, pytest.raises(DataError, match=r"journal\.db, entry 5: is damaged: "):
        list(reading.entries())


def test_entries_of_a_kind_that_this_version_does_not_know_are_passed_over(journal: Path) -> None:
    rows_of(journal / "journal.db", "UPDATE entries SET kind = 'dream' WHERE seq = 2")
    with Journal(journal) as reading:
        assert [entry.seq for entry in reading.entries("a")] == [1, 5, 7]


def test_a_profile_that_is_not_there_is_named(journal: Path) -> None:
    with Journal(journal) as reading, pytest.raises(DataError, match="lacks the profile 12ab"):
        reading.profile("12ab")


def test_the_connection_cannot_write(journal: Path) -> None:
    with Journal(journal) as reading, pytest.raises(sqlite3.OperationalError, match="readonly"):
        reading._db.execute("DELETE FROM entries")
