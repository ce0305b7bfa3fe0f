"""Writes the journal beside the event loop: what happens is queued in memory, a thread brings it to the disk.

Nobody waits for the disk but the operator's orders, and these only for a while. What the queue cannot hold is dropped
and counted; its numbers are missing in the journal. A disk that fails is tried again, and an order tries it at once.
"""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from trimtab.store.content import NoteContent
from trimtab.store.entries import Kind
from trimtab.store.journal_file import Group, JournalFile, primary_code
from trimtab.store.records import Record, encode

# Entries reach the disk within this time and what the disk takes.
COMMIT_EVERY_S = 0.25
TIDY_EVERY_S = 60.0
RETRY_S = (0.5, 30.0)
QUEUE_BYTES = 64 << 20
BATCH_BYTES = 8 << 20
# What an entry takes in memory besides its payload.
ENTRY_BYTES = 200
NS_PER_S = 1_000_000_000
ERRORS = {
    sqlite3.SQLITE_FULL: "disk_full", sqlite3.SQLITE_IOERR: "io", sqlite3.SQLITE_READONLY: "read_only",
    sqlite3.SQLITE_CANTOPEN: "cannot_open", sqlite3.SQLITE_BUSY: "busy", sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_NOTADB: "damaged",
}  # fmt: skip
SYSTEM_ERRORS = {
    errno.ENOSPC: "disk_full", errno.EDQUOT: "disk_full", errno.EROFS: "read_only", errno.EACCES: "cannot_open",
    errno.EPERM: "cannot_open",
}  # fmt: skip
# Errors of what is to be written, not of the disk: trying again would not help.
UNWRITABLE = (
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    sqlite3.DataError,
    OverflowError,
)

log = structlog.get_logger("trimtab")


@dataclass(slots=True)
class JournalFigures:
    """How the journal does.

    Attributes:
        entries: Entries of this run that are on the disk.
        dropped: Entries that were dropped, by reason.
        errors: Writes that failed, by reason.
        problem: What is wrong now, for people; empty if all is well.
        file_bytes: Size on the disk.
        oldest_wall_ns: When the oldest entry was written; None without one.
    """

    entries: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    problem: str = ""
    file_bytes: int = 0
    oldest_wall_ns: int | None = None


