"""Journals that tests write: a fleet that keeps one, and bare files with entries of the test's own."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from support.scripted_engine import MODES
from support.step_rows import MadeUpEngine
from trimtab.config import JournalSection, PolicySection, Settings
from trimtab.domain import Mode, speculate
from trimtab.policies.registry import policy_factory
from trimtab.server.fleet import Fleet
from trimtab.server.journaling import Journaling, open_journal
from trimtab.server.outbox import Outbox
from trimtab.server.seat import Seat
from trimtab.session.engine_session import SessionSettings
from trimtab.session.events import Event, Reported
from trimtab.session.profiles import KeyedProfile
from trimtab.store.entries import Kind
from trimtab.store.journal_file import Bounds, Group, JournalFile, RunFacts
from trimtab.store.records import Record
from trimtab.wire import mode_to_wire, read_ack, read_hello, read_report, rows_to_columns
from trimtabpb.v1 import control_pb2 as pb

S = 1_000_000_000
WALL_NS = 1_700_000_000 * S
# A fleet's journal is pruned by the real time of day.
TODAY_NS = time.time_ns()


class Clock:
    """A clock that a test sets; in nanoseconds."""

    def __init__(self, now_ns: int = S) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def pass_s(self, seconds: float) -> None:
        """Let time go by."""
        self.now_ns += round(seconds * S)


class Desk:
    """A fleet and its journal, without a network: engines join, report and leave by calls.

    Attributes:
        clock: Of the sessions; the wall clock goes with it.
        fleet: The fleet.
        journal: The journal.
    """

    def __init__(
        self,
        directory: Path,
        policy: str = "goodput",
        parameters: Mapping[str, Any] | None = None,
        profiles: tuple[KeyedProfile, ...] = (),
        begins_at_s: float = 1.0,
    ) -> None:
        parameters = dict(parameters or {})
        section = PolicySection(policy, parameters)
        opened = open_journal(Settings(policy=section, journal=JournalSection(str(directory))), profiles)
        assert opened is not None
        self.journal: Journaling = opened
        self.clock = Clock(round(begins_at_s * S))
        self.fleet = Fleet(
            policy,
            policy_factory(policy, parameters),
            SessionSettings(profiles=profiles),
            self.clock,
            lambda: TODAY_NS + self.clock.now_ns,
            parameters=parameters,
            scribe=self.journal.scribe,
        )
        self._worlds: dict[str, MadeUpEngine] = {}
        self._seqs: dict[str, int] = {}

    def resume(self) -> int:
        """Go on from what an earlier run left; how many engines."""
        return self.fleet.resume(self.journal.saved, self.journal.profiles.__getitem__, self.journal.orders)

    def join(self, engine_id: str = "a", boot_id: str = "boot-1", **fields: Any) -> Seat:
        """An engine says Hello."""
        hello = pb.Hello(
            **{
                "protocol_version": 1,
                "engine_id": engine_id,
                "boot_id": boot_id,
                "modes": [mode_to_wire(mode) for mode in MODES],
                "graph_batch_sizes": [1, 2, 4, 8, 16, 32, 64],
                "max_running_requests": 64,
                "acts": True,
                "speculation": pb.Speculation(initial_steps=3),
                **fields,
            }
        )
        self._seqs[engine_id] = 0
        return self.fleet.join(*read_hello(hello), Outbox(), hello.SerializeToString())

    def report(self, seat: Seat, steps: int = 25, after_s: float = 0.25) -> None:
        """A report interval of decoding under the engine's table."""
        name = str(seat.key)
        self.clock.pass_s(after_s)
        self._seqs[name] += 1
        world = self._worlds.setdefault(name, MadeUpEngine(len(name) + ord(name[0])))
        rows = world.report(partial(_mode_at, seat), steps)
        message = pb.Report(seq=self._seqs[name], now_ns=rows[-1].result_ns, rows=rows_to_columns(rows))
        self.fleet.apply(seat, Reported(read_report(message)[0]), message.SerializeToString())
        self.fleet.tick()

    def accept(self, seat: Seat) -> None:
        """The engine accepts its newest lease."""
        state = seat.session.state()
        ack = pb.Ack(nonce=state.nonce, version=state.version, accepted=True)
        self.fleet.apply(seat, read_ack(ack), ack.SerializeToString())

    def order(self, seat: Seat, event: Event) -> None:
        """An operator's order."""
        assert self.fleet.apply(seat, event)

    async def written(self) -> str:
        """Wait until everything is on the disk."""
        return await self.journal.writer.written(5.0)


