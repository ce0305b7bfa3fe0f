"""Any bytes as messages of engines and operators, and as leases to an engine: refused in words, or in range."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from google.protobuf.message import DecodeError, Message

from fuzz.messages import change
from support.admin_messages import controller
from support.scripted_engine import MODES, decode_row
from trimtab.domain import DepthCounts, EngineInfo, Report
from trimtab.errors import WireError
from trimtab.wire import (
    Clocks,
    bounds,
    columns_to_rows,
    engine_asked,
    mode_to_wire,
    orders_message,
    parameters_ordered,
    pin_duration_s,
    read_ack,
    read_hello,
    read_orders,
    read_report,
    role_ordered,
    rows_to_columns,
    selector_asked,
    selector_ordered,
    share_ordered,
    target_ordered,
)
from trimtab_sglang.lease import LeaseError, LeaseMachine
from trimtab_sglang.messages import lease_from_wire
from trimtabpb.v1 import admin_pb2
from trimtabpb.v1 import control_pb2 as pb

CLOCKS = Clocks(1 << 60, 1 << 60)
INSTRUMENT = ("trimtab.wire", "trimtab_sglang.lease", "trimtab_sglang.messages")


def take_engine_message(message: pb.EngineMessage) -> None:
    """A message of an engine: Hello, Report or Ack."""
    match message.WhichOneof("message"):
        case "hello":
            info, shown = read_hello(message.hello)
            check_hello(info, shown)
        case "report":
            report, refused = read_report(message.report)
            check_report(report)
            assert all(count > 0 for count in refused.values())
        case "ack":
            answer = read_ack(message.ack)
            assert len(answer.detail) <= bounds.MAX_TEXT


def check_hello(info: EngineInfo, shown: pb.Hello) -> None:
    """What is taken in is within bounds, and what is shown can be read again with the same result."""
    assert 0 < len(info.key.engine_id) <= bounds.MAX_TEXT
    assert len(info.modes) <= bounds.MAX_MODES
    assert list(info.graph_batch_sizes) == sorted(set(info.graph_batch_sizes))
    assert all(reason.isprintable() for reason in info.observe_reasons)
    assert info.pin is None or info.pin.range is None or info.pin.mode in info.pin.range
    again, _ = read_hello(pb.Hello.FromString(shown.SerializeToString()))
    assert again == info


def check_report(report: Report) -> None:
    """Rows are within bounds, and come back from columns as they went."""
    assert len(report.rows) <= bounds.MAX_ROWS_PER_REPORT
    for row in report.rows:
        assert 0 <= row.batch_size <= bounds.MAX_REQUESTS
        assert row.mode.steps <= bounds.MAX_STEPS
        check_counts(row.fresh, row.fresh_requests)
        check_counts(row.stale, row.stale_requests)
    again, refused = columns_to_rows(rows_to_columns(report.rows))
    assert not refused
    assert len(again) == len(report.rows)


def check_counts(counts: DepthCounts, requests: int) -> None:
    """No draft was accepted by more requests than it was offered to."""
    left = requests
    for offered, accepted in zip(counts.offered, counts.accepted, strict=True):
        assert left >= offered >= accepted >= 0
        left = accepted


def take_pin(request: admin_pb2.PinRequest) -> None:
    """An order to pin."""
    target_ordered(request)
    seconds = pin_duration_s(request)
    assert seconds is None or 1 <= seconds <= 30 * 86_400
    selector_ordered(request.selector)


def take_policy(request: admin_pb2.SetPolicyRequest) -> None:
    """An order about policies."""
    assert 0 < share_ordered(request) <= 1
    assert role_ordered(request) in admin_pb2.SetPolicyRequest.Role.values()
    parameters_ordered(request)
    selector_asked(request.selector)


def take_question(request: admin_pb2.GetEngineRequest) -> None:
    """A question about an engine."""
    engine_asked(request)


def take_lease(message: pb.Lease) -> None:
    """A lease, on the engine's side: what is adopted can be followed."""
    lease, ttl_s, remaining_s = lease_from_wire(message, life_steps=100)
    assert 0.1 <= ttl_s <= 600
    assert remaining_s is None or remaining_s == remaining_s
    machine = LeaseMachine()
    assert machine.adopt(lease)
    for size in (1, 8, 65_536):
        mode = machine.choose(size)
        assert mode in lease.modes


def take_orders(message: admin_pb2.Controller) -> None:
    """Standing orders that were kept: those that are read can be kept again with the same result."""
    orders, problems = read_orders(message, CLOCKS)
    assert all(problem.strip() for problem in problems)
    again, none = read_orders(orders_message(orders, CLOCKS), CLOCKS)
    assert (again.pins, again.policies, none) == (orders.pins, orders.policies, [])


