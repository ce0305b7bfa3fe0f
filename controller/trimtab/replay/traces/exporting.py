"""Makes a trace of a journal: every step row, with the probability of its mode from the lease that it ran under."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from google.protobuf.message import DecodeError

from trimtab.domain import EngineInfo, Lease, StepRow, speculate
from trimtab.errors import DataError, WireError
from trimtab.replay.traces.csv_writer import MAX_CSV_ROWS, write_csv
from trimtab.replay.traces.schema import TraceEngine
from trimtab.replay.traces.writer import TraceWriter
from trimtab.store.content import StateContent, content_of, lease_of, message_of, report_of
from trimtab.store.entries import Entry, Kind
from trimtab.store.reading import Journal
from trimtab.wire import read_hello
from trimtabpb.v1 import control_pb2 as pb

KINDS = frozenset({Kind.HELLO, Kind.REPORT, Kind.LEASE, Kind.CHECKPOINT, Kind.RESUMED})
BLOCK_ROWS = 20_000
# Rows come in within seconds of their lease; older leases are of no use.
LEASES_KEPT = 1_000
PROGRESS_ENTRIES = 500


class ExportReport(msgspec.Struct, frozen=True):
    """What became of a journal's rows.

    Attributes:
        trace: Path of what was written.
        rows: Rows in it.
        left_out: Others, by reason: `out_of_order` (older than the row before), `repeated`.
        unknown_lease: Rows whose lease is not in the journal, so that their propensity is unknown.
        engines: Runs of engines, with their rows.
    """

    trace: str
    rows: int
    left_out: dict[str, int]
    unknown_lease: int
    engines: dict[str, int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to take from a journal. Times are wall time in ns, the first included and the last not; None: no limit."""

    engine: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None

    def covers(self, entry: Entry) -> bool:
        """Whether the rows of this entry are wanted."""
        after = self.since_ns is None or entry.wall_ns >= self.since_ns
        return after and (self.until_ns is None or entry.wall_ns < self.until_ns)


def export_trace(
    journal_path: Path, output: Path, wanted: Wanted, progress: Callable[[int, int], None] | None = None
) -> ExportReport:
    """Write a journal's rows into a trace, or into CSV if the name of the output ends so.

    Args:
        journal_path: The file, or the directory that it is in. A daemon may be writing it.
        output: Where the rows go.
        wanted: Which rows.
        progress: Told how many entries have been read, of how many.

    Raises:
        DataError: The journal cannot be read, there is nothing to write, or it is too much for CSV; nothing has
            changed on disk then.
    """
    if output.suffix != ".csv":
        return _export(journal_path, output, wanted, progress, lambda rows: None)
    with TemporaryDirectory(prefix="trimtab-") as folder:
        between = Path(folder) / "trace.parquet"
        report = _export(journal_path, between, wanted, progress, lambda rows: _check_small(output, rows))
        write_csv(between, output)
    return msgspec.structs.replace(report, trace=str(output))


def _check_small(output: Path, rows: int) -> None:
    if rows > MAX_CSV_ROWS:
        problem = f"would have more than {MAX_CSV_ROWS:,} rows: write Parquet, or choose fewer"
        raise DataError(str(output), problem)


def _export(
    journal_path: Path,
    output: Path,
    wanted: Wanted,
    progress: Callable[[int, int], None] | None,
    check: Callable[[int], None],
) -> ExportReport:
    with Journal(journal_path) as journal:
        names = _engines(journal, wanted.engine)
        with TraceWriter(output, "journal") as writer:
            exports = [_EngineExport(name, wanted, writer, check) for name in names]
            for number, export in enumerate(exports):
                told = _Told(progress, number * journal.last_seq, len(names) * journal.last_seq)
                for entry in journal.entries(export.name, KINDS):
                    export.take(entry)
                    told.at(entry.seq)
                export.finish()
            if not writer.rows:
                raise DataError(str(journal.path), "has no step rows that were asked for")
            return _report(output, writer.rows, exports)


def _engines(journal: Journal, wanted: str | None) -> list[str]:
    names = sorted(journal.engines())
    if wanted is None:
        return names
    if wanted not in names:
        raise DataError(str(journal.path), f"has no engine {wanted!r}; there are: {', '.join(names) or 'none'}")
    return [wanted]


def _report(output: Path, rows: int, exports: list[_EngineExport]) -> ExportReport:
    left_out = sum((export.left_out for export in exports), Counter[str]())
    return ExportReport(
        trace=str(output),
        rows=rows,
        left_out=dict(sorted(left_out.items())),
        unknown_lease=sum(export.unknown_lease for export in exports),
        engines={name: n for export in exports for name, n in export.written.items()},
    )


class _Told:
    """Says now and then how far it has got, counted in entries."""

    def __init__(self, progress: Callable[[int, int], None] | None, before: int, total: int) -> None:
        self._progress, self._before, self._total, self._next = progress, before, total, 0

    def at(self, seq: int) -> None:
        if self._progress is not None and seq >= self._next:
            self._next = seq + PROGRESS_ENTRIES
            self._progress(self._before + seq, self._total)