def _mode_at(seat: Seat, batch_size: int) -> Mode:
    decision = seat.session.decision
    if decision is None:
        return speculate(3)
    return next(e.mode for e in reversed(decision.table) if e.min_batch_size <= batch_size)


def written(directory: Path, script: Callable[[Desk], Any], dies: bool = False, **options: Any) -> Path:
    """Play a script at a desk whose journal is in this directory; the directory.

    The script may be asynchronous. With `dies`, the run does not end: the journal is left as `kill -9` would.
    """
    place = directory.with_name(f"{directory.name}-alive") if dies else directory
    if dies and directory.exists():
        shutil.copytree(directory, place)

    async def play() -> None:
        desk = Desk(place, **options)
        desk.journal.writer.start()
        desk.resume()
        outcome = script(desk)
        if isinstance(outcome, Awaitable):
            await outcome
        if dies:
            assert await desk.written() == ""
            shutil.copytree(place, directory, dirs_exist_ok=True)
        desk.fleet.stop("the controller stops")
        desk.fleet.save()
        await desk.journal.writer.close(5.0)

    asyncio.run(play())
    if dies:
        shutil.rmtree(place)
    return directory


FACTS = RunFacts(WALL_NS, S, "host-boot-1", "0.0.0", "{}")


class Bare:
    """A journal file with entries of the test's own, written at once and without a thread.

    Attributes:
        file: The file.
        number: Of the last entry.
    """

    def __init__(self, directory: Path, bounds: Bounds | None = None, facts: RunFacts = FACTS) -> None:
        self.file = JournalFile(directory, bounds or Bounds(), facts, {})
        self.file.open()
        self.number = 0
        self._engine_numbers: dict[str, int] = {}

    def add(self, *records: Record, engine: str = "a", at_s: float = 0.0, now_s: float | None = None) -> None:
        """Write entries of one moment, `at_s` on the wall clock; the pruning happens now, or at `now_s`."""
        self.write([self.group(*records, engine=engine, at_s=at_s)], at_s if now_s is None else now_s)

    def write(self, groups: Sequence[Group], now_s: float = 0.0) -> None:
        """Write these groups."""
        self.file.write(groups, WALL_NS + round(now_s * S))

    def group(self, *records: Record, engine: str = "a", at_s: float = 0.0) -> Group:
        """Entries of one moment, numbered and not yet written."""
        first, first_of_engine = self.number + 1, self._engine_numbers.get(engine, 0) + 1
        self.number += len(records)
        self._engine_numbers[engine] = self._engine_numbers.get(engine, 0) + len(records)
        at_ns = round(at_s * S)
        return Group(first, engine, first_of_engine, at_ns, WALL_NS + at_ns, records)

    def close(self, ended: bool = True) -> None:
        """End the run, or leave it as one that died."""
        if ended:
            self.file.end_run(WALL_NS)
        self.file.release()


def note(text: str = "") -> Record:
    """An entry that means nothing."""
    return Kind.NOTE, text.encode()


def rows_of(path: Path, query: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
    """What a query finds in a journal that nobody writes."""
    db = sqlite3.connect(path)
    try:
        found = db.execute(query, tuple(values)).fetchall()
        db.commit()
        return found
    finally:
        db.close()


def unpacked(archive: Path, into: Path) -> Path:
    """The journal in a gzip file, as a file of its own."""
    into.write_bytes(gzip.decompress(archive.read_bytes()))
    return into