class JournalWriter:
    """Numbers what happens, queues it, and has it written.

    The host's duties, in order: `start`, then `add` from the event loop's thread alone, `close` at the end.

    Args:
        file: The journal; open, or to be opened as soon as that can be.
        monotonic_ns: The clock of the entries.
        wall_ns: The time since the epoch.
        queue_bytes: What waits in memory at most.

    Attributes:
        figures: How it does.
        left_out: Entries that never came into the queue.
    """

    def __init__(
        self,
        file: JournalFile,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        self.file = file
        self.figures = JournalFigures()
        self.left_out = 0
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self._queue_bytes = queue_bytes
        self._number = 0
        self._newest_added = self._done_through = 0
        self._engine_numbers: Counter[str] = Counter()
        # The event loop appends, the thread takes; each of the two sums is written by one of them.
        self._queue: deque[tuple[Group, int]] = deque()
        self._held: list[tuple[Group, int]] = []
        self._bytes_added = self._bytes_done = 0
        self._waiting: list[tuple[int, asyncio.Future[str]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = threading.Event()
        self._urgent = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="trimtab-journal", daemon=True)

    # -- the event loop --------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to write; called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def add(self, engine: str, records: Sequence[Record], now_ns: int, wall_ns: int) -> bool:
        """Number and queue what happened at one moment, as a whole; False if there is no room for it."""
        first, first_of_engine = self._number + 1, self._engine_numbers[engine] + 1
        self._number += len(records)
        self._engine_numbers[engine] += len(records)
        size = sum(len(payload) for _, payload in records) + ENTRY_BYTES * len(records)
        if self._bytes_added - self._bytes_done + size > self._queue_bytes:
            self.figures.dropped["queue_full"] += len(records)
            self.left_out += len(records)
            return False
        self._bytes_added += size
        self._newest_added = self._number
        self._queue.append((Group(first, engine, first_of_engine, now_ns, wall_ns, records), size))
        return True

    def lose(self, engine: str) -> None:
        """Number something that cannot be written, so that it is missing for everybody to see."""
        self._number += 1
        self._engine_numbers[engine] += 1
        self.figures.dropped["unwritable"] += 1
        self.left_out += 1

    async def written(self, within_s: float, since: int | None = None) -> str:
        """Wait until everything that was added is on the disk; why it is not, or empty.

        Args:
            within_s: The longest wait.
            since: What `left_out` was when the first of it was added; None: only the last of it is asked for.
        """
        complete = self._newest_added == self._number if since is None else self.left_out == since
        if not complete:
            return self.figures.problem or "its queue is full"
        if self._done_through >= self._number:
            return ""
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._number, done))
        self._urgent = True
        self._wake.set()
        try:
            return await asyncio.wait_for(done, within_s)
        except TimeoutError:
            return f"the disk did not answer within {within_s:g} s"

    async def close(self, within_s: float) -> None:
        """Write what is left and end the run; what the disk does not take within this time is lost."""
        self._stopping = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join, within_s)
        lost = sum(len(group.records) for group, _ in (*self._held, *self._queue))
        if lost:
            self.figures.dropped["stopping"] += lost
            log.warning("journal_cut_short", path=str(self.file.path), lost=lost, why=self.figures.problem)
        if not self._thread.is_alive():
            self.file.release()

    def lag_s(self) -> float:
        """Age of the oldest entry that is not on the disk; 0 without one."""
        held = self._held
        try:
            group, _ = held[0] if held else self._queue[0]
        except IndexError:
            return 0.0
        return max(0.0, (self._wall_ns() - group.wall_ns) / NS_PER_S)

    def _answer(self, through: int, problem: str) -> None:
        """Tell those who wait for entries up to this number, or all of them if there is a problem."""
        self._done_through = max(self._done_through, through)
        still = []
        for number, done in self._waiting:
            if not problem and number > through:
                still.append((number, done))
            elif not done.done():
                done.set_result(problem)
        self._waiting = still

    def _recovered(self) -> None:
        """Say in the journal why numbers are missing before this place."""
        note = NoteContent("journal_recovered", {f"dropped_{reason}": n for reason, n in self.figures.dropped.items()})
        self.add("", [(Kind.NOTE, encode(note))], self._monotonic_ns(), self._wall_ns())

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        retry_at_s, retry_s, tidy_at_s = 0.0, RETRY_S[0], 0.0
        while not self._stopping:
            self._wake.wait(COMMIT_EVERY_S)
            self._wake.clear()
            urgent, self._urgent = self._urgent, False
            if time.monotonic() < retry_at_s and not urgent and not self._stopping:
                continue
            if not self._write_all():
                retry_at_s, retry_s = time.monotonic() + retry_s, min(RETRY_S[1], retry_s * 2)
                continue
            retry_at_s, retry_s = 0.0, RETRY_S[0]
            if time.monotonic() >= tidy_at_s and self.file.is_open:
                self._try(lambda: self.file.tidy(self._wall_ns()))
                tidy_at_s = time.monotonic() + TIDY_EVERY_S
        if self._write_all() and self.file.is_open:
            self._try(lambda: self.file.end_run(self._wall_ns()))

    def _write_all(self) -> bool:
        """Bring everything that waits to the disk; False if the disk does not take it."""
        while self._take():
            if not self._try(self._write_held):
                self._on_loop(lambda problem=self.figures.problem: self._answer(0, problem))  # type: ignore[misc]
                return False
        if self.file.is_open:
            self._try(self._look)
        return True

    def _write_held(self) -> None:
        try:
            self.file.write([group for group, _ in self._held], self._wall_ns())
        except UNWRITABLE:
            self._write_each()
        else:
            self._done(len(self._held))

    def _write_each(self) -> None:
        """One of the groups cannot be written: every other one can."""
        while self._held:
            group, problem = self._held[0][0], ""
            try:
                self.file.write([group], self._wall_ns())
            except UNWRITABLE as error:
                problem = f"cannot be written: {error}"
                self.figures.dropped["unwritable"] += len(group.records)
                log.warning("journal_entries_dropped", path=str(self.file.path), engine=group.engine, why=str(error))
            self._done(1, problem)

    def _done(self, count: int, problem: str = "") -> None:
        """The first groups that are held are on the disk, or given up."""
        done, self._held = self._held[:count], self._held[count:]
        self._bytes_done += sum(size for _, size in done)
        if not problem:
            # Whoever is told that all is written finds nothing wrong any more.
            self._well()
            self.figures.entries += sum(len(group.records) for group, _ in done)
        last = done[-1][0]
        through = last.number + len(last.records) - 1
        self._on_loop(lambda: self._answer(through, problem))

    def _take(self) -> bool:
        """Hold the groups that have waited longest, up to a size, until they are on the disk; False without any."""
        size = sum(size for _, size in self._held)
        while self._queue and (not self._held or size + self._queue[0][1] <= BATCH_BYTES):
            waiting = self._queue.popleft()
            self._held.append(waiting)
            size += waiting[1]
        return bool(self._held)

    def _try(self, action: Callable[[], None]) -> bool:
        """Do it; on an error say what is wrong and try again later."""
        try:
            action()
        except Exception as error:  # noqa: BLE001
            # Nothing of what a disk can do may end this thread.
            self.failed(error)
            return False
        self._well()
        return True

    def _well(self) -> None:
        """The disk does what it should."""
        if self.figures.problem:
            self.figures.problem = ""
            log.info("journal_recovered", path=str(self.file.path), dropped=dict(self.figures.dropped))
            self._on_loop(self._recovered)

    def failed(self, error: Exception) -> None:
        """The disk does not do what it should: count it, and say so once."""
        reason = reason_of(error)
        self.figures.errors[reason] += 1
        first, self.figures.problem = not self.figures.problem, f"{reason}: {error}"
        if first:
            log.warning("journal_failing", path=str(self.file.path), why=self.figures.problem)

    def _look(self) -> None:
        self.figures.file_bytes = self.file.size_bytes()
        self.figures.oldest_wall_ns = self.file.oldest_wall_ns()

    def _on_loop(self, action: Callable[[], None]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(action)


def reason_of(error: Exception) -> str:
    """What is wrong with the disk, in a word."""
    if isinstance(error, sqlite3.Error):
        return ERRORS.get(primary_code(error), "other")
    return SYSTEM_ERRORS.get(error.errno or 0, "io") if isinstance(error, OSError) else "other"
