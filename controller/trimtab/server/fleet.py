"""All engines that this controller knows, and the one place where their sessions are stepped.

Everything here runs on the event loop's thread. A session outlives its streams; effects are carried out at
once, by putting messages into the outbox of the engine's stream, so nothing here ever waits.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from trimtab.domain import EngineInfo, EngineKey
from trimtab.errors import TrimtabError
from trimtab.policies.registry import PolicyFactory
from trimtab.server import standing
from trimtab.server.outbox import Outbox
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
from trimtab.session.measured import Measured
from trimtab.session.orders import Canary, Orders, Selector
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


@dataclass(slots=True)
class Seat:
    """One engine's place in the controller. Owned by `Fleet`.

    Attributes:
        hello: The engine's last Hello, fit to be shown.
        outbox: What waits to be sent on the open stream; None without one.
        refused: Messages, columns and rows of this engine that were refused, by reason.
        reports: Reports taken in.
        leases: Leases handed to the stream, renewals included.
        canary: Whether a policy on trial acts here.
    """

    key: EngineKey
    session: EngineSession
    hello: control_pb2.Hello
    outbox: Outbox | None = None
    refused: Counter[str] = field(default_factory=Counter)
    reports: int = 0
    leases: int = 0
    canary: bool = False
    _measured_of: tuple[object, int] = (None, 0)
    _measured: Measured = field(default_factory=Measured)

    @property
    def identity(self) -> tuple[str, Mapping[str, str]]:
        """Id and labels, by which orders mean the engine."""
        return str(self.key), self.hello.labels

    def meant_by(self, selector: Selector) -> bool:
        """Whether the selector means the engine."""
        return selector.means(*self.identity)

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
    """

    def __init__(
        self,
        policy_name: str,
        factory: PolicyFactory,
        settings: SessionSettings,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
        max_engines: int = MAX_ENGINES,
    ) -> None:
        self.settings = settings
        self.orders = Orders()
        self.refused: Counter[str] = Counter()
        self._policy_name = policy_name
        self._factory = factory
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self._max_engines = max_engines
        self._seats: dict[EngineKey, Seat] = {}
        self._watchers: set[Watcher] = set()
        self._stopping = False
        self._started_ns = monotonic_ns()

    # -- engines ---------------------------------------------------------------------------------

    def join(self, info: EngineInfo, hello: control_pb2.Hello, outbox: Outbox) -> Seat:
        """Give the engine its seat, the old one if it was here before, and open its session.

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
        self.apply(seat, Connected(info))
        if new:
            self._begin_trials(seat)
        self._settle(seat)
        return seat

    def leave(self, seat: Seat, reason: str) -> None:
        """The engine's stream is over; its session stays."""
        seat.outbox = None
        self.apply(seat, Disconnected(reason))

    def apply(self, seat: Seat, event: Event) -> bool:
        """Step the engine's session and carry out what it asks for. False: the session failed on this event."""
        pinned = seat.session.pin is not None
        try:
            for effect in seat.session.step(event, self._monotonic_ns()):
                self._carry_out(seat, effect)
        except Exception:
            # One broken policy must not take the other engines down with it. The engine keeps its last lease
            # for as long as that lives, then its own policy.
            log.exception("session_failed", engine=str(seat.key), on=type(event).__name__)
            seat.refuse(["controller_error"])
            return False
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
            self.order(seat, ShadowSet(trial.name, trial.factory))
        self.order(seat, PoliciesSwapped())

    def take_off_canary(self, seat: Seat, canary: Canary) -> None:
        """The policy that acted before acts again, with what it learnt meanwhile; else the one meant for the engine."""
        seat.canary = False
        self.order(seat, PoliciesSwapped())
        if seat.session.follows(canary.order.factory):
            self.order(seat, PolicySet(*self._policy_of(*seat.identity)))

    def give_shadow(self, seat: Seat) -> None:
        """Give the engine the shadow that stands for it, if there is one."""
        standing.give_shadow(seat, self.orders, self.apply)

    def tick(self) -> None:
        """Let time pass for every session."""
        self.orders.expire(self.now_ns())
        for seat in list(self._seats.values()):
            self.apply(seat, Ticked())

    def stop(self, reason: str) -> None:
        """Send every engine back to its own policy, end all streams, and admit nobody any more."""
        self._stopping = True
        for seat in self._seats.values():
            self.apply(seat, ShuttingDown(reason))
            if seat.outbox is not None:
                seat.outbox.close()
        for watcher in self._watchers:
            watcher.close()

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
        seat = Seat(key, EngineSession(*self._policy_of(str(key), hello.labels), settings), hello)
        self._seats[key] = seat
        return seat

    def _has_own_pin(self, seat: Seat) -> bool:
        """Whether a pin would be lost with the seat; a standing one comes back with the engine."""
        pin = seat.session.pin
        return pin is not None and self.orders.pin_with_id(pin.pin.id) is None

    def _policy_of(self, engine_id: str, labels: Mapping[str, str]) -> tuple[str, PolicyFactory]:
        """The policy that is meant for the engine."""
        order = self.orders.policy_for(engine_id, labels)
        return (order.name, order.factory) if order else (self._policy_name, self._factory)

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
