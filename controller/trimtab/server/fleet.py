"""All engines that this controller knows, and the one place where their sessions are stepped.

Everything here runs on the event loop's thread. A session outlives its streams; effects are carried out at
once, by putting messages into the outbox of the engine's stream, so nothing here ever waits.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog

from trimtab.domain import EngineInfo, EngineKey
from trimtab.errors import TrimtabError
from trimtab.policies.registry import PolicyFactory
from trimtab.server import standing
from trimtab.server.audit import AuditEntry
from trimtab.server.outbox import Outbox
from trimtab.server.scribe import Scribe
from trimtab.server.seat import Seat
from trimtab.server.watcher import Watcher
from trimtab.session.engine_session import EngineSession, SessionSettings
from trimtab.session.events import (
    Connected,
    Disconnected,
    Effect,
    Event,
    Note,
    PoliciesSwapped,
    PolicySet,
    Reported,
    SendLease,
    SendRelease,
    ShadowSet,
    ShuttingDown,
    Ticked,
)
from trimtab.session.orders import Canary, Orders
from trimtab.session.profiles import KeyedProfile
from trimtab.session.state import PolicyChoice
from trimtab.store.content import StateContent, resumed_of
from trimtab.wire import (
    Clocks,
    engine_message,
    lease_message,
    orders_message,
    release_message,
    selector_message,
)
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
        self.orders = Orders()
        self.refused: Counter[str] = Counter()
        self._configured = PolicyChoice(policy_name, parameters or {})
        self._factory = factory
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self._max_engines = max_engines
        self._seats: dict[EngineKey, Seat] = {}
        self._watchers: set[Watcher] = set()
        self._stopping = False
        self._started_ns = monotonic_ns()

    # -- engines ---------------------------------------------------------------------------------

    def resume(
        self, saved: Iterable[StateContent], profile: Callable[[str], KeyedProfile], orders: Orders | None = None
    ) -> int:
        """Seat the engines that an earlier run knew, the pinned ones and the newest if there are too many; how many.

        Args:
            saved: What the journal knows of each.
            profile: Gives the cost profile with an id.
            orders: The standing orders of that run.
        """
        self.orders = orders or self.orders
        self.orders.expire(self.now_ns())
        by_worth = sorted(
            ((content.state.info.key, content) for content in saved if content.state.info is not None),
            key=lambda known: (known[1].state.pin is None, -known[1].state.last_message_ns),
        )
        for key, content in by_worth[: self._max_engines]:
            seat = self._new_seat(key, control_pb2.Hello.FromString(content.hello))
            seat.refused.update(content.refused_input)
            self.apply(seat, resumed_of(content, profile))
            self._resume_canary(seat)
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
        new = seat is None
        if seat is not None and seat.outbox is not None:
            raise AlreadyConnectedError(
                f"engine {info.key} is connected already (boot id {seat.hello.boot_id}): "
                "stop the other one, or give this one another TRIMTAB_ENGINE_ID"
            )
        if seat is None:
            seat = self._new_seat(info.key, hello)
        seat.hello, seat.outbox = hello, outbox
        self.apply(seat, Connected(info), wire)
        if new:
            self._begin_trials(seat)
        self._settle(seat)
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
        pinned = seat.session.pin is not None
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
        if pinned and seat.session.pin is None:
            # A pin of its own is over; what stands for the engine otherwise holds again.
            self._settle(seat)
        if not isinstance(event, Ticked):
            for watcher in self._watchers:
                watcher.mark(seat.key)
        return True

    def order(self, seat: Seat, event: Event) -> None:
        """Step the engine's session with an operator's order; `TrimtabError` if the session failed on it."""
        if not self.apply(seat, event):
            raise TrimtabError(f"the controller failed on this order for {seat.key}: look at its log")

    def put_on_canary(self, seat: Seat, canary: Canary) -> None:
        """The canary's policy acts on the engine, and the one that acted goes on as its shadow."""
        trial, shadow = canary.order, seat.session.shadow
        seat.canary = True
        if seat.session.follows(trial.factory):
            return
        if shadow is None or shadow.factory != trial.factory:
            self.order(seat, ShadowSet(trial.name, trial.factory, trial.parameters))
        self.order(seat, PoliciesSwapped())

    def take_off_canary(self, seat: Seat, canary: Canary) -> None:
        """The policy that acted before acts again, with what it learnt meanwhile; else the one meant for the engine."""
        seat.canary = False
        self.order(seat, PoliciesSwapped())
        if seat.session.follows(canary.order.factory):
            choice, factory = self._policy_of(*seat.identity)
            self.order(seat, PolicySet(choice.name, factory, choice.parameters))

    def give_shadow(self, seat: Seat) -> None:
        """Give the engine the shadow that stands for it, if there is one."""
        standing.give_shadow(seat, self.orders, self.apply)

    def tick(self) -> None:
        """Let time pass for every session."""
        self.orders.expire(self.now_ns())
        for seat in list(self._seats.values()):
            self.apply(seat, Ticked())
        if self.scribe is not None:
            self.scribe.standing(self.orders, self._monotonic_ns(), self._wall_ns())
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
            self.scribe.standing(self.orders, self._monotonic_ns(), self._wall_ns())
            for seat in self._seats.values():
                self.scribe.checkpoint(seat, self._monotonic_ns(), self._wall_ns())

    # -- orders ----------------------------------------------------------------------------------

    def note_order(self, entry: AuditEntry) -> None:
        """An operator ordered something, or was refused: keep this, and what stands now."""
        if self.scribe is not None and entry.orders:
            self.scribe.standing(self.orders, self._monotonic_ns(), self._wall_ns())
            self.scribe.ordered(entry, self._monotonic_ns())

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

    def now_ns(self) -> int:
        """The clock that sessions are stepped with."""
        return self._monotonic_ns()

    def seats(self) -> list[Seat]:
        """Every seat, by engine."""
        return [self._seats[key] for key in sorted(self._seats)]

    def seat(self, key: EngineKey) -> Seat | None:
        """The seat of this engine."""
        return self._seats.get(key)

    def view(self, seat: Seat) -> admin_pb2.Engine:
        """The engine as operators see it."""
        message = engine_message(
            seat.session,
            seat.hello,
            seat.measured(),
            seat.session.refused + seat.refused,
            self._monotonic_ns(),
            self._wall_ns(),
        )
        message.policy.canary = seat.canary
        order = self.orders.pin_with_id(message.pin.id) if message.HasField("pin") else None
        if order is not None:
            message.pin_selector.CopyFrom(selector_message(order.selector))
        return message

    def overview(self) -> admin_pb2.Controller:
        """The controller as operators see it."""
        clocks = Clocks(self._monotonic_ns(), self._wall_ns())
        message = orders_message(self.orders, clocks, [str(seat.key) for seat in self.seats() if seat.canary])
        message.started_at.CopyFrom(clocks.timestamp(self._started_ns))
        message.refused.update(self.refused)
        return message

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
        choice, factory = self._policy_of(str(key), hello.labels)
        seat = Seat(key, EngineSession(choice.name, factory, settings, choice.parameters), hello)
        self._seats[key] = seat
        if self.scribe is not None:
            self.scribe.began(seat, self._monotonic_ns(), self._wall_ns())
        return seat

    def _has_own_pin(self, seat: Seat) -> bool:
        """Whether a pin would be lost with the seat; a standing one comes back with the engine."""
        pin = seat.session.pin
        return pin is not None and self.orders.pin_with_id(pin.pin.id) is None

    def _policy_of(self, engine_id: str, labels: Mapping[str, str]) -> tuple[PolicyChoice, PolicyFactory]:
        """The policy that is meant for the engine."""
        order = self.orders.policy_for(engine_id, labels)
        if order is None:
            return self._configured, self._factory
        return PolicyChoice(order.name, order.parameters), order.factory

    def _settle(self, seat: Seat) -> None:
        self.orders.expire(self.now_ns())
        standing.settle(seat, self.orders, self.apply, self.now_ns())

    def _begin_trials(self, seat: Seat) -> None:
        """A new engine takes part in what is on trial."""
        canary = self.orders.canary
        if canary is not None and seat.session.known().acts and canary.takes(*seat.identity):
            self.put_on_canary(seat, canary)
        else:
            self.give_shadow(seat)

    def _resume_canary(self, seat: Seat) -> None:
        """An engine of the canary is on it again; whose session could not go on with its policy, is put on it anew."""
        canary = self.orders.canary
        if canary is not None and seat.session.known().acts and canary.takes(*seat.identity):
            # A session that fails on this is in the log; the others have to go on.
            with suppress(TrimtabError):
                self.put_on_canary(seat, canary)

    def _forget_one(self) -> None:
        """Make room: forget the engine that has been away longest and that nobody pinned."""
        away = [seat for seat in self._seats.values() if seat.outbox is None and not self._has_own_pin(seat)]
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
