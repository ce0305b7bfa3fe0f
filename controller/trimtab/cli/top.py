"""`trimtab top`: the live view."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.engines import NO_ENGINES
from trimtab.cli.options import DEFAULT_TIMEOUT_S, ControllerOption, JsonOption, TimeoutOption

if TYPE_CHECKING:
    from rich.console import Group

    from trimtab.cli.client import Controller
    from trimtab.cli.views import EngineView

REFRESH_S = 0.25

OnceOption = Annotated[bool, typer.Option("--once", help="Print a single frame; so it is without a terminal.")]


def top(
    controller: ControllerOption = None,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    once: OnceOption = False,
    json: JsonOption = False,
) -> None:
    """Watch the engines live.

    q or Ctrl-C leaves. With --json: a line for every update."""
    from trimtab.cli.client import connected

    with connected(controller, timeout) as admin:
        if json and not once:
            _stream(admin)
        elif once or json or not sys.stdout.isatty():
            _print_once(admin, json)
        else:
            _live(admin)


def frame(engines: Sequence[EngineView], heading: str, width: int, trouble: str = "") -> Group:
    """One picture of at most `width` columns: a heading, a row an engine, and what is wrong with the controller."""
    from rich.console import Group
    from rich.text import Text

    from trimtab.cli.output import engines_table

    rows = engines_table(engines, width) if engines else Text(NO_ENGINES)
    return Group(Text(heading, style="bold"), Text(), rows, Text(trouble, style="red"))


def heading(target: str, engines: Sequence[EngineView]) -> str:
    """What the frame is of: the controller, and the engines' sum."""
    tokens_per_s = sum(e.goodput_tps or 0.0 for e in engines if e.state == "connected")
    count = f"{len(engines)} engine{'' if len(engines) == 1 else 's'}"
    return f"trimtab  {target}  {count}  {tokens_per_s:,.0f} tokens/s  {time.strftime('%H:%M:%S')}"


def _print_once(admin: Controller, json: bool) -> None:
    from trimtab.cli import output
    from trimtab.cli.views import engine_view

    found = [engine_view(engine) for engine in admin.engines()]
    if json:
        output.print_json(found)
        return
    print(heading(admin.target, found), end="\n\n")
    if found:
        output.print_table(output.engines_table(found, output.console().width))
    else:
        print(NO_ENGINES)


def _stream(admin: Controller) -> None:
    from trimtab.cli import output
    from trimtab.cli.views import engine_view
    from trimtabpb.v1 import admin_pb2

    for engine in admin.watch(admin_pb2.Selector(all=True)):
        output.print_json(engine_view(engine), indent=-1)


def _live(admin: Controller) -> None:
    from rich.live import Live

    from trimtab.cli import output
    from trimtab.cli.keyboard import Keyboard
    from trimtab.cli.watching import Watching

    watching = Watching(admin)
    watching.start()
    out = output.console()
    try:
        with Keyboard() as keyboard, Live(console=out, screen=True, auto_refresh=False) as live:
            while True:
                engines = watching.engines()
                title = f"{heading(admin.target, engines)}  q leaves"
                live.update(frame(engines, title, out.width, watching.trouble), refresh=True)
                if keyboard.pressed(REFRESH_S) == "q":
                    return
    except KeyboardInterrupt:
        return
    finally:
        watching.stop()
