"""All engines that this controller knows, and the one place where their sessions are stepped.

Everything here runs on the event loop's thread. A session outlives its streams; effects are carried out at
once, by putting messages into the outbox of the engine's stream, so nothing here ever waits.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from trimtab.domain import EngineInfo, EngineKey
from trimtab.errors import TrimtabError
from trimtab.policies.registry import PolicyFactory
from trimtab.server.outbox import Outbox
from trimtab.server.scribe import Scribe, Written
from trimtab.server.watcher import Watcher
from trimtab.session.engine_session import EngineSession, SessionSettings
from trimtab.session.events import (
    Connected,
    Disconnected,
    Effect,
    Event,
    Note,
    Reported,
    SendLease,
    SendRelease,
    ShuttingDown,
    Ticked,
)
from trimtab.session.measured import Measured
from trimtab.session.profiles import KeyedProfile
from trimtab.store.content import StateContent, resumed_of
from trimtab.wire import engine_message, lease_message, release_message
from trimtabpb.v1 import admin_pb2, control_pb2

MAX_ENGINES = 1024
MAX_WATCHERS = 64

log = structlog.get_logger("trimtab")


class AlreadyConnectedError(TrimtabError):
    """Another live stream has the same engine id and data-parallel rank."""


class FullError(TrimtabError):
    """No room for another engine, or another watching client."""


class StoppingError(TrimtabError):
    """The controller is on its way out."""


@dataclass(slots=True)
class Seat:
    """One engine's place in the controller. Owned by `Fleet`.

    Attributes:
        hello: The engine's last Hello, fit to be shown.
        outbox: What waits to be sent on the open stream; None without one.
        refused: Messages, columns and rows of this engine that were refused, by reason.
        reports: Reports taken in.
        leases: Leases handed to the stream, renewals included.
        written: What the journal has of the session.
    """

    key: EngineKey
    session: EngineSession
    hello: control_pb2.Hello
    outbox: Outbox | None = None
    refused: Counter[str] = field(default_factory=Counter)
    reports: int = 0
    leases: int = 0
    written: Written = field(default_factory=Written)
    _measured_of: tuple[object, int] = (None, 0)
    _measured: Measured = field(default_factory=Measured)

    def measured(self) -> Measured:
        """Figures of the session's window, worked out once a report."""
        window = self.session.window
        if self._measured_of != (window, self.reports):
            self._measured_of, self._measured = (window, self.reports), window.measure()
        return self._measured

    def refuse(self, reasons: Iterable[str] | Counter[str]) -> None:
        """Count what was refused; the first of its kind is logged."""
        new = Counter(reasons)
        for reason in new.keys() - self.refused.keys():
            log.warning("input_refused", engine=str(self.key), reason=reason, count=new[reason])
        self.refused.update(new)


