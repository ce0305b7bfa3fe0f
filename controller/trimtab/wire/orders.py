"""What operators order: every field of their requests checked, and standing orders as messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp

from trimtab.domain import Mode, StepRange
from trimtab.errors import TrimtabError, WireError
from trimtab.policies.registry import policy_factory
from trimtab.session.orders import MAX_RELEASED, Canary, Orders, PinOrder, PolicyOrder, Selector
from trimtab.session.pins import Relative, Target
from trimtab.wire import bounds
from trimtab.wire.admin import timestamp
from trimtab.wire.bounds import duration, duration_s
from trimtab.wire.modes import mode_from_wire, mode_to_wire, range_from_wire, range_to_wire
from trimtabpb.v1 import admin_pb2

PIN_DURATION_S = (1.0, 30 * 86_400.0)
MAX_IDS = 1024
NO_SELECTOR = "give engine_ids, all or labels, and only one of them"


@dataclass(frozen=True, slots=True)
class Clocks:
    """The controller's monotonic and wall clock at one moment, in nanoseconds."""

    now_ns: int
    wall_ns: int

    def timestamp(self, then_ns: int) -> Timestamp:
        """The wall time of a moment on the monotonic clock."""
        return timestamp(then_ns, self.now_ns, self.wall_ns)

    def moment_ns(self, field: str, then: Timestamp) -> int:
        """The moment on the monotonic clock of a wall time, no later than now; `WireError` if it is none."""
        return self.now_ns - max(0, self.wall_ns - bounds.moment_ns(field, then))


def selector_ordered(message: admin_pb2.Selector) -> Selector:
    """The engines that an order is for; `WireError` if it names them in no way, or in more than one."""
    if bool(message.engine_ids) + message.all + bool(message.labels) != 1:
        raise WireError("selector", NO_SELECTOR)
    return selector_asked(message)


def selector_asked(message: admin_pb2.Selector) -> Selector:
    """The engines that a question is about; all of them, if it names none."""
    bounds.at_most("selector.engine_ids", message.engine_ids, MAX_IDS)
    ids = tuple(bounds.name("selector.engine_ids", one, bounds.MAX_ENGINE) for one in dict.fromkeys(message.engine_ids))
    return Selector(ids, bounds.texts("selector.labels", message.labels))


def engine_asked(message: admin_pb2.GetEngineRequest) -> Selector:
    """The one engine that a question is about."""
    return Selector((bounds.name("engine_id", message.engine_id, bounds.MAX_ENGINE),))


def target_ordered(request: admin_pb2.PinRequest) -> Target:
    """What a pin is to hold; `WireError` if it names nothing."""
    match request.WhichOneof("target"):
        case "mode":
            return mode_from_wire("mode", request.mode)
        case "range":
            return range_from_wire("range", request.range)
        case "any_plain" if request.any_plain:
            return Relative.ANY_PLAIN
        case "in_force" if request.in_force:
            return Relative.IN_FORCE
    raise WireError("target", "name a mode or a range of steps, or any_plain, or in_force")


def pin_duration_s(request: admin_pb2.PinRequest) -> float | None:
    """How long the pin is to hold; None until it is released. `WireError` if too short or too long."""
    return duration_s("duration", request.duration, *PIN_DURATION_S) if request.HasField("duration") else None


def parameters_ordered(request: admin_pb2.SetPolicyRequest) -> dict[str, str]:
    """Parameters of a policy, as text; `WireError` if there are too many, or one is too long."""
    return bounds.texts("parameters", request.parameters)


def share_ordered(request: admin_pb2.SetPolicyRequest) -> float:
    """The share of the engines that a canary acts on; `WireError` if it is none."""
    if not 0 <= request.share <= 1:
        raise WireError("share", f"must be above 0 and at most 1, is {request.share:g}")
    if request.share and request.role != admin_pb2.SetPolicyRequest.ROLE_CANARY:
        raise WireError("share", "goes with a canary only")
    return request.share or 1.0


def role_ordered(request: admin_pb2.SetPolicyRequest) -> admin_pb2.SetPolicyRequest.Role.ValueType:
    """What the policy is to be; `WireError` if this is unknown."""
    roles = admin_pb2.SetPolicyRequest.Role
    if request.role not in roles.values():
        raise WireError("role", f"{request.role} is not a known role of a policy")
    return request.role or admin_pb2.SetPolicyRequest.ROLE_ACTING


def selector_message(selector: Selector) -> admin_pb2.Selector:
    """The message of this selector."""
    everything = not selector.engine_ids and not selector.labels
    return admin_pb2.Selector(engine_ids=selector.engine_ids, all=everything, labels=dict(selector.labels))


