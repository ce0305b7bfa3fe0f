"""Messages between engine and controller in a few words, for scripts."""

from __future__ import annotations

from trimtab.domain import Mode
from trimtab.wire import mode_from_wire
from trimtabpb.v1 import control_pb2 as pb


def mode_named(text: str) -> Mode:
    """The mode of `speculate(3)` or `plain_warm`."""
    if text.startswith("speculate("):
        steps = int(text.removeprefix("speculate(").removesuffix(")"))
        return mode_from_wire("mode", pb.Mode(kind=pb.Mode.KIND_SPECULATE, steps=steps))
    return mode_from_wire("mode", pb.Mode(kind=pb.Mode.Kind.Value(f"KIND_{text.upper()}")))


def words_of_engine(message: pb.EngineMessage) -> str:
    """What the engine says."""
    match message.WhichOneof("message"):
        case "hello":
            hello = message.hello
            source = pb.InForce.Source.Name(hello.in_force.source).removeprefix("SOURCE_").lower()
            pin = f", pin {mode_from_wire('pin', hello.pin.mode)}" if hello.HasField("pin") else ""
            return f"hello {hello.boot_id}, {source}, last version {hello.last_lease_version}{pin}"
        case "report":
            return f"report {message.report.seq}, {len(message.report.rows.step)} rows"
        case "ack":
            ack = message.ack
            refusal = pb.Refusal.Name(ack.refusal).removeprefix("REFUSAL_").lower()
            answer = "accepted" if ack.accepted else f"{refusal}: {ack.detail}"
            return f"ack v{ack.version} n{ack.nonce} {answer}"
        case _:
            return f"goodbye {message.goodbye.reason}"


def words_of_controller(message: pb.ControllerMessage) -> str:
    """What the controller says."""
    match message.WhichOneof("message"):
        case "lease":
            lease = message.lease
            table = " ".join(f"{e.min_batch_size}:{e.mode.steps}" for e in lease.table) or "no table"
            pin = f", pin {mode_from_wire('pin', lease.pin.mode)}" if lease.HasField("pin") else ""
            return f"lease v{lease.version} n{lease.nonce} {table}, {lease.ttl.ToTimedelta().total_seconds():g} s{pin}"
        case "release":
            return f"release: {message.release.reason}"
        case _:
            return "welcome"