class Fleet:
    """Seats engines, steps their sessions, and tells watching clients what changed.

    Args:
        policy_name: Policy that new engines get.
        factory: Makes that policy.
        settings: Settings of the sessions; each gets a seed of its own.
        monotonic_ns: Clock that sessions are stepped with.
        wall_ns: Clock for people, since the epoch.
        max_engines: Engines to remember, at most.
        parameters: Those that `factory` gives the policy.
        scribe: Writes down what happens; None: nobody does.
    """

    def __init__(
        self,
        policy_name: str,
        factory: PolicyFactory,
        settings: SessionSettings,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
        max_engines: int = MAX_ENGINES,
        parameters: Mapping[str, Any] | None = None,
        scribe: Scribe | None = None,
    ) -> None:
        self.settings = settings
        self.scribe = scribe
        self._parameters = parameters or {}
        self._policy_name = policy_name
        self._factory = factory
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self._max_engines = max_engines
        self._seats: dict[EngineKey, Seat] = {}
        self._watchers: set[Watcher] = set()
        self._stopping = False

    # -- engines ---------------------------------------------------------------------------------

    def resume(self, saved: Iterable[StateContent], profile: Callable[[str], KeyedProfile]) -> int:
        """Seat the engines that an earlier run knew, the pinned ones and the newest if there are too many; how many.

        Args:
            saved: What the journal knows of each.
            profile: Gives the cost profile with an id.
        """
        by_worth = sorted(
            ((content.state.info.key, content) for content in saved if content.state.info is not None),
            key=lambda known: (known[1].state.pin is None, -known[1].state.last_message_ns),
        )
        for key, content in by_worth[: self._max_engines]:
            seat = self._new_seat(key, control_pb2.Hello.FromString(content.hello))
            seat.refused.update(content.refused_input)
            self.apply(seat, resumed_of(content, profile))
        return len(self._seats)

    def join(self, info: EngineInfo, hello: control_pb2.Hello, outbox: Outbox, wire: bytes = b"") -> Seat:
        """Give the engine its seat, the old one if it was here before, and open its session.

        Args:
            info: What the engine says of itself.
            hello: Its Hello, fit to be shown.
            outbox: Takes what is to be sent on its stream.
            wire: The Hello as it came.

        Raises:
            AlreadyConnectedError: It sits there already, on another stream.
            FullError: Every seat is taken by an engine that is connected or pinned.
            StoppingError: The controller stops.
        """
        if self._stopping:
            raise StoppingError("the controller stops: connect again later")
        seat = self._seats.get(info.key)
        if seat is not None and seat.outbox is not None:
            raise AlreadyConnectedError(
                f"engine {info.key} is connected already (boot id {seat.hello.boot_id}): "
                "stop the other one, or give this one another TRIMTAB_ENGINE_ID"
            )
        if seat is None:
            seat = self._new_seat(info.key, hello)
        seat.hello, seat.outbox = hello, outbox
        self.apply(seat, Connected(info), wire)
        return seat

    def leave(self, seat: Seat, reason: str) -> None:
        """The engine's stream is over; its session stays."""
        seat.outbox = None
        self.apply(seat, Disconnected(reason))

    def apply(self, seat: Seat, event: Event, wire: bytes = b"") -> bool:
        """Step the engine's session and carry out what it asks for. False: the session failed on this event.

        `wire` are the bytes that the event came in, for the journal.
        """
        now_ns, wall_ns = self._monotonic_ns(), self._wall_ns()
        try:
            effects = seat.session.step(event, now_ns)
            for effect in effects:
                self._carry_out(seat, effect)
        except Exception as error:
            # One broken policy must not take the other engines down with it. The engine keeps its last lease
            # for as long as that lives, then its own policy.
            log.exception("session_failed", engine=str(seat.key), on=type(event).__name__)
            seat.refuse(["controller_error"])
            if self.scribe is not None:
                self.scribe.failed(seat, event, wire, error, now_ns, wall_ns)
            return False
        # Time that passes without consequences leaves no trace.
        if self.scribe is not None and (effects or not isinstance(event, Ticked)):
            self.scribe.took(seat, event, wire, effects, now_ns, wall_ns)
        seat.reports += isinstance(event, Reported)
        if not isinstance(event, Ticked):
            for watcher in self._watchers:
                watcher.mark(seat.key)
        return True

    def tick(self) -> None:
        """Let time pass for every session."""
        for seat in list(self._seats.values()):
            self.apply(seat, Ticked())
        if self.scribe is not None:
            self.scribe.checkpoints(self._seats.values(), self._monotonic_ns(), self._wall_ns())

    def stop(self, reason: str) -> None:
        """Send every engine back to its own policy, end all streams, and admit nobody any more."""
        self._stopping = True
        for seat in self._seats.values():
            self.apply(seat, ShuttingDown(reason))
            if seat.outbox is not None:
                seat.outbox.close()
        for watcher in self._watchers:
            watcher.close()

    def save(self) -> None:
        """Write down what every session knows, so that the next run can go on from there."""
        if self.scribe is not None:
            for seat in self._seats.values():
                self.scribe.checkpoint(seat, self._monotonic_ns(), self._wall_ns())

    # -- orders ----------------------------------------------------------------------------------

    def note_order(self, call: str, request: Mapping[str, Any], engines: Sequence[str], refused: str = "") -> None:
        """An operator asked for something, by a call of the admin service; `refused` says why nothing was done."""
        if self.scribe is not None:
            self.scribe.ordered(call, request, engines, refused, self._monotonic_ns(), self._wall_ns())

    async def settled(self, since: int) -> str:
        """Wait until an order is in the journal; why it is not, or empty. Without a journal: empty.

        `since` is what `left_out` was before it.
        """
        return "" if self.scribe is None else await self.scribe.settled(since)

    @property
    def left_out(self) -> int:
        """Entries for which the journal had no room."""
        return 0 if self.scribe is None else self.scribe.left_out

    # -- questions -------------------------------------------------------------------------------

    def seats(self) -> list[Seat]:
        """Every seat, by engine."""
        return [self._seats[key] for key in sorted(self._seats)]

    def seat(self, key: EngineKey) -> Seat | None:
        """The seat of this engine."""
        return self._seats.get(key)

    def view(self, seat: Seat) -> admin_pb2.Engine:
        """The engine as operators see it."""
        return engine_message(
            seat.session,
            seat.hello,
            seat.measured(),
            seat.session.refused + seat.refused,
            self._monotonic_ns(),
            self._wall_ns(),
        )

    def watch(self) -> Watcher:
        """A watcher that is told of every change from now on; `FullError` if there are too many."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise FullError(f"{MAX_WATCHERS} clients watch already: close one first")
        watcher = Watcher()
        self._watchers.add(watcher)
        if self._stopping:
            watcher.close()
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        """This watcher is gone."""
        self._watchers.discard(watcher)

    # -- inside ----------------------------------------------------------------------------------

    def _new_seat(self, key: EngineKey, hello: control_pb2.Hello) -> Seat:
        if len(self._seats) >= self._max_engines:
            self._forget_one()
        # Engines that explore should not do so in step.
        settings = replace(self.settings, seed=zlib.crc32(str(key).encode()))
        seat = Seat(key, EngineSession(self._policy_name, self._factory, settings, self._parameters), hello)
        self._seats[key] = seat
        if self.scribe is not None:
            self.scribe.began(seat, self._monotonic_ns(), self._wall_ns())
        return seat

    def _forget_one(self) -> None:
        """Make room: forget the engine that has been away longest and that nobody pinned."""
        away = [seat for seat in self._seats.values() if seat.outbox is None and seat.session.pin is None]
        if not away:
            raise FullError(f"{self._max_engines} engines are connected or pinned: no room for another")
        oldest = min(away, key=lambda seat: seat.session.last_message_ns)
        del self._seats[oldest.key]
        log.info("engine_forgotten", engine=str(oldest.key))

    def _carry_out(self, seat: Seat, effect: Effect) -> None:
        match effect:
            case SendLease():
                seat.leases += 1
                self._send(seat, lease_message(effect))
            case SendRelease():
                self._send(seat, release_message(effect))
            case Note():
                write = log.warning if effect.warning else log.info
                write(effect.event, **{"engine": str(seat.key), **effect.fields})

    def _send(self, seat: Seat, message: control_pb2.ControllerMessage) -> None:
        if seat.outbox is not None:
            seat.outbox.put(message)
