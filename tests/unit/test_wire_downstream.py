"""Leases and engine views as messages: every field of the value arrives in its place."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from trimtab.domain import (
    PLAIN_NATIVE,
    PLAIN_WARM,
    EngineInfo,
    EngineKey,
    Lease,
    Pin,
    Report,
    StepRange,
    TableEntry,
    speculate,
)
from trimtab.errors import WireError
from trimtab.policies.registry import policy_factory
from trimtab.session.engine_session import EngineSession
from trimtab.session.events import Connected, Pinned, Reported, SendLease, SendRelease
from trimtab.session.measured import Measured
from trimtab.session.pins import Relative
from trimtab.wire import (
    engine_message,
    lease_message,
    mode_from_wire,
    mode_to_wire,
    pin_duration_s,
    read_lease,
    release_message,
    target_ordered,
    welcome_message,
)
from trimtabpb.v1 import admin_pb2
from trimtabpb.v1 import control_pb2 as pb

S = 1_000_000_000
LEASE = Lease(
    version=7,
    table=(TableEntry(1, speculate(3), 0.75, ((PLAIN_WARM, 0.25),)), TableEntry(9, PLAIN_NATIVE)),
    smoothing=0.5,
    hysteresis=0.25,
    min_dwell_steps=8,
    exploration_seed=(1 << 64) - 1,
    exploration_dwell_steps=16,
    reason="ucb: exploit",
)


def test_a_lease_carries_its_table_and_how_to_read_it() -> None:
    lease = lease_message(SendLease(LEASE, nonce=4, ttl_s=2.0)).lease

    assert (lease.version, lease.nonce, lease.ttl.ToMilliseconds(), lease.reason) == (7, 4, 2000, "ucb: exploit")
    assert (lease.smoothing, lease.hysteresis, lease.min_dwell_steps) == (0.5, 0.25, 8)
    assert (lease.exploration.seed, lease.exploration.dwell_steps) == ((1 << 64) - 1, 16)
    assert [(e.min_batch_size, mode_from_wire("mode", e.mode), e.probability) for e in lease.table] == [
        (1, speculate(3), 0.75),
        (9, PLAIN_NATIVE, 1.0),
    ]
    assert [(mode_from_wire("mode", a.mode), a.probability) for a in lease.table[0].alternatives] == [
        (PLAIN_WARM, 0.25)
    ]
    assert not lease.HasField("pin")


@pytest.mark.parametrize(("remaining_s", "milliseconds"), [(None, None), (1.5, 1500), (0.0, 0)])
def test_a_pin_travels_with_the_time_it_has_left(remaining_s: float | None, milliseconds: int | None) -> None:
    pinned = Lease(version=1, table=(), pin=Pin("p", speculate(1), "latency", "kim"))
    pin = lease_message(SendLease(pinned, nonce=1, ttl_s=2.0, pin_remaining_s=remaining_s)).lease.pin

    assert (pin.id, pin.mode.steps, pin.reason, pin.owner) == ("p", 1, "latency", "kim")
    assert (pin.remaining.ToMilliseconds() if pin.HasField("remaining") else None) == milliseconds


PINNED = Lease(version=8, table=(), pin=Pin("p", speculate(1), "latency", "kim"), smoothing=0.5, hysteresis=0.25)


@pytest.mark.parametrize(
    "sent",
    [SendLease(LEASE, 4, 2.0), SendLease(PINNED, 5, 0.5), SendLease(PINNED, 6, 0.5, 1.25)],
    ids=["table", "pin", "pin with a time"],
)
def test_a_lease_is_read_back_as_it_was_sent(sent: SendLease) -> None:
    assert read_lease(lease_message(sent).lease) == sent


def test_a_lease_with_a_mode_that_there_is_not_names_the_place() -> None:
    broken = lease_message(SendLease(LEASE, 4, 2.0)).lease
    broken.table[1].mode.kind = 77  # type: ignore[assignment]
    with pytest.raises(WireError, match=r"lease\.table\[1\]\.mode\.kind: 77 is not a known kind"):
        read_lease(broken)


def test_a_range_travels_with_the_pin() -> None:
    pinned = Lease(version=1, table=(), pin=Pin("p", speculate(1), range=StepRange(1, 3)))
    pin = lease_message(SendLease(pinned, nonce=1, ttl_s=2.0)).lease.pin

    assert (pin.range.min_steps, pin.range.max_steps, pin.mode.steps) == (1, 3, 1)


def test_welcome_and_release() -> None:
    welcome = welcome_message("c1", 0.25).welcome

    assert (welcome.protocol_version, welcome.controller_id, welcome.report_interval.ToMilliseconds()) == (1, "c1", 250)
    assert release_message(SendRelease("stop")).release.reason == "stop"


@pytest.mark.parametrize("mode", [PLAIN_WARM, PLAIN_NATIVE, speculate(1), speculate(64)])
def test_modes_come_back_as_they_went(mode: object) -> None:
    assert mode_from_wire("mode", mode_to_wire(mode)) == mode  # type: ignore[arg-type]


def session() -> EngineSession:
    """Connected at 10 s, pinned at 11 s for a minute, reported at 12 s."""
    session = EngineSession("fixed", policy_factory("fixed", {"steps": 3}))
    info = EngineInfo(EngineKey("a", 2), "b1", modes=(PLAIN_WARM, speculate(3)), graph_batch_sizes=(1, 2))
    session.step(Connected(info), 10 * S)
    session.step(Pinned(Pin("p", PLAIN_WARM, owner="kim"), 60.0), 11 * S)
    session.step(Reported(Report(1, 5, switches=4, dropped={"late": 1}, running_requests=2)), 12 * S)
    return session


def test_an_engine_is_shown_in_wall_time_and_ages() -> None:
    message = engine_message(
        session(), pb.Hello(engine_id="a"), Measured(500.0, None, 8.0, 4.0, 9), {"x": 1}, 13 * S, 1013 * S
    )

    assert message.engine_id == "a/2"
    assert message.state == admin_pb2.Engine.STATE_CONNECTED
    assert (message.connected_at.seconds, message.pinned_at.seconds) == (1010, 1011)
    assert (message.last_message_age.seconds, message.lease.age.seconds) == (1, 2)
    assert (message.pin.id, message.pin.remaining.seconds) == ("p", 58)
    assert (message.policy.name, message.policy.bands[0].mode.steps, message.policy.bands[0].reason) == (
        "fixed",
        3,
        "fixed",
    )
    assert (message.measured.goodput_tps, message.measured.step_ms, message.measured.rows) == (500.0, 8.0, 9)
    assert not message.measured.HasField("accepted_drafts")
    assert not message.policy.bands[0].candidates[0].HasField("goodput_tps")
    assert (message.measured.switches, message.measured.running_requests) == (4, 2)
    assert dict(message.measured.dropped) == {"late": 1}
    assert dict(message.refused) == {"x": 1}


def test_a_pin_order_names_a_mode_a_range_any_plain_or_what_runs_now() -> None:
    assert target_ordered(admin_pb2.PinRequest(any_plain=True)) is Relative.ANY_PLAIN
    assert target_ordered(admin_pb2.PinRequest(in_force=True)) is Relative.IN_FORCE
    assert target_ordered(admin_pb2.PinRequest(mode=mode_to_wire(speculate(3)))) == speculate(3)
    assert target_ordered(admin_pb2.PinRequest(range=pb.StepRange(max_steps=3))) == StepRange(0, 3)
    requests = admin_pb2.PinRequest(), admin_pb2.PinRequest(any_plain=False), admin_pb2.PinRequest(in_force=False)
    for nothing in requests:
        with pytest.raises(WireError, match="target: name a mode or a range of steps, or any_plain, or in_force"):
            target_ordered(nothing)


@pytest.mark.parametrize(("low", "high"), [(3, 1), (0, 65), (65, 65)])
def test_a_range_that_no_engine_can_have_is_refused(low: int, high: int) -> None:
    with pytest.raises(WireError, match=f"range: must be MIN to MAX within 0 to 64, is {low} to {high}"):
        target_ordered(admin_pb2.PinRequest(range=pb.StepRange(min_steps=low, max_steps=high)))


def test_a_pin_lasts_a_second_to_thirty_days_or_until_released() -> None:
    assert pin_duration_s(admin_pb2.PinRequest()) is None
    for seconds in (1, 30 * 86_400):
        assert pin_duration_s(admin_pb2.PinRequest(duration=Duration(seconds=seconds))) == seconds
    for seconds in (-1, 0, 30 * 86_400 + 1):
        with pytest.raises(WireError, match="duration: must be 1 s to 2592000 s"):
            pin_duration_s(admin_pb2.PinRequest(duration=Duration(seconds=seconds)))
