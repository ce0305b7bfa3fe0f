"""Modes on the wire and back."""

from __future__ import annotations

from trimtab.domain import Mode, ModeKind
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


def mode_to_wire(mode: Mode) -> pb.Mode:
    """The message of this mode."""
    return pb.Mode(kind=KIND_TO_WIRE[mode.kind], steps=mode.steps)
