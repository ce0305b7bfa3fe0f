"""How answers are printed: text for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from trimtab.cli.duration import format_duration
from trimtab.cli.views import EngineView
from trimtab.domain import Mode

Cell = Callable[[EngineView], str]

UNKNOWN = "-"
STATE_STYLES = {"connected": "green", "stalled": "yellow", "disconnected": "red", "silent": "red"}
DECIDED_STYLES = {"lease": "green", "pin": "yellow", "fuse": "red"}
# Wide enough for every column where nobody sits in front of it: a file or another program.
PIPE_WIDTH = 200
# Columns of the engines' table: words first, then figures; on a narrow terminal these go first, in this order.
WORDS: dict[str, Cell] = {
    "ENGINE": lambda e: e.engine_id,
    "STATE": lambda e: styled(e.state, STATE_STYLES),
    "MODE": lambda e: mode_text(e.mode),
    "BY": lambda e: decided_text(e),
}
COLUMNS: dict[str, Cell] = {
    **WORDS,
    "BATCH": lambda e: number(e.batch_size, 1),
    "TOKENS/S": lambda e: number(e.goodput_tps, 0),
    "ACCEPTED": lambda e: number(e.accepted_drafts, 2),
    "STEP MS": lambda e: number(e.step_ms, 2),
    "SWITCHES": lambda e: str(e.switches),
    "RUN/WAIT": lambda e: f"{e.running_requests}/{e.waiting_requests}",
    "LEASE AGE": lambda e: age(e.lease.age_s if e.lease else None),
}
OF_THE_MOMENT = frozenset({"MODE", "BY", "BATCH", "TOKENS/S", "ACCEPTED", "STEP MS", "LEASE AGE"})
DISPENSABLE = ("LEASE AGE", "SWITCHES", "RUN/WAIT", "STEP MS", "ACCEPTED")


def console() -> Console:
    """Standard output: as wide as the terminal, or never wrapped where there is none."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def print_json(value: object, indent: int = 2) -> None:
    """One JSON document; `indent` below 0 gives a single line."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()
    print(text, flush=True)


def print_lines(lines: Iterable[tuple[str, str]]) -> None:
    """A page of named lines."""
    table = plain_table("", "")
    table.show_header = False
    table.columns[1].no_wrap = False
    for name, text in lines:
        table.add_row(f"[bold]{name}[/]", text.replace("[", r"\["))
    print_table(table)


def print_table(table: Table) -> None:
    """The table, without trailing blanks where it goes into a file or a pipe."""
    out = console()
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as capture:
        out.print(table)
    for line in capture.get().splitlines():
        print(line.rstrip())


def plain_table(*headers: str, right: tuple[str, ...] = ()) -> Table:
    """Columns without lines around them; those named in `right` are figures."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        table.add_column(header, justify="right" if header in right else "left", no_wrap=True)
    return table


def engines_table(engines: Sequence[EngineView], width: int = PIPE_WIDTH) -> Table:
    """One row an engine: what it runs, who decides, and how it goes; what does not fit `width` is left out."""
    columns = dict(COLUMNS)
    measuring = Console(width=PIPE_WIDTH)
    for dispensable in ("", *DISPENSABLE):
        columns.pop(dispensable, None)
        table = plain_table(*columns, right=tuple(columns)[len(WORDS) :])
        for engine in engines:
            table.add_row(*(_cell(engine, name) for name in columns))
        if measuring.measure(table).maximum <= width:
            break
    return table


def _cell(engine: EngineView, name: str) -> str:
    """What the column says of the engine; of one that is gone, nothing that held at its last report only."""
    gone = engine.state == "disconnected" and name in OF_THE_MOMENT
    return UNKNOWN if gone else COLUMNS[name](engine)


def decided_text(engine: EngineView) -> str:
    """Who decides, with a pin's range and the time that it has left, or `canary` where a policy is on trial.

    An ordered pin that is not yet in force shows as `pin?`.
    """
    who, pin = styled(engine.decided_by or UNKNOWN, DECIDED_STYLES), engine.pin
    if pin is not None and not pin.in_force:
        return f"{who} (pin?)"
    words = [who]
    if pin is not None and pin.min_steps is not None:
        words.append(f"{pin.min_steps}-{pin.max_steps}")
    if pin is not None and pin.remaining_s is not None:
        words.append(format_duration(pin.remaining_s))
    return " ".join([*words, "(canary)"] if engine.canary else words)


def mode_text(mode: Mode | None) -> str:
    """The mode, or a dash before the first decode step."""
    return str(mode) if mode else UNKNOWN


def number(value: float | None, digits: int) -> str:
    """The figure with so many digits, thousands apart."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def age(seconds: float | None) -> str:
    """The length of time, or a dash."""
    return UNKNOWN if seconds is None else format_duration(seconds)


def styled(word: str, styles: Mapping[str, str]) -> str:
    """The word in its colour."""
    style = styles.get(word)
    return f"[{style}]{word}[/]" if style else word