class _EngineExport:
    """Goes through the entries of one engine. Runs of the engine's process are told apart by their boot ids."""

    def __init__(self, name: str, wanted: Wanted, writer: TraceWriter, check: Callable[[int], None]) -> None:
        self.name = name
        self._check = check
        self.left_out: Counter[str] = Counter()
        self.unknown_lease = 0
        self.written: dict[str, int] = {}
        self._wanted = wanted
        self._writer = writer
        self._leases: OrderedDict[int, Lease] = OrderedDict()
        self._engine = TraceEngine(name, 0)
        self._boot_id: str | None = None
        self._begun = False
        self._last: StepRow | None = None
        self._rows: list[StepRow] = []
        self._probabilities: list[float | None] = []
        self._dwell_steps: list[int | None] = []

    def take(self, entry: Entry) -> None:
        """The next entry."""
        if entry.kind is Kind.REPORT:
            if self._wanted.covers(entry):
                for row in report_of(entry).rows:
                    self._add(row)
            return
        if (lease := lease_of(entry)) is not None:
            self._remember(lease)
        if (hello := _hello_of(entry)) is not None:
            self._enter(hello)

    def finish(self) -> None:
        """Write what is left."""
        self._flush()

    def _enter(self, hello: EngineInfo) -> None:
        if hello.boot_id == self._boot_id:
            return
        self._flush()
        run = self._engine.run + (1 if self._begun else 0)
        self._engine, self._boot_id = _about(self.name, run, hello), hello.boot_id
        self._begun, self._last = False, None

    def _remember(self, lease: Lease) -> None:
        self._leases[lease.version] = lease
        self._leases.move_to_end(lease.version)
        if len(self._leases) > LEASES_KEPT:
            self._leases.popitem(last=False)

    def _add(self, row: StepRow) -> None:
        if (reason := self._fault(row)) is not None:
            self.left_out[reason] += 1
            return
        self._last = row
        self._rows.append(row)
        lease = self._lease_of(row)
        self._probabilities.append(probability_of(lease, row) if lease else None)
        self._dwell_steps.append(dwell_of(lease, row) if lease else None)
        if len(self._rows) >= BLOCK_ROWS:
            self._flush()

    def _fault(self, row: StepRow) -> str | None:
        last = self._last
        if last is None:
            return None
        if row.result_ns < last.result_ns or row.step < last.step:
            return "out_of_order"
        return "repeated" if row == last else None

    def _lease_of(self, row: StepRow) -> Lease | None:
        """The lease whose table chose the row's mode; None where no lease chose, or nobody knows it."""
        if not row.lease_version or row.table_entry is None:
            return None
        lease = self._leases.get(row.lease_version)
        if lease is None:
            self.unknown_lease += 1
        return lease

    def _flush(self) -> None:
        if not self._rows:
            return
        if not self._begun:
            self._writer.begin(self._engine)
            self._begun = True
        self._writer.write_rows(self._rows, self._probabilities, self._dwell_steps)
        self._check(self._writer.rows)
        name = f"{self.name} run {self._engine.run}"
        self.written[name] = self.written.get(name, 0) + len(self._rows)
        self._rows, self._probabilities, self._dwell_steps = [], [], []


def probability_of(lease: Lease, row: StepRow) -> float | None:
    """Probability with which the row's table entry of this lease runs the row's mode.

    None if it cannot have run it: then something else chose.
    """
    if row.table_entry is None or row.table_entry >= len(lease.table):
        return None
    entry = lease.table[row.table_entry]
    if not (lease.exploration_dwell_steps and entry.alternatives):
        return 1.0 if row.mode == entry.mode else None
    return entry.probability_of(row.mode) or None


def dwell_of(lease: Lease, row: StepRow) -> int:
    """Steps between two draws of this lease; 0 if the row's table entry has nothing to draw."""
    entry = row.table_entry
    drawn = entry is not None and entry < len(lease.table) and lease.table[entry].alternatives
    return lease.exploration_dwell_steps if drawn else 0


def _hello_of(entry: Entry) -> EngineInfo | None:
    """The engine as it introduced itself, by this entry; None if it says nothing of that."""
    try:
        if entry.kind is Kind.HELLO:
            return read_hello(message_of(entry, pb.Hello))[0]
        if entry.kind in (Kind.CHECKPOINT, Kind.RESUMED):
            return read_hello(pb.Hello.FromString(content_of(entry, StateContent).hello))[0]
    except (WireError, DecodeError):
        # An engine that introduced itself wrongly was refused: there are no rows of it.
        return None
    return None


def _about(name: str, run: int, hello: EngineInfo) -> TraceEngine:
    start = hello.in_force.mode or (speculate(hello.initial_steps) if hello.initial_steps else None)
    return TraceEngine(
        name,
        run,
        modes=tuple(map(str, hello.modes)),
        graph_batch_sizes=hello.graph_batch_sizes,
        max_running_requests=hello.max_running_requests,
        initial_steps=hello.initial_steps,
        block_verification=hello.block_verification,
        start_mode=str(start) if start else "",
        cost_key=hello.cost_key.stated(),
        kv_capacity_tokens=hello.kv_capacity_tokens,
    )
