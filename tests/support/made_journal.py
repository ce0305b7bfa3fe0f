"""A journal with what a test puts into it, written as the daemon writes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trimtab.domain import Lease, Mode, StepRow, TableEntry, modes_of
from trimtab.session.events import SendLease
from trimtab.store.entries import Kind
from trimtab.store.journal_file import Bounds, Group, JournalFile, RunFacts
from trimtab.wire import lease_message, mode_to_wire, rows_to_columns
from trimtabpb.v1 import control_pb2 as pb

MODES = modes_of([0, 1, 3])
START_NS = 1_764_460_800 * 1_000_000_000
SECOND_NS = 1_000_000_000


class MadeJournal:
    """One run of a daemon; every entry is a second after the one before. Use as a context manager.

    Args:
        directory: Where the journal is.
        start_s: Seconds after `START_NS` at which the run begins.
    """

    def __init__(self, directory: Path, start_s: int = 0) -> None:
        self.now_ns = START_NS + start_s * SECOND_NS
        run = RunFacts(self.now_ns, self.now_ns, "host-boot", "0.1.0", "{}")
        self.file = JournalFile(directory, Bounds(), run, {})
        self._number = 0
        self._of_engine: Counter[str] = Counter()
        self._seq: Counter[str] = Counter()

    def __enter__(self) -> MadeJournal:
        self.file.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.file.end_run(self.now_ns)
        self.file.release()

    def die(self) -> None:
        """The run ends as one does that is killed."""
        self.file.release()

    def hello(self, engine: str = "a", boot_id: str = "boot-1", modes: Sequence[Mode] = MODES, **fields: Any) -> None:
        """The engine introduces itself."""
        message = pb.Hello(
            protocol_version=1, engine_id=engine, boot_id=boot_id, modes=map(mode_to_wire, modes), acts=True,
            graph_batch_sizes=[1, 2, 4], max_running_requests=64,
            speculation=pb.Speculation(initial_steps=3, model="/models/8b"), **fields,
        )  # fmt: skip
        self.add(engine, Kind.HELLO, message.SerializeToString())

    def lease(self, version: int, *table: TableEntry, engine: str = "a", dwell: int = 16) -> None:
        """A lease is sent."""
        lease = Lease(version, table, exploration_seed=1, exploration_dwell_steps=dwell)
        message = lease_message(SendLease(lease, nonce=version, ttl_s=2.0)).lease
        self.add(engine, Kind.LEASE, message.SerializeToString())

    def report(self, rows: Sequence[StepRow], engine: str = "a") -> None:
        """The engine reports."""
        self._seq[engine] += 1
        message = pb.Report(seq=self._seq[engine], now_ns=1, rows=rows_to_columns(rows))
        self.add(engine, Kind.REPORT, message.SerializeToString())

    def add(self, engine: str, kind: Kind, payload: bytes) -> None:
        """Any entry."""
        self.lose(engine)
        group = Group(self._number, engine, self._of_engine[engine], self.now_ns, self.now_ns, [(kind, payload)])
        self.file.write([group], self.now_ns)

    def lose(self, engine: str) -> None:
        """An entry that never gets to the disk."""
        self.now_ns += SECOND_NS
        self._number += 1
        self._of_engine[engine] += 1