def pin_order_message(order: PinOrder, clocks: Clocks) -> admin_pb2.StandingPin:
    """A standing pin as operators see it."""
    remaining_s = order.remaining_s(clocks.now_ns)
    message = admin_pb2.StandingPin(
        id=order.id,
        selector=selector_message(order.selector),
        remaining=None if remaining_s is None else duration(remaining_s),
        reason=order.reason,
        owner=order.owner,
        pinned_at=clocks.timestamp(order.since_ns),
        released=[selector_message(selector) for selector in order.released],
    )
    match order.target:
        case Mode():
            message.mode.CopyFrom(mode_to_wire(order.target))
        case StepRange():
            message.range.CopyFrom(range_to_wire(order.target))
        case Relative():
            message.any_plain = True
    return message


def policy_order_message(order: PolicyOrder) -> admin_pb2.StandingPolicy:
    """A standing policy as operators see it."""
    return admin_pb2.StandingPolicy(
        selector=selector_message(order.selector),
        policy=order.name,
        parameters=dict(order.parameters),
        shadow=order.shadow,
    )


def canary_message(canary: Canary, engine_ids: Iterable[str], clocks: Clocks) -> admin_pb2.Canary:
    """The canary as operators see it."""
    return admin_pb2.Canary(
        policy=canary.order.name,
        parameters=dict(canary.order.parameters),
        selector=selector_message(canary.order.selector),
        share=canary.share,
        since=clocks.timestamp(canary.since_ns),
        engine_ids=engine_ids,
        threshold=canary.threshold,
    )


def orders_message(orders: Orders, clocks: Clocks, on_canary: Iterable[str] = ()) -> admin_pb2.Controller:
    """All standing orders, to be shown, or to be kept over a restart of the controller (see `read_orders`)."""
    return admin_pb2.Controller(
        pins=[pin_order_message(order, clocks) for order in orders.pins],
        policies=[policy_order_message(order) for order in orders.policies],
        canary=canary_message(orders.canary, on_canary, clocks) if orders.canary else None,
    )


def read_orders(message: admin_pb2.Controller, clocks: Clocks) -> tuple[Orders, list[str]]:
    """The standing orders of a message, deadlines counted from now on; and what is wrong with those left out."""
    orders, problems = Orders(), []
    for i, pin in enumerate(message.pins):
        try:
            orders.add_pin(_read_pin_order(f"pins[{i}]", pin, clocks))
        except TrimtabError as error:
            problems.append(str(error))
    for i, policy in enumerate(message.policies):
        try:
            orders.add_policy(_read_policy_order(f"policies[{i}]", policy, policy.shadow))
        except TrimtabError as error:
            problems.append(str(error))
    if message.HasField("canary"):
        try:
            orders.canary = _read_canary(message.canary, clocks)
        except TrimtabError as error:
            problems.append(str(error))
    return orders, problems


def _read_pin_order(field: str, message: admin_pb2.StandingPin, clocks: Clocks) -> PinOrder:
    remaining_s = None
    if message.HasField("remaining"):
        remaining_s = duration_s(f"{field}.remaining", message.remaining, 0, PIN_DURATION_S[1])
    match message.WhichOneof("target"):
        case "mode":
            target: Target = mode_from_wire(f"{field}.mode", message.mode)
        case "range":
            target = range_from_wire(f"{field}.range", message.range)
        case "any_plain":
            target = Relative.ANY_PLAIN
        case _:
            raise WireError(f"{field}.target", "is missing")
    return PinOrder(
        id=bounds.name(f"{field}.id", message.id),
        selector=selector_ordered(message.selector),
        target=target,
        since_ns=clocks.moment_ns(f"{field}.pinned_at", message.pinned_at),
        deadline_ns=None if remaining_s is None else clocks.now_ns + round(remaining_s * bounds.NS_PER_S),
        reason=bounds.clipped(message.reason),
        owner=bounds.clipped(message.owner),
        released=tuple(map(selector_ordered, bounds.at_most(f"{field}.released", message.released, MAX_RELEASED))),
    )


def _read_policy_order(
    field: str, message: admin_pb2.StandingPolicy | admin_pb2.Canary, shadow: bool = False
) -> PolicyOrder:
    parameters = bounds.texts(f"{field}.parameters", message.parameters)
    name = bounds.name(f"{field}.policy", message.policy)
    return PolicyOrder(selector_ordered(message.selector), name, policy_factory(name, parameters), parameters, shadow)


def _read_canary(message: admin_pb2.Canary, clocks: Clocks) -> Canary:
    if not 0 < message.share <= 1 or not 0 <= message.threshold <= 1:
        raise WireError("canary.share", f"must be above 0 and at most 1, is {message.share:g}")
    order = _read_policy_order("canary", message)
    return Canary(order, message.share, message.threshold, clocks.moment_ns("canary.since", message.since))
