"""Modes on the wire and back."""

from __future__ import annotations

from trimtab.domain import Mode, ModeKind, StepRange
from trimtab.errors import WireError
from trimtab.wire.bounds import MAX_STEPS
from trimtabpb.v1 import control_pb2 as pb

KIND_TO_WIRE = {
    ModeKind.SPECULATE: pb.Mode.KIND_SPECULATE,
    ModeKind.PLAIN_WARM: pb.Mode.KIND_PLAIN_WARM,
    ModeKind.PLAIN_COLD: pb.Mode.KIND_PLAIN_COLD,
    ModeKind.PLAIN_NATIVE: pb.Mode.KIND_PLAIN_NATIVE,
}
KIND_FROM_WIRE: dict[int, ModeKind] = {number: kind for kind, number in KIND_TO_WIRE.items()}
# Every mode that the wire can name, by (kind, steps).
MODES: dict[tuple[int, int], Mode] = {
    (number, steps): Mode(kind, steps)
    for number, kind in KIND_FROM_WIRE.items()
    for steps in (range(1, MAX_STEPS + 1) if kind is ModeKind.SPECULATE else (0,))
}


def mode_from_wire(field: str, message: pb.Mode) -> Mode:
    """The mode of this message; `WireError` if its kind is unknown or does not go with its steps."""
    mode = MODES.get((message.kind, message.steps))
    if mode is not None:
        return mode
    kind = KIND_FROM_WIRE.get(message.kind)
    if kind is None:
        raise WireError(f"{field}.kind", f"{message.kind} is not a known kind of mode")
    wanted = f"1 to {MAX_STEPS}" if kind is ModeKind.SPECULATE else "0"
    raise WireError(f"{field}.steps", f"must be {wanted} for {kind.value}, is {message.steps}")


def range_from_wire(field: str, message: pb.StepRange) -> StepRange:
    """The range of this message; `WireError` if it is empty or goes beyond what an engine can have."""
    if not message.min_steps <= message.max_steps <= MAX_STEPS:
        raise WireError(
            field, f"must be MIN to MAX within 0 to {MAX_STEPS}, is {message.min_steps} to {message.max_steps}"
        )
    return StepRange(message.min_steps, message.max_steps)


def range_to_wire(allowed: StepRange) -> pb.StepRange:
    """The message of this range."""
    return pb.StepRange(min_steps=allowed.min_steps, max_steps=allowed.max_steps)


def mode_to_wire(mode: Mode) -> pb.Mode:
    """The message of this mode."""
    return pb.Mode(kind=KIND_TO_WIRE[mode.kind], steps=mode.steps)
