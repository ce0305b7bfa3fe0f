"""The journal never holds up a decision: what the disk does not take waits, then is dropped and counted."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from support.journals import FACTS, WALL_NS, S
from trimtab.store.entries import Kind
from trimtab.store.journal_file import Bounds, JournalFile
from trimtab.store.reading import Gap, Journal
from trimtab.store.writing import ENTRY_BYTES, JournalWriter, reason_of

ACK = (Kind.ACK, b"yes")
NOTE = (Kind.NOTE, b"{}")


def at_work(directory: Path, play: Callable[[JournalWriter], Coroutine[Any, Any, None]], **options: Any) -> None:
    """A writer from its start to its end."""

    async def run() -> None:
        file = JournalFile(directory, Bounds(), FACTS, {})
        file.open()
        writer = JournalWriter(file, wall_ns=lambda: WALL_NS, **options)
        writer.start()
        await play(writer)
        await writer.close(5.0)

    asyncio.run(run())


def add(writer: JournalWriter, *records: tuple[Kind, bytes], engine: str = "a") -> bool:
    return writer.add(engine, records or (ACK,), S, WALL_NS)


def numbers(directory: Path) -> list[int]:
    with Journal(directory) as journal:
        return [entry.seq for entry in journal.entries()]


def test_what_is_added_is_on_the_disk_when_the_wait_is_over(tmp_path: Path) -> None:
    async def play(writer: JournalWriter) -> None:
        for _ in range(3):
            assert add(writer, ACK, NOTE)
        assert await writer.written(5.0) == ""
        with Journal(tmp_path) as journal:
            assert journal.last_seq == 6
        assert (writer.figures.entries, writer.figures.problem, writer.lag_s()) == (6, "", 0.0)

    at_work(tmp_path, play)
    with Journal(tmp_path) as journal:
        assert journal.runs()[0].ended_wall_ns is not None


def test_without_anybody_waiting_it_is_written_as_well(tmp_path: Path) -> None:
    async def play(writer: JournalWriter) -> None:
        add(writer)
        while writer.figures.entries < 1:
            await asyncio.sleep(0.05)

    at_work(tmp_path, play)


def test_what_the_queue_cannot_hold_is_dropped_as_a_whole_counted_and_missing(tmp_path: Path) -> None:
    async def play(writer: JournalWriter) -> None:
        for _ in range(10):
            add(writer)
        assert not add(writer, ACK, NOTE)
        assert await writer.written(5.0) == "its queue is full"
        assert writer.figures.dropped == {"queue_full": 2}
        while writer.figures.entries < 10:
            await asyncio.sleep(0.05)
        assert add(writer)

    at_work(tmp_path, play, queue_bytes=10 * (ENTRY_BYTES + 3) + 50)
    assert numbers(tmp_path) == [*range(1, 11), 13]
    with Journal(tmp_path) as journal:
        assert journal.gaps() == [Gap(10, 2, 1, died=False)]


def test_a_disk_that_is_full_for_a_moment_loses_nothing(tmp_path: Path) -> None:
    async def play(writer: JournalWriter) -> None:
        add(writer)
        assert await writer.written(5.0) == ""
        (pages,) = writer.file.db.execute("PRAGMA page_count").fetchone()
        writer.file.db.execute(f"PRAGMA max_page_count = {pages}")
        add(writer, (Kind.ACK, bytes(20_000)))
        assert await writer.written(5.0) == "disk_full: database or disk is full"
        assert writer.figures.errors == {"disk_full": 1}
        assert writer.figures.problem == "disk_full: database or disk is full"
        # The next order tries at once, with a fresh connection.
        add(writer)
        assert await writer.written(5.0) == ""
        assert (writer.figures.problem, writer.figures.dropped) == ("", {})

    at_work(tmp_path, play)
    with Journal(tmp_path) as journal:
        assert [str(entry.kind) for entry in journal.entries()] == ["ack", "ack", "ack", "note"]
        assert journal.gaps() == []
        assert next(entry.payload for entry in journal.entries(kinds={Kind.NOTE})).startswith(
            b'{"event":"journal_recovered"'
        )


def test_a_directory_that_is_away_for_a_while_costs_what_the_queue_could_not_hold(tmp_path: Path) -> None:
    state, away = tmp_path / "state", tmp_path / "away"

    async def play(writer: JournalWriter) -> None:
        add(writer)
        assert await writer.written(5.0) == ""
        state.rename(away)
        state.touch()
        add(writer)
        assert (await writer.written(5.0)).startswith("io: ")
        while add(writer, (Kind.ACK, bytes(1000))):
            pass
        assert writer.figures.dropped == {"queue_full": 1}
        state.unlink()
        away.rename(state)
        while writer.figures.problem:
            await asyncio.sleep(0.05)
        add(writer)
        assert await writer.written(5.0) == ""

    at_work(state, play, queue_bytes=20_000)
    with Journal(state) as journal:
        assert [gap.lost for gap in journal.gaps()] == [1]
        (note,) = journal.entries(kinds={Kind.NOTE})
        assert b'"dropped_queue_full":1' in note.payload
        assert len(journal.runs()) == 1


def test_a_disk_that_does_not_answer_is_not_waited_for_longer_than_was_said(tmp_path: Path) -> None:
    async def play(writer: JournalWriter) -> None:
        add(writer)
        assert await writer.written(5.0) == ""
        other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        add(writer)
        assert await writer.written(0.1) == "the disk did not answer within 0.1 s"
        other.execute("ROLLBACK")
        other.close()
        assert await writer.written(5.0) == ""

    at_work(tmp_path, play)
    assert numbers(tmp_path)[:2] == [1, 2]


def test_an_entry_that_cannot_be_written_does_not_stop_the_others(tmp_path: Path) -> None:
    async def play(writer: JournalWriter) -> None:
        add(writer)
        writer.add("a", [ACK, ACK], 1 << 70, WALL_NS)
        assert (await writer.written(5.0)).startswith("cannot be written: ")
        writer.add("a", [ACK], 1 << 70, WALL_NS)
        add(writer)
        assert await writer.written(5.0) in ("", "cannot be written: Python int too large to convert to SQLite INTEGER")
        add(writer)
        assert await writer.written(5.0) == ""
        assert writer.figures.dropped == {"unwritable": 3}
        assert (writer.figures.entries, writer.figures.problem) == (3, "")

    at_work(tmp_path, play)
    assert numbers(tmp_path) == [1, 5, 6]


def test_what_cannot_be_put_into_words_has_a_number_all_the_same(tmp_path: Path) -> None:
    async def play(writer: JournalWriter) -> None:
        add(writer)
        writer.lose("a")
        add(writer)

    at_work(tmp_path, play)
    with Journal(tmp_path) as journal:
        assert [(entry.seq, entry.missing) for entry in journal.entries("a")] == [(1, 0), (3, 1)]


def test_at_the_end_what_the_disk_did_not_take_is_counted(tmp_path: Path) -> None:
    state = tmp_path / "state"
    kept: list[JournalWriter] = []

    async def play(writer: JournalWriter) -> None:
        kept.append(writer)
        add(writer)
        assert await writer.written(5.0) == ""
        state.rename(tmp_path / "away")
        state.touch()
        add(writer, ACK, ACK)

    at_work(state, play)
    assert kept[0].figures.dropped == {"stopping": 2}
    with Journal(tmp_path / "away") as journal:
        assert (journal.last_seq, journal.runs()[0].ended_wall_ns) == (1, None)


REASONS = [
    (OSError(errno.ENOSPC, "No space left on device"), "disk_full"),
    (OSError(errno.EROFS, "Read-only file system"), "read_only"),
    (PermissionError(errno.EACCES, "Permission denied"), "cannot_open"),
    (OSError(errno.EIO, "Input/output error"), "io"),
    (sqlite3.OperationalError("no code"), "other"),
    (ValueError("a bug"), "other"),
]


@pytest.mark.parametrize(("error", "reason"), REASONS)
def test_what_is_wrong_with_a_disk_has_a_word(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


def test_the_age_of_what_waits_is_known(tmp_path: Path) -> None:
    file = JournalFile(tmp_path, Bounds(), FACTS, {})
    writer = JournalWriter(file, wall_ns=lambda: WALL_NS + 3 * S)
    assert writer.lag_s() == 0.0
    add(writer)
    assert writer.lag_s() == pytest.approx(3.0)
