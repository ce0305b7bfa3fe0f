"""Writes down what happens to the sessions: every event as the session got it, what came of it, and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from trimtab.session.engine_session import EngineSession
from trimtab.session.events import Connected, Effect, Event, Resumed, SendLease, ShuttingDown
from trimtab.session.orders import Orders
from trimtab.session.profiles import KeyedProfile, ProfileChoice
from trimtab.session.state import SessionState
from trimtab.store.content import AdminContent, SessionContent, StateContent
from trimtab.store.entries import Kind
from trimtab.store.records import (
    Record,
    effect_records,
    encode,
    event_record,
    failure_record,
    profile_content,
    profile_id,
)
from trimtab.store.writing import JournalFigures, JournalWriter
from trimtab.wire import Clocks, orders_message

if TYPE_CHECKING:
    from trimtab.server.audit import AuditEntry
    from trimtab.server.seat import Seat

CHECKPOINT_EVERY_S = 10.0
# Engines that come all at once have their checkpoints one after the other: no stream waits for a thousand of them.
CHECKPOINTS_AT_A_TIME = 16
# After entries that there was no room for.
AGAIN_AFTER_S = 1.0
# So that they are never too old for the journal.
STANDING_EVERY_S = 3600.0
NOTHING_STANDS = ((), (), None)
ORDER_WITHIN_S = 2.0

log = structlog.get_logger("trimtab")


@dataclass(slots=True)
class Written:
    """What the journal has of one session.

    Attributes:
        version: The newest lease version that is explained there.
        since_ns: When its last state was written.
        stale: Whether something happened since.
        begun: Whether a session that is lost could be found again.
    """

    version: int = 0
    since_ns: int = 0
    stale: bool = False
    begun: bool = False


class Profiles:
    """The cost profiles that sessions speak of, by id."""

    def __init__(self, profiles: Iterable[KeyedProfile] = ()) -> None:
        self.contents: dict[str, str] = {}
        self._ids: dict[int, str] = {}
        # An object's identity means something only while it lives.
        self._kept: list[object] = []
        for profile in profiles:
            self.keep(profile)

    def keep(self, profile: KeyedProfile) -> str:
        """Remember this profile; its id."""
        content = profile_content(profile)
        found = profile_id(content)
        self.contents[found] = content
        self._ids[id(profile.profile)] = found
        self._kept.append(profile)
        return found

    def id_of(self, choice: ProfileChoice) -> str:
        """Id of the profile that a session was told; empty without one."""
        return "" if choice.profile is None else self._ids.get(id(choice.profile), "")


class Scribe:
    """Turns events, effects and orders into entries. Called on the event loop; waits for nothing but `settled`.

    Args:
        writer: Takes the entries.
        profiles: Cost profiles that sessions may be told.
    """

    def __init__(self, writer: JournalWriter, profiles: Profiles) -> None:
        self._writer = writer
        self._profiles = profiles
        self._begun_anew = writer.file.begun_anew
        # The standing orders that the journal has, and since when.
        self._standing: object = NOTHING_STANDS
        self._standing_since_ns = 0

    @property
    def figures(self) -> JournalFigures:
        """How the journal does."""
        return self._writer.figures

    @property
    def path(self) -> str:
        """Where the journal is."""
        return str(self._writer.file.path)

    def lag_s(self) -> float:
        """Age of the oldest entry that is not on the disk; 0 without one."""
        return self._writer.lag_s()

    def began(self, seat: Seat, now_ns: int, wall_ns: int) -> None:
        """A session begins."""
        with self._guarded(seat):
            self._add(seat, [(Kind.SESSION, encode(self._session(seat.session)))], now_ns, wall_ns)

    def took(self, seat: Seat, event: Event, wire: bytes, effects: Sequence[Effect], now_ns: int, wall_ns: int) -> None:
        """A session took this event, from these bytes, and asked for these effects."""
        # These two change nothing that the next run would go on from.
        seat.written.stale |= not isinstance(event, Resumed | ShuttingDown)
        with self._guarded(seat):
            records = [self._event(seat, event, wire)]
            records += effect_records(seat.session, effects, seat.written.version)
            versions = [effect.lease.version for effect in effects if isinstance(effect, SendLease)]
            seat.written.version = max([seat.written.version, *versions])
            if isinstance(event, Connected) and not seat.written.begun:
                records.append(self._checkpoint(seat, now_ns))
            self._add(seat, records, now_ns, wall_ns)

    def failed(self, seat: Seat, event: Event, wire: bytes, error: Exception, now_ns: int, wall_ns: int) -> None:
        """A session failed on this event."""
        seat.written.stale = True
        with self._guarded(seat):
            self._add(seat, [self._event(seat, event, wire), failure_record(error)], now_ns, wall_ns)

    def checkpoints(self, seats: Iterable[Seat], now_ns: int, wall_ns: int) -> None:
        """Write down the state of sessions for which it is time, of not too many at once."""
        if self._writer.file.begun_anew != self._begun_anew:
            self._begun_anew, self._standing = self._writer.file.begun_anew, NOTHING_STANDS
            for seat in seats:
                seat.written.stale, seat.written.since_ns = True, 0
        due = [seat for seat in seats if seat.written.stale and self._due(seat, now_ns)]
        for seat in due[:CHECKPOINTS_AT_A_TIME]:
            self.checkpoint(seat, now_ns, wall_ns)

    def checkpoint(self, seat: Seat, now_ns: int, wall_ns: int) -> None:
        """Write down all that the session knows, if it is not there already."""
        if seat.written.stale:
            with self._guarded(seat):
                self._add(seat, [self._checkpoint(seat, now_ns)], now_ns, wall_ns)

    def standing(self, orders: Orders, now_ns: int, wall_ns: int) -> None:
        """Write down what stands, if it is not there already or has been there for long."""
        stands = (tuple(orders.pins), tuple(orders.policies), orders.canary)
        old = stands != NOTHING_STANDS and now_ns - self._standing_since_ns >= STANDING_EVERY_S * 1e9
        if stands == self._standing and not old:
            return
        kept = orders_message(orders, Clocks(now_ns, wall_ns)).SerializeToString(deterministic=True)
        if self._writer.add("", [(Kind.STANDING, kept)], now_ns, wall_ns):
            self._standing, self._standing_since_ns = stands, now_ns

    def ordered(self, entry: AuditEntry, now_ns: int) -> None:
        """Somebody ordered something, or wanted to."""
        content = AdminContent(
            call=entry.call,
            request=entry.request,
            engines=entry.engines,
            refused=entry.detail,
            who=entry.who,
            peer=entry.peer,
            claims=entry.claims,
            outcome=entry.outcome,
        )
        self._writer.add("", [(Kind.ADMIN, encode(content))], now_ns, entry.at_ns)

    @property
    def left_out(self) -> int:
        """Entries for which there was no room."""
        return self._writer.left_out

    async def settled(self, since: int) -> str:
        """Wait until everything so far is on the disk; why it is not, or empty. `since`: see `left_out`, before it."""
        return await self._writer.written(ORDER_WITHIN_S, since)

    # -- inside ----------------------------------------------------------------------------------

    def _add(self, seat: Seat, records: Sequence[Record], now_ns: int, wall_ns: int) -> None:
        if not self._writer.add(str(seat.key), records, now_ns, wall_ns):
            seat.written.begun, seat.written.stale = False, True

    @contextmanager
    def _guarded(self, seat: Seat) -> Iterator[None]:
        """What cannot be put into words is missing in the journal; the engine is steered all the same."""
        try:
            yield
        except Exception:
            log.exception("journal_entry_failed", engine=str(seat.key))
            self._writer.lose(str(seat.key))
            seat.written.stale = True

    def _event(self, seat: Seat, event: Event, wire: bytes) -> Record:
        if not isinstance(event, Resumed):
            return event_record(event, wire)
        seat.written.version, seat.written.begun = event.state.version, True
        return Kind.RESUMED, encode(self._state(seat, event.state, event.profile))

    def _checkpoint(self, seat: Seat, now_ns: int) -> Record:
        seat.written.since_ns, seat.written.stale, seat.written.begun = now_ns, False, True
        return Kind.CHECKPOINT, encode(self._state(seat, seat.session.state(), seat.session.profile))

    def _state(self, seat: Seat, state: SessionState, profile: ProfileChoice) -> StateContent:
        return StateContent(
            session=self._session(seat.session),
            state=state,
            profile=self._profiles.id_of(profile),
            profile_name=profile.name,
            profile_ignored=profile.ignored,
            hello=seat.hello.SerializeToString(),
            refused_input=dict(seat.refused),
        )

    def _session(self, session: EngineSession) -> SessionContent:
        settings = session.settings
        return SessionContent(
            policy=session.configured,
            report_interval_s=settings.report_interval_s,
            lease_ttl_s=settings.lease_ttl_s,
            seed=settings.seed,
            stall_after_s=settings.stall_after_s,
            profiles=tuple(self._profiles.id_of(ProfileChoice("", kept.profile)) for kept in settings.profiles),
        )

    def _due(self, seat: Seat, now_ns: int) -> bool:
        every_s = CHECKPOINT_EVERY_S if seat.written.begun else AGAIN_AFTER_S
        return now_ns - seat.written.since_ns >= every_s * 1e9
