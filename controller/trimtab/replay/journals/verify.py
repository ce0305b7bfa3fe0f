"""Was every decision in a journal the one that the record leads to? The same session, run again over what came in.

Each engine's session begins where its record does: fresh, as a restarted daemon took it over, or at the first
checkpoint that is left. Every lease, Release and decision that it gives is compared with what was recorded, decoded,
floats to 1e-9; at every checkpoint all that the session knows is compared as well. Where entries are missing, nobody
can follow; verification goes on at the next checkpoint, and the entries between count as not verified.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from trimtab import __version__
from trimtab.errors import DataError, PolicyError
from trimtab.replay.journals.comparison import first_mismatch
from trimtab.session.engine_session import EngineSession
from trimtab.session.events import Event, Resumed, SendLease
from trimtab.store.content import (
    SessionContent,
    StateContent,
    content_of,
    event_of,
    resumed_of,
    sent_lease_of,
    session_of,
)
from trimtab.store.entries import EVENTS, STATES, Entry, Kind
from trimtab.store.reading import Journal
from trimtab.store.records import Record, effect_records, encode, failure_record

# What a session decides; notes are words for people and may change between versions.
DECIDED = frozenset({Kind.LEASE, Kind.DECISION, Kind.RELEASE, Kind.FAILED})
# Told of progress every so many entries.
STRIDE = 256


class Difference(msgspec.Struct, frozen=True):
    """The first place in which a session that was run again differs from the record.

    Attributes:
        seq: The entry that differs; `run` and `wall_ns` are when it was written.
        kind: What it is: lease, decision, release, checkpoint, or failed.
        field: Where in it, for example `lease.table[0].probability`; empty if there is none of it at all.
        recorded: What the journal says; null: nothing.
        replayed: What comes out now; null: nothing.
    """

    engine: str
    run: int
    seq: int
    wall_ns: int
    kind: str
    field: str
    recorded: Any
    replayed: Any


class EngineVerdict(msgspec.Struct, frozen=True):
    """How it went for one engine.

    Attributes:
        entries: Its entries in the journal.
        unverified: Those that could not be followed, since entries before them are missing.
        decisions: Leases, Releases and decisions that were compared.
        checkpoints: Checkpoints that were compared.
        difference: The first difference; null: none. What comes after it was not looked at.
    """

    engine: str
    entries: int
    unverified: int
    decisions: int
    checkpoints: int
    difference: Difference | None


class VerifyResult(msgspec.Struct, frozen=True):
    """How it went for a journal.

    Attributes:
        engines: One verdict an engine, by name.
        written_by: Versions of Trimtab that wrote the journal, the oldest first.
        verified_by: The version that looked.
        lost: Entries that the journal says were lost, of all engines; of a run that died at least one.
        difference: The first difference of all engines; null: none.
        unverified_share: Share of the entries that could not be followed.
    """

    engines: tuple[EngineVerdict, ...]
    written_by: tuple[str, ...]
    verified_by: str
    lost: int
    difference: Difference | None
    unverified_share: float

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return self.difference is None


def verify(path: Path, engine: str | None = None, progress: Callable[[int, int], None] | None = None) -> VerifyResult:
    """Run the sessions of a journal again and compare.

    Args:
        path: The journal, or the directory that it is in.
        engine: Only this engine.
        progress: Told how many entries of how many were looked at.

    Raises:
        DataError: The file is no journal, is damaged, or knows no such engine.
    """
    with Journal(path) as journal:
        names = _chosen(journal, engine)
        total = sum(journal.count(name) for name in names)
        done, verdicts = 0, []
        for name in names:
            tell = _teller(progress, done, total)
            verdicts.append(_verify_engine(journal, name, tell))
            done += verdicts[-1].entries
        if progress is not None:
            progress(total, total)
        return _result(journal, tuple(verdicts))


def _chosen(journal: Journal, engine: str | None) -> list[str]:
    known = journal.engines()
    if engine is None:
        return known
    if engine not in known:
        raise DataError(str(journal.path), f"knows no engine {engine!r}; known are: {', '.join(known[:20]) or 'none'}")
    return [engine]


def _teller(progress: Callable[[int, int], None] | None, before: int, total: int) -> Callable[[int], None]:
    def tell(done: int) -> None:
        if progress is not None and done % STRIDE == 0:
            progress(before + done, total)

    return tell


def _verify_engine(journal: Journal, engine: str, tell: Callable[[int], None]) -> EngineVerdict:
    follower = _Follower(journal)
    entries = 0
    try:
        for entry in journal.entries(engine):
            entries += 1
            tell(entries)
            follower.take(entry)
        follower.finish()
    except DataError as error:
        known = error.place.startswith(str(journal.path))
        raise error if known else DataError(f"{journal.path}, {error.place}", error.problem) from error
    except _DiffersError as found:
        entries = journal.count(engine)
        return EngineVerdict(engine, entries, *follower.counts, found.difference)
    return EngineVerdict(engine, entries, *follower.counts, None)


def _result(journal: Journal, verdicts: tuple[EngineVerdict, ...]) -> VerifyResult:
    found = [verdict.difference for verdict in verdicts if verdict.difference is not None]
    entries = sum(verdict.entries for verdict in verdicts)
    unverified = sum(verdict.unverified for verdict in verdicts)
    return VerifyResult(
        engines=verdicts,
        written_by=tuple(dict.fromkeys(run.version for run in journal.runs())),
        verified_by=__version__,
        lost=sum(gap.lost for gap in journal.gaps()),
        difference=min(found, key=lambda difference: difference.seq, default=None),
        unverified_share=unverified / entries if entries else 0.0,
    )


class _DiffersError(Exception):
    def __init__(self, difference: Difference) -> None:
        super().__init__()
        self.difference = difference


class _Follower:
    """Runs one engine's session along its record."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._session: EngineSession | None = None
        # The newest lease version whose decision is known to be in the journal.
        self._explained = 0
        self._expected: deque[Record] = deque()
        self._event: Entry | None = None
        self._unverified = 0
        self._decisions = 0
        self._checkpoints = 0

    @property
    def counts(self) -> tuple[int, int, int]:
        """Entries not verified, decisions and checkpoints compared."""
        return self._unverified, self._decisions, self._checkpoints

    def take(self, entry: Entry) -> None:
        """Follow the record by one entry."""
        if entry.missing:
            self._session = None
            self._expected.clear()
        if entry.kind is Kind.NOTE:
            return
        if entry.kind in DECIDED and self._session is not None:
            self._compare(entry)
            return
        self.finish()
        if entry.kind is Kind.SESSION:
            self._session, self._explained = self._begin(content_of(entry, SessionContent)), 0
        elif self._session is None:
            self._pick_up(entry)
        elif entry.kind is Kind.CHECKPOINT:
            self._compare_state(entry, self._session)
        elif entry.kind in EVENTS:
            self._step(entry, self._session)

    def finish(self) -> None:
        """Nothing more came of the last event: complain if something should have."""
        if self._expected and self._event is not None:
            kind, payload = self._expected[0]
            replayed = _decoded(Entry(0, 0, "", 0, kind, 0, 0, payload))
            raise _DiffersError(_difference(self._event, kind, "", None, replayed))

    def _begin(self, content: SessionContent) -> EngineSession | None:
        """The session, or None where its policy is not known to this version."""
        try:
            return session_of(content, self._journal.profile)
        except PolicyError:
            return None

    def _pick_up(self, entry: Entry) -> None:
        """Without a session: begin at a state, pass over everything else."""
        if entry.kind not in STATES:
            self._unverified += 1
            return
        content = content_of(entry, StateContent)
        session = self._begin(content.session)
        if session is None:
            self._unverified += 1
            return
        session.step(resumed_of(content, self._journal.profile), entry.now_ns)
        self._session, self._explained = session, content.state.version

    def _step(self, entry: Entry, session: EngineSession) -> None:
        event = event_of(entry, self._journal.profile)
        if isinstance(event, Resumed):
            self._explained = event.state.version
        self._event = entry
        self._expected.extend(record for record in self._outcome(session, event, entry) if record[0] in DECIDED)

    def _outcome(self, session: EngineSession, event: Event, entry: Entry) -> Iterator[Record]:
        try:
            effects = session.step(event, entry.now_ns)
            records = effect_records(session, effects, self._explained)
        except Exception as error:  # noqa: BLE001
            # The session failed when it was live as well, or else this is the difference.
            yield failure_record(error)
            return
        yield from records
        versions = [effect.lease.version for effect in effects if isinstance(effect, SendLease)]
        self._explained = max([self._explained, *versions])

    def _compare(self, entry: Entry) -> None:
        if not self._expected:
            raise _DiffersError(_difference(entry, entry.kind, "", _decoded(entry), None))
        kind, payload = self._expected.popleft()
        if kind is not entry.kind:
            raise _DiffersError(_difference(entry, entry.kind, "kind", str(entry.kind), str(kind)))
        self._decisions += 1
        self._hold(entry, _decoded(entry), _decoded(_with(entry, payload)))

    def _compare_state(self, entry: Entry, session: EngineSession) -> None:
        # Through the content: what an older Trimtab did not write down is what it did not have.
        recorded = msgspec.json.decode(encode(content_of(entry, StateContent).state))
        self._checkpoints += 1
        self._hold(entry, recorded, msgspec.json.decode(encode(session.state())))

    def _hold(self, entry: Entry, recorded: Any, replayed: Any) -> None:
        found = first_mismatch(recorded, replayed)
        if found is not None:
            raise _DiffersError(_difference(entry, entry.kind, found.field, found.recorded, found.replayed))


def _with(entry: Entry, payload: bytes) -> Entry:
    return Entry(entry.seq, entry.run, entry.engine, 0, entry.kind, entry.now_ns, entry.wall_ns, payload)


def _difference(entry: Entry, kind: Kind, field: str, recorded: Any, replayed: Any) -> Difference:
    return Difference(entry.engine, entry.run, entry.seq, entry.wall_ns, str(kind), field, recorded, replayed)


def _decoded(entry: Entry) -> Any:
    """The content as plain values; the words of an error are not compared, its kind is."""
    if entry.kind is Kind.LEASE:
        return msgspec.to_builtins(sent_lease_of(entry))
    content = content_of(entry, dict)
    content.pop("words", None)
    return content
