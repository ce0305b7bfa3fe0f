"""`trimtab pin`, `trimtab freeze` and `trimtab unpin`."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from trimtab.cli.duration import format_duration, parse_duration_s
from trimtab.cli.options import (
    DEFAULT_TIMEOUT_S,
    AllOption,
    ControllerOption,
    JsonOption,
    LabelOption,
    SomeEngineArgument,
    TimeoutOption,
    selector,
)
from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from trimtab.cli.client import Controller
    from trimtab.cli.views import EngineView
    from trimtabpb.v1 import admin_pb2, control_pb2

CHEAPEST = "cheapest"
PLAIN_KINDS = ("native", "cold", "warm")
# An engine adopts a pin at its next scheduler iteration and says so in the next report.
CONFIRM_WITHIN_S = 2.0
CONFIRM_POLL_S = 0.1


class PinCommand(TyperCommand):
    """Lets `--plain` stand alone or carry a kind: click's options take a value always or never."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse with every bare `--plain` written out."""
        end = args.index("--") if "--" in args else len(args)
        full = [f"--plain={CHEAPEST}" if arg == "--plain" else arg for arg in args[:end]]
        return super().parse_args(ctx, full + args[end:])


PlainOption = Annotated[
    str | None,
    typer.Option(
        "--plain",
        metavar="[=native|cold|warm]",
        show_default=False,
        help="Decode without drafts: the cheapest safe kind on offer, or the kind named.",
    ),
]
StepsOption = Annotated[
    str | None,
    typer.Option(
        "--steps",
        metavar="K|MIN-MAX",
        show_default=False,
        help="Speculate with K drafts a step, or let the policy choose from MIN to MAX (0 is plain).",
    ),
]
ForOption = Annotated[
    str | None,
    typer.Option("--for", metavar="TIME", show_default=False, help="30s, 10m, 2h or 1d. Default: until released."),
]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for whoever looks next.")]


def pin(
    engine: SomeEngineArgument = None,
    everything: AllOption = False,
    label: LabelOption = None,
    plain: PlainOption = None,
    steps: StepsOption = None,
    duration: ForOption = None,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Hold engines in one mode, or within a range of steps.

    Whatever the policy says, until released or the time is over; for labels or all, also on engines that connect
    later. Waits up to 2 s until the engines run it."""
    from trimtab.cli.client import operator
    from trimtabpb.v1 import admin_pb2

    engines = selector(engine, everything, label)
    request = admin_pb2.PinRequest(selector=engines, reason=reason, owner=operator(), **target(plain, steps))
    _order(request, duration, controller, timeout, json)


def freeze(
    engine: SomeEngineArgument = None,
    everything: AllOption = False,
    label: LabelOption = None,
    duration: ForOption = None,
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Hold engines in the mode that each runs now.

    As a pin: until released (`trimtab unpin`) or the time is over. Engines that connect later are free."""
    from trimtab.cli.client import operator
    from trimtabpb.v1 import admin_pb2

    engines = selector(engine, everything, label)
    request = admin_pb2.PinRequest(selector=engines, reason=reason, owner=operator(), in_force=True)
    _order(request, duration, controller, timeout, json)


def _order(
    request: admin_pb2.PinRequest, duration: str | None, controller: str | None, timeout: float, json: bool
) -> None:
    """Send the order, and say what came of it."""
    from trimtab.cli import output
    from trimtab.cli.client import connected, warn_of_order

    if duration is not None:
        request.duration.FromMicroseconds(round(parse_duration_s(duration) * 1e6))
    with connected(controller, timeout) as admin:
        answer = admin.pin(request)
        warn_of_order(answer.journal_problem)
        pinned = _confirmed(admin, {e.engine_id for e in answer.engines})
    if json:
        output.print_json(pinned)
        return
    for view in pinned:
        print(_outcome(view))


def unpin(
    engine: SomeEngineArgument = None,
    everything: AllOption = False,
    label: LabelOption = None,
    controller: ControllerOption = None,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Release pins, the policy decides again."""
    from trimtab.cli import output
    from trimtab.cli.client import connected, operator, warn_of_order
    from trimtab.cli.views import engine_view
    from trimtabpb.v1 import admin_pb2

    request = admin_pb2.UnpinRequest(selector=selector(engine, everything, label), owner=operator())
    with connected(controller, timeout) as admin:
        answer = admin.unpin(request)
    warn_of_order(answer.journal_problem)
    if json:
        engines = [engine_view(e) for e in answer.engines]
        output.print_json({"released": answer.released, "ended_orders": answer.ended_orders, "engines": engines})
    elif answer.released or answer.ended_orders:
        orders = f", {counted(answer.ended_orders, 'standing order')} ended" if answer.ended_orders else ""
        print(f"{answer.released} released{orders}: the policy decides again")
    else:
        print("nothing was pinned")


def counted(number: int, what: str) -> str:
    """So many of something, for people."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def target(plain: str | None, steps: str | None) -> dict[str, Any]:
    """The wanted mode as the field of a `PinRequest`.

    Raises:
        TrimtabError: Neither or both are given, or they name no mode.
    """
    if (plain is None) == (steps is None):
        raise TrimtabError(
            "say which mode: --plain, --plain=native|cold|warm, --steps K or --steps MIN-MAX, and only one of these"
        )
    if plain == CHEAPEST:
        return {"any_plain": True}
    if plain is not None and plain not in PLAIN_KINDS:
        raise TrimtabError(f"--plain={plain} is not a kind of plain decoding: use native, cold, warm, or --plain alone")
    return {"mode": _plain_mode(plain)} if plain is not None else _steps_target(steps or "")


def _steps_target(text: str) -> dict[str, Any]:
    from trimtabpb.v1 import control_pb2

    match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text.strip())
    if match is None:
        raise TrimtabError(f"--steps {text!r} must be a number of drafts, as in 3, or a range, as in 1-3")
    low, high = int(match[1]), int(match[2] or match[1])
    if match[2] is not None:
        if low > high:
            raise TrimtabError(f"--steps {text} is empty: write the smaller number first")
        return {"range": control_pb2.StepRange(min_steps=low, max_steps=high)}
    if low < 1:
        raise TrimtabError(f"--steps {text} must be at least 1: to decode without drafts use --plain")
    return {"mode": control_pb2.Mode(kind=control_pb2.Mode.KIND_SPECULATE, steps=low)}


def _plain_mode(kind: str) -> control_pb2.Mode:
    from trimtab.domain import Mode, ModeKind
    from trimtab.wire import mode_to_wire

    return mode_to_wire(Mode(ModeKind(f"plain_{kind}")))


def _confirmed(admin: Controller, engine_ids: set[str]) -> list[EngineView]:
    """The pinned engines, once all of them run the pin or the wait is over."""
    from trimtab.cli.views import engine_view

    deadline = time.monotonic() + CONFIRM_WITHIN_S
    while True:
        views = [engine_view(e) for e in admin.engines() if e.engine_id in engine_ids]
        if all(v.pin is None or v.pin.in_force for v in views) or time.monotonic() > deadline:
            return views
        time.sleep(CONFIRM_POLL_S)


def _outcome(engine: EngineView) -> str:
    pinned = engine.pin
    if pinned is None:
        return f"{engine.engine_id}: the pin is over already"
    until = "until released" if pinned.remaining_s is None else f"for {format_duration(pinned.remaining_s)}"
    note = "" if pinned.in_force else f"; not confirmed by the engine ({engine.state}): see `trimtab show`"
    return f"{engine.engine_id}: {pinned.what} {until}{note}"
