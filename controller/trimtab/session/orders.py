"""Standing orders: what holds for engines by label, those that are still to come among them.

Pods come and go under new ids, so an order for labels (or for all) is kept and given to every engine that it
means when that engine connects. The newest order goes before the older ones. Time comes in as an argument.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from trimtab.errors import TrimtabError
from trimtab.policies.registry import PolicyFactory
from trimtab.session.pins import Target

MAX_ORDERS = 256
MAX_RELEASED = 1024

Order = TypeVar("Order")


class TooManyOrdersError(TrimtabError):
    """There is no room for another standing order."""


@dataclass(frozen=True, slots=True)
class Selector:
    """The engines with these ids, or with all of these labels; without either, all engines."""

    engine_ids: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def stands(self) -> bool:
        """Whether engines that are still to come may be meant."""
        return not self.engine_ids

    def means(self, engine_id: str, labels: Mapping[str, str]) -> bool:
        """Whether this engine (ID, or ID/RANK for a data-parallel replica) is one of them; an ID means all replicas."""
        if self.engine_ids:
            server, _, rank = engine_id.rpartition("/")
            other_name = server if server and rank.isdigit() else f"{engine_id}/0"
            return engine_id in self.engine_ids or other_name in self.engine_ids
        return self.labels.items() <= labels.items()

    def covers(self, other: Selector) -> bool:
        """Whether every engine that the other means is certainly one of these."""
        if self.engine_ids or other.engine_ids:
            alike = bool(self.engine_ids) and bool(other.engine_ids)
            return set(other.engine_ids) <= set(self.engine_ids) if alike else not (self.engine_ids or self.labels)
        return self.labels.items() <= other.labels.items()

    def excludes(self, other: Selector) -> bool:
        """Whether certainly no engine is meant by both."""
        if self.engine_ids and other.engine_ids:
            return not set(self.engine_ids) & set(other.engine_ids)
        return any(self.labels.get(key, value) != value for key, value in other.labels.items())

    def __str__(self) -> str:
        if self.engine_ids:
            return ", ".join(self.engine_ids)
        return ", ".join(f"{key}={value}" for key, value in sorted(self.labels.items())) or "all"


@dataclass(frozen=True, slots=True)
class PinOrder:
    """A pin for whoever the selector means.

    Attributes:
        since_ns: When it was ordered, on the controller's monotonic clock.
        deadline_ns: When it is over; None: when it is released.
        released: Engines that it holds for no longer.
    """

    id: str
    selector: Selector
    target: Target
    since_ns: int
    deadline_ns: int | None = None
    reason: str = ""
    owner: str = ""
    released: tuple[Selector, ...] = ()

    def holds_for(self, engine_id: str, labels: Mapping[str, str]) -> bool:
        """Whether this engine is to be pinned by it."""
        return self.selector.means(engine_id, labels) and not any(s.means(engine_id, labels) for s in self.released)

    def remaining_s(self, now_ns: int) -> float | None:
        """Seconds left, at least 0; None without an end."""
        return None if self.deadline_ns is None else max(0.0, (self.deadline_ns - now_ns) / 1e9)


@dataclass(frozen=True, slots=True)
class PolicyOrder:
    """A policy for whoever the selector means, to act or as a shadow."""

    selector: Selector
    name: str
    factory: PolicyFactory
    parameters: Mapping[str, str] = field(default_factory=dict)
    shadow: bool = False

    def as_shadow(self) -> PolicyOrder:
        """The same policy, deciding beside the acting one."""
        return replace(self, shadow=True)


@dataclass(frozen=True, slots=True)
class Canary:
    """A policy that acts on some of the engines that its order selects; their ids and `threshold` alone decide which.

    Attributes:
        order: The policy, and the engines that it may act on.
        share: The share of them that was wished for.
        threshold: It acts on engines with a lot up to this one.
        since_ns: When it began, on the controller's monotonic clock.
    """

    order: PolicyOrder
    share: float
    threshold: float
    since_ns: int

    def takes(self, engine_id: str, labels: Mapping[str, str]) -> bool:
        """Whether it acts on this engine."""
        return self.order.selector.means(engine_id, labels) and lot(engine_id) <= self.threshold


def lot(engine_id: str) -> float:
    """A number in [0, 1) that depends on the id alone, and is spread evenly over ids."""
    return int.from_bytes(hashlib.sha256(engine_id.encode()).digest()[:7]) / (1 << 56)


def threshold_for(share: float, engine_ids: Iterable[str]) -> float:
    """The lot up to which engines belong to this share, so that at least one of these engines does."""
    return max(share, min(map(lot, engine_ids)))


class Orders:
    """All standing orders of a controller, and the canary.

    Attributes:
        pins: Standing pins, the newest last.
        policies: Standing policies, the newest last.
        canary: The policy that acts on some engines before it acts on all; None without one.
    """

    def __init__(self) -> None:
        self.pins: list[PinOrder] = []
        self.policies: list[PolicyOrder] = []
        self.canary: Canary | None = None

    def add_pin(self, order: PinOrder) -> None:
        """The order holds from now on; older ones for nobody but its engines end.

        Raises:
            TooManyOrdersError: There are too many already.
        """
        kept = [old for old in self.pins if not order.selector.covers(old.selector)]
        self._check_room(kept)
        self.pins = [*kept, order]

    def release(self, selector: Selector, present: Iterable[tuple[str, Mapping[str, str]]]) -> None:
        """No standing pin holds for these engines any more.

        Args:
            selector: The engines.
            present: Those of them that are known now, with their labels.

        Raises:
            TooManyOrdersError: An order has too many exceptions already; nothing changed.
        """
        engines = list(present)
        self.pins = [
            _without(order, selector) if _concerns(order, selector, engines) else order
            for order in self.pins
            if not selector.covers(order.selector)
        ]

    def expire(self, now_ns: int) -> None:
        """Forget the pins whose time is over."""
        if any(order.deadline_ns is not None and order.deadline_ns <= now_ns for order in self.pins):
            self.pins = [o for o in self.pins if o.deadline_ns is None or o.deadline_ns > now_ns]

    def pin_for(self, engine_id: str, labels: Mapping[str, str]) -> PinOrder | None:
        """The newest standing pin that holds for this engine."""
        return _newest(self.pins, lambda order: order.holds_for(engine_id, labels))

    def pin_with_id(self, pin_id: str) -> PinOrder | None:
        """The standing pin with this id."""
        return _newest(self.pins, lambda order: order.id == pin_id)

    def add_policy(self, order: PolicyOrder) -> None:
        """The order holds from now on for new engines; older ones for nobody but its engines end."""
        kept = [o for o in self.policies if o.shadow != order.shadow or not order.selector.covers(o.selector)]
        self._check_room(kept)
        self.policies = [*kept, order]

    def drop_shadows(self, selector: Selector) -> None:
        """New engines that this selector means get no shadow any more, as far as orders are for them alone."""
        self.policies = [o for o in self.policies if not (o.shadow and selector.covers(o.selector))]

    def shadow_of(self, selector: Selector) -> PolicyOrder | None:
        """The newest standing shadow that all of these engines have."""
        return _newest(self.policies, lambda order: order.shadow and order.selector.covers(selector))

    def policy_for(self, engine_id: str, labels: Mapping[str, str], shadow: bool = False) -> PolicyOrder | None:
        """The newest standing policy that holds for this engine."""
        return _newest(self.policies, lambda o: o.shadow == shadow and o.selector.means(engine_id, labels))

    def _check_room(self, orders: Sequence[PinOrder | PolicyOrder]) -> None:
        if len(orders) >= MAX_ORDERS:
            raise TooManyOrdersError(f"there are {MAX_ORDERS} standing orders already: release some first")


def _newest(orders: Sequence[Order], holds: Callable[[Order], bool]) -> Order | None:
    return next((order for order in reversed(orders) if holds(order)), None)


def _concerns(order: PinOrder, selector: Selector, engines: Iterable[tuple[str, Mapping[str, str]]]) -> bool:
    """Whether a release of these engines takes some away from the order, now or later."""
    if selector.stands:
        return not order.selector.excludes(selector)
    return any(order.holds_for(*engine) for engine in engines)


def _without(order: PinOrder, selector: Selector) -> PinOrder:
    """The order with an exception more, those that the new one covers left out."""
    if any(old.covers(selector) for old in order.released):
        return order
    released = (*(old for old in order.released if not selector.covers(old)), selector)
    if len(released) > MAX_RELEASED:
        raise TooManyOrdersError(
            f"the pin for {order.selector} has {MAX_RELEASED} exceptions already: release it as a whole"
        )
    return replace(order, released=released)
