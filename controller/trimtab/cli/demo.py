"""`trimtab demo`: a day of load in half a minute, steered live, and what it was worth."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.options import JsonOption
from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from rich.console import Group

    from trimtab.cli.client import Controller
    from trimtab.replay.simulation.demo_table import Standing

ENGINE_ID = "demo-engine"
START_TIMEOUT_S = 30.0
# Length of the same day on the virtual clock, for the table.
VIRTUAL_DAY_S = 120.0
FRAME_S = 0.25
PRINT_EVERY_S = 3.0

SecondsOption = Annotated[float, typer.Option("--seconds", min=1.0, max=3600.0, help="Wall time of the live part.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of load and luck.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(seconds: SecondsOption = 30.0, seed: SeedOption = 0, json: JsonOption = False) -> None:
    """Steer an embedded engine through a day of load, and compare.

    The engine is a process of its own with the real plugin in it; its step times were measured on an H200.
    """
    with tempfile.TemporaryDirectory(prefix="trimtab-demo-") as folder:
        target = f"unix:{folder}/trimtabd.sock"
        with (
            _running(_daemon_command(target), folder, "trimtabd"),
            _connected(target) as admin,
            _running(_engine_command(seconds, seed), folder, "engine", TRIMTAB_CONTROLLER=target),
        ):
            _watch(admin, seconds, quiet=json)
    standings = _compare(seed, quiet=json)
    if json:
        from trimtab.cli.output import print_json

        print_json(standings)
    else:
        _print(standings)


def _daemon_command(target: str) -> list[str]:
    # The daemon as it comes, but nothing that another daemon may have, a metrics port or a journal.
    entry = "from trimtab.cli.daemon import main; main()"
    return [
        sys.executable,
        "-c",
        entry,
        "--socket",
        target.removeprefix("unix:"),
        "--metrics-listen",
        "off",
        "--state-dir",
        "off",
    ]


def _engine_command(seconds: float, seed: int) -> list[str]:
    return [sys.executable, "-m", "trimtab.demo.embedded_engine", "--seconds", str(seconds), "--seed", str(seed)]


@contextmanager
def _running(command: list[str], folder: str, name: str, **environment: str) -> Iterator[None]:
    """A process that ends with the block; if it failed by itself, its last line is the error."""
    log = Path(folder, f"{name}.log")
    settings = {"TRIMTAB_ENGINE_ID": ENGINE_ID, "TRIMTAB_MODE": "act", "TRIMTAB_LABELS": "", **environment}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env={**os.environ, **settings}
        )
    try:
        yield
        if process.poll():
            lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
            raise TrimtabError(f"the demo's {name} ended early with status {process.returncode}: {lines[-1]}")
    finally:
        process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _connected(target: str) -> Iterator[Controller]:
    """The daemon's admin service, once it answers."""
    from trimtab.cli.client import Controller, ControllerError

    admin = Controller(target, timeout_s=5.0)
    deadline = time.monotonic() + START_TIMEOUT_S
    try:
        while True:
            try:
                admin.engines()
                break
            except ControllerError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield admin
    finally:
        admin.close()


def _watch(admin: Controller, seconds: float, quiet: bool) -> None:
    """Show the engine until its day is over."""
    end = _await_engine(admin) + seconds
    if quiet:
        time.sleep(max(0.0, end - time.monotonic()))
    elif sys.stdout.isatty():
        _watch_live(admin, end)
    else:
        _watch_printed(admin, end)


def _await_engine(admin: Controller) -> float:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not admin.engines():
        if time.monotonic() > deadline:
            raise TrimtabError(f"the demo's engine did not connect within {START_TIMEOUT_S:.0f} s")
        time.sleep(0.05)
    return time.monotonic()


def _watch_live(admin: Controller, end: float) -> None:
    from rich.live import Live

    from trimtab.cli.output import console

    out = console()
    with Live(console=out, auto_refresh=False) as live:
        while (left := end - time.monotonic()) > 0:
            live.update(_frame(admin, left, out.width), refresh=True)
            time.sleep(min(FRAME_S, left))


def _watch_printed(admin: Controller, end: float) -> None:
    from trimtab.cli.output import console

    out = console()
    while (left := end - time.monotonic()) > 0:
        out.print(_frame(admin, left, out.width))
        sys.stdout.flush()
        time.sleep(min(PRINT_EVERY_S, left))


def _frame(admin: Controller, left_s: float, width: int) -> Group:
    from trimtab.cli.top import frame
    from trimtab.cli.views import engine_view

    engines = [engine_view(engine) for engine in admin.engines()]
    return frame(engines, f"trimtab demo: a day of load, {left_s:.0f} s to go", width)


def _compare(seed: int, quiet: bool) -> list[Standing]:
    """The same day for everyone, on a virtual clock."""
    from rich.console import Console
    from rich.progress import track

    from trimtab.replay.simulation.day import DayEnvironment
    from trimtab.replay.simulation.demo_table import compare, contenders

    def day() -> DayEnvironment:
        return DayEnvironment(seconds=VIRTUAL_DAY_S, seed=seed)

    console = Console(stderr=True, quiet=quiet)
    found = contenders(day())
    names = track(found, description="The same day under every policy", console=console, transient=True)
    return [standing for name in names for standing in compare(day, {name: found[name]})]


def _print(standings: list[Standing]) -> None:
    from trimtab.cli.output import plain_table, print_table

    best = max(s.tokens_per_s for s in standings if s.policy.startswith("fixed-"))
    figures = ("TOKENS/S", "OF BEST FIXED", "SWITCHES")
    table = plain_table("POLICY", *figures, right=figures)
    for standing in sorted(standings, key=lambda s: -s.tokens_per_s):
        share = f"{standing.tokens_per_s / best:.3f}"
        table.add_row(standing.policy, f"{standing.tokens_per_s:,.0f}", share, str(standing.switches))
    print(f"\nThe same day under every policy, {VIRTUAL_DAY_S:.0f} s on a virtual clock; fixed-0 decodes plainly.\n")
    print_table(table)