# The first byte of an input says what the others are.
KINDS: tuple[tuple[type[Message], Callable[..., None]], ...] = (
    (pb.EngineMessage, take_engine_message),
    (admin_pb2.PinRequest, take_pin),
    (admin_pb2.SetPolicyRequest, take_policy),
    (admin_pb2.GetEngineRequest, take_question),
    (pb.Lease, take_lease),
    (admin_pb2.Controller, take_orders),
)
# Most of what comes in is what engines say.
WEIGHTS = (10, 2, 2, 1, 3, 2)
ORDER = tuple(kind for kind, weight in enumerate(WEIGHTS) for _ in range(weight))


def one_input(data: bytes) -> None:
    """Take the bytes as the message that they say they are."""
    message_type, take = KINDS[ORDER[data[0] % len(ORDER)]] if data else KINDS[0]
    try:
        message = message_type.FromString(data[1:])
    except DecodeError:
        return
    try:
        take(message)
    except WireError as error:
        explained(error.field, error.problem)
    except LeaseError as error:
        explained(error.field, str(error))


def explained(field: str, problem: str) -> None:
    """A refusal names the field and says what is wrong."""
    assert field
    assert problem.strip()


def mutate(data: bytes, luck: random.Random) -> bytes:
    """The same kind of message with a few fields changed; sometimes another kind."""
    if not data or luck.random() < 0.02:
        return bytes([luck.randrange(len(ORDER))]) + data[1:]
    message_type, _ = KINDS[ORDER[data[0] % len(ORDER)]]
    try:
        message = message_type.FromString(data[1:])
    except DecodeError:
        message = message_type()
    change(message, luck)
    return data[:1] + message.SerializeToString()


def seeds() -> Iterable[bytes]:
    """A good message of each kind."""
    mode = mode_to_wire(MODES[-1])
    hello = pb.Hello(
        protocol_version=1, engine_id="llama-a", boot_id="b", labels={"team": "chat"}, acts=True,
        modes=[mode_to_wire(m) for m in MODES], graph_batch_sizes=[1, 2, 4], max_running_requests=8,
        in_force=pb.InForce(source=pb.InForce.SOURCE_PIN, mode=mode, pin_id="p"),
        pin=pb.Pin(id="p", mode=mode, range=pb.StepRange(min_steps=1, max_steps=3)),
        hooks=[pb.Hook(target="a.B.c", applied=True)], observe_reasons=["because"],
    )  # fmt: skip
    rows = rows_to_columns([decode_row(i, MODES[-1]) for i in range(1, 6)])
    report = pb.Report(seq=1, now_ns=5, rows=rows, in_force=hello.in_force, dropped={"late": 1}, last_step_age_ns=1)
    selector = admin_pb2.Selector(labels={"team": "chat"})
    lease = pb.Lease(
        version=1, nonce=1, smoothing=0.5, hysteresis=0.1, reason="exploit",
        table=[pb.TableEntry(min_batch_size=1, mode=mode, probability=0.75,
                             alternatives=[pb.Alternative(mode=mode_to_wire(MODES[0]), probability=0.25)])],
        exploration=pb.Exploration(seed=1, dwell_steps=16),
    )  # fmt: skip
    lease.ttl.FromMilliseconds(2000)
    pinned = pb.Lease()
    pinned.CopyFrom(lease)
    pinned.pin.CopyFrom(pb.Pin(id="p", mode=mode, range=pb.StepRange(max_steps=3)))
    messages: list[Message] = [
        pb.EngineMessage(hello=hello), pb.EngineMessage(report=report),
        pb.EngineMessage(ack=pb.Ack(nonce=1, version=1, refusal=pb.REFUSAL_NO_STATE, detail="steps 3")),
        pb.EngineMessage(goodbye=pb.Goodbye(reason="bye")),
        admin_pb2.PinRequest(selector=selector, range=pb.StepRange(min_steps=1, max_steps=3)),
        admin_pb2.PinRequest(selector=selector, mode=mode, reason="why", owner="kim"),
        admin_pb2.SetPolicyRequest(selector=selector, policy="ucb", parameters={"margin": "0.1"}, share=0.5,
                                   role=admin_pb2.SetPolicyRequest.ROLE_CANARY),
        controller(), admin_pb2.GetEngineRequest(engine_id="llama-a"), lease, pinned,
    ]  # fmt: skip
    kinds = [message_type for message_type, _ in KINDS]
    return [bytes([ORDER.index(kinds.index(type(m)))]) + m.SerializeToString() for m in messages]
