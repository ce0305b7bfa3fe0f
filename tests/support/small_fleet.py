"""A fleet without a daemon: engines sit down and leave, time is set by the test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from support.scripted_engine import MODES, decode_row
from trimtab.domain import EngineInfo, EngineKey, Mode, Report, speculate
from trimtab.policies.registry import policy_factory
from trimtab.server.fleet import Fleet
from trimtab.server.outbox import Outbox
from trimtab.server.seat import Seat
from trimtab.session.engine_session import SessionSettings
from trimtab.session.events import Pinned, Reported
from trimtab.session.orders import PinOrder, PolicyOrder, Selector
from trimtab.session.pins import Target, pin_for
from trimtabpb.v1 import control_pb2

S = 1_000_000_000


class SmallFleet(Fleet):
    """Engines follow `fixed` on 3 steps unless something else is ordered."""

    def __init__(self, max_engines: int = 64) -> None:
        self.clock_ns = 1000 * S
        super().__init__(
            "fixed", policy_factory("fixed", {"steps": 3}), SessionSettings(), self.read, self.read, max_engines
        )
        self._pins = 0

    def read(self) -> int:
        """The clock that the test sets."""
        return self.clock_ns

    def comes(self, engine_id: str, labels: Mapping[str, str] | None = None, **info: Any) -> Seat:
        """An engine connects."""
        about = {"modes": MODES, "graph_batch_sizes": (1, 2, 4), "labels": labels or {}, **info}
        hello = control_pb2.Hello(engine_id=engine_id, boot_id="b1", labels=labels)
        return self.join(EngineInfo(EngineKey(engine_id), about.pop("boot_id", "b1"), **about), hello, Outbox())

    def reports(self, seat: Seat, steps: int = 4, mode: Mode = MODES[-1], batch_size: int = 4) -> None:
        """The engine ran so many decode steps."""
        last = seat.session.report.seq if seat.session.report else 0
        rows = tuple(decode_row(last * 100 + i, mode, batch_size) for i in range(1, steps + 1))
        self.apply(seat, Reported(Report(last + 1, (last + 1) * S, rows)))

    def pins(self, target: Target, seconds: float | None = None, **selector: Any) -> PinOrder:
        """An operator pins engines, as the admin service does it."""
        self._pins += 1
        meant = Selector(**selector)
        deadline_ns = None if seconds is None else self.clock_ns + round(seconds * S)
        order = PinOrder(f"p{self._pins}", meant, target, self.clock_ns, deadline_ns)
        if meant.stands:
            self.orders.add_pin(order)
        for seat in self.meant(meant):
            self.apply(seat, Pinned(pin_for(seat.session, target, order.id), seconds))
        return order

    def meant(self, selector: Selector) -> list[Seat]:
        """The engines that the selector means."""
        return [seat for seat in self.seats() if seat.meant_by(selector)]

    def passes(self, seconds: float) -> None:
        """Time goes by."""
        self.clock_ns += round(seconds * S)
        self.tick()


def held(seats: Iterable[Seat]) -> list[str | None]:
    """What each engine is pinned to, as text."""
    return [str(seat.session.pin.pin) if seat.session.pin else None for seat in seats]


def steps_order(steps: int, shadow: bool = False, **selector: Any) -> PolicyOrder:
    """An order for policy `fixed` on so many steps."""
    parameters = {"steps": str(steps)}
    return PolicyOrder(Selector(**selector), "fixed", policy_factory("fixed", parameters), parameters, shadow)


def acting(seat: Seat) -> int:
    """Steps that the acting policy wants."""
    assert seat.session.decision is not None
    return seat.session.decision.bands[0].mode.steps


THREE, ONE = speculate(3), speculate(1)
