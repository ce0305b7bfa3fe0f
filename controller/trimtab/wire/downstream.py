"""What the controller says to engines: Welcome, Lease and Release as messages; and a Lease read back."""

from __future__ import annotations

from trimtab.domain import Lease, Pin, TableEntry
from trimtab.session.events import SendLease, SendRelease
from trimtab.wire.bounds import MAX_MESSAGE_BYTES, MAX_ROWS_PER_REPORT, NS_PER_S, duration
from trimtab.wire.modes import mode_from_wire, mode_to_wire, range_from_wire, range_to_wire
from trimtabpb.v1 import control_pb2 as pb

PROTOCOL_VERSION = 1


def welcome_message(controller_id: str, report_interval_s: float) -> pb.ControllerMessage:
    """The answer to a Hello: how often to report, and the limits."""
    return pb.ControllerMessage(
        welcome=pb.Welcome(
            protocol_version=PROTOCOL_VERSION,
            controller_id=controller_id,
            report_interval=duration(report_interval_s),
            limits=pb.Limits(max_rows_per_report=MAX_ROWS_PER_REPORT, max_message_bytes=MAX_MESSAGE_BYTES),
        )
    )


def lease_message(effect: SendLease) -> pb.ControllerMessage:
    """The lease with its nonce, its time to live, and the time that its pin has left."""
    lease = effect.lease
    message = pb.Lease(
        version=lease.version,
        nonce=effect.nonce,
        ttl=duration(effect.ttl_s),
        table=[_entry_message(entry) for entry in lease.table],
        smoothing=lease.smoothing,
        hysteresis=lease.hysteresis,
        min_dwell_steps=lease.min_dwell_steps,
        exploration=_exploration_message(lease),
        reason=lease.reason,
    )
    if lease.pin is not None:
        message.pin.CopyFrom(pin_message(lease.pin, effect.pin_remaining_s))
    return pb.ControllerMessage(lease=message)


def read_lease(message: pb.Lease) -> SendLease:
    """The lease as it was sent. Probabilities, smoothing and hysteresis travel as 32 bits.

    Raises:
        WireError: A mode that there is not.
    """
    exploration = message.exploration
    lease = Lease(
        version=message.version,
        table=tuple(_read_entry(f"lease.table[{i}]", entry) for i, entry in enumerate(message.table)),
        smoothing=message.smoothing,
        hysteresis=message.hysteresis,
        min_dwell_steps=message.min_dwell_steps,
        exploration_seed=exploration.seed,
        exploration_dwell_steps=exploration.dwell_steps,
        pin=_read_pin(message.pin) if message.HasField("pin") else None,
        reason=message.reason,
    )
    remaining = message.pin.remaining.ToNanoseconds() / NS_PER_S if message.pin.HasField("remaining") else None
    return SendLease(lease, message.nonce, message.ttl.ToNanoseconds() / NS_PER_S, remaining)


def release_message(effect: SendRelease) -> pb.ControllerMessage:
    """The order to go back to the engine's own policy."""
    return pb.ControllerMessage(release=pb.Release(reason=effect.reason))


def pin_message(pin: Pin, remaining_s: float | None) -> pb.Pin:
    """The pin; without remaining time it holds until it is released."""
    return pb.Pin(
        id=pin.id,
        mode=mode_to_wire(pin.mode),
        remaining=None if remaining_s is None else duration(remaining_s),
        reason=pin.reason,
        owner=pin.owner,
        range=None if pin.range is None else range_to_wire(pin.range),
    )


def _entry_message(entry: TableEntry) -> pb.TableEntry:
    return pb.TableEntry(
        min_batch_size=entry.min_batch_size,
        mode=mode_to_wire(entry.mode),
        probability=entry.probability,
        alternatives=[pb.Alternative(mode=mode_to_wire(mode), probability=p) for mode, p in entry.alternatives],
    )


def _exploration_message(lease: Lease) -> pb.Exploration:
    return pb.Exploration(seed=lease.exploration_seed, dwell_steps=lease.exploration_dwell_steps)


def _read_entry(field: str, message: pb.TableEntry) -> TableEntry:
    return TableEntry(
        min_batch_size=message.min_batch_size,
        mode=mode_from_wire(f"{field}.mode", message.mode),
        probability=message.probability,
        alternatives=tuple(
            (mode_from_wire(f"{field}.alternatives", other.mode), other.probability) for other in message.alternatives
        ),
    )


def _read_pin(message: pb.Pin) -> Pin:
    allowed = range_from_wire("lease.pin.range", message.range) if message.HasField("range") else None
    return Pin(message.id, mode_from_wire("lease.pin.mode", message.mode), message.reason, message.owner, allowed)
