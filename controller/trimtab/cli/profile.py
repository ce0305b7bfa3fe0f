"""`trimtab profile`: learn what steps cost from traces, and check a profile against others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.command_group import command_group
from trimtab.cli.options import DEFAULT_TIMEOUT_S, ControllerOption, JsonOption, TimeoutOption, pairs
from trimtab.cli.replay_parts import replay_part
from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.domain import CostKey
    from trimtab.profile_file import CellRecord, ProfileContent
    from trimtab.replay.profiles.wanted import Wanted

TracesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE", help="Measured tables, step logs, step rows (CSV or JSON lines, or gzipped), or traces."
    ),
]
ProfileArgument = Annotated[Path, typer.Argument(metavar="PROFILE", help="A profile file.")]
OutputOption = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where the profile goes.")]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", show_default=False, help="Rows of this model, where a table has several."),
]
BackendOption = Annotated[
    str | None,
    typer.Option("--attention-backend", metavar="NAME", show_default=False, help="The same for attention backends."),
]
KeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="FIELD=VALUE",
        show_default=False,
        help="What the profile holds for: model, device_name, attention_backend ...; repeat for more.",
    ),
]
LikeOption = Annotated[
    str | None,
    typer.Option(
        "--like", metavar="ENGINE", show_default=False, help="Take the key from this engine; --key goes first."
    ),
]
MoeOption = Annotated[
    bool, typer.Option("--moe", help="A mixture of experts: more draft steps may turn out faster than fewer.")
]
PromptOption = Annotated[
    int | None,
    typer.Option(
        "--prompt-tokens",
        metavar="N",
        min=0,
        show_default=False,
        help="Length of the prompts behind step logs. Without it their context is not looked at.",
    ),
]
SizesOption = Annotated[
    str | None,
    typer.Option(
        "--graph-sizes",
        metavar="1,2,4,...",
        show_default=False,
        help="Sizes that batches were padded to, where the trace does not say it.",
    ),
]

commands = command_group("Cost profiles: what decode steps take, learnt from traces.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="profile")


@commands.command("fit")
def fit(
    traces: TracesArgument,
    output: OutputOption,
    model: ModelOption = None,
    attention_backend: BackendOption = None,
    key: KeyOption = None,
    like: LikeOption = None,
    moe: MoeOption = False,
    prompt_tokens: PromptOption = None,
    graph_sizes: SizesOption = None,
    json: JsonOption = False,
    controller: ControllerOption = None,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
) -> None:
    """Learn a profile from traces.

    ERROR is how far the profile is from what was measured; HELD OUT is that of a profile of one half of the rows on
    the other half."""
    from trimtab.cli import output as out
    from trimtab.cli.progress import reading
    from trimtab.profile_file import write_profile

    wanted = _wanted(model, attention_backend, prompt_tokens, graph_sizes)
    holds_for = _key(key, like, model, attention_backend, controller, timeout)
    learn = _tools().learn_profile
    with reading(traces) as progress:
        content = learn(traces, wanted, holds_for, moe, progress)
    write_profile(output, content)
    if json:
        out.print_json(_summary(output, content))
    else:
        _print_summary(output, content)


@commands.command("check")
def check(
    profile: ProfileArgument,
    traces: TracesArgument,
    model: ModelOption = None,
    attention_backend: BackendOption = None,
    prompt_tokens: PromptOption = None,
    graph_sizes: SizesOption = None,
    json: JsonOption = False,
) -> None:
    """Say how far a profile is from what other traces measured."""
    from trimtab.cli import output
    from trimtab.cli.progress import reading
    from trimtab.profile_file import read_profile

    known = read_profile(profile).profile
    check_profile = _tools().check_profile
    with reading(traces) as progress:
        records = check_profile(known, traces, _wanted(model, attention_backend, prompt_tokens, graph_sizes), progress)
    if not records:
        raise TrimtabError("there is nothing in these traces to check the profile with")
    if json:
        output.print_json({"profile": str(profile), "worst_error": _worst(records, "error"), "cells": records})
        return
    print(_worst_line("error", records, "error"))
    output.print_table(_cell_table(records))


def _tools() -> Any:
    """What reads and learns; it needs more than the controller does."""
    return replay_part("profiles.learning", "scikit-learn")


def _wanted(model: str | None, backend: str | None, prompt_tokens: int | None, sizes: str | None) -> Wanted:
    from trimtab.replay.profiles.wanted import Wanted

    return Wanted(model or "", backend or "", prompt_tokens, _sizes(sizes))


def _sizes(text: str | None) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() and int(part) for part in parts):
        raise TrimtabError(f"--graph-sizes {text!r} must be batch sizes with commas between: 1,2,4,8")
    return tuple(sorted({int(part) for part in parts}))


def _key(
    fields: Sequence[str] | None,
    like: str | None,
    model: str | None,
    backend: str | None,
    controller: str | None,
    timeout_s: float,
) -> CostKey:
    """The key: what an engine says, then what was chosen from a table, then what is said outright."""
    from trimtab.profile_file import read_key

    said = pairs("--key", fields)
    chosen = {name: value for name, value in (("model", model), ("attention_backend", backend)) if value}
    engine = _engine_key(like, controller, timeout_s).stated() if like else {}
    return read_key("--key", {**chosen, **engine, **said}.items())


def _engine_key(engine_id: str, controller: str | None, timeout_s: float) -> CostKey:
    from trimtab.cli.client import connected
    from trimtab.domain import minor_version
    from trimtab.wire import cost_key_of

    with connected(controller, timeout_s) as admin:
        found = cost_key_of(admin.engine(engine_id).hello)
    return replace(found, sglang_version=minor_version(found.sglang_version))


# -- what is printed ---------------------------------------------------------------------------------


def _summary(path: Path, content: ProfileContent) -> dict[str, Any]:
    made = content.provenance
    assert made is not None
    return {
        "file": str(path),
        "key": content.key,
        "rows": made.rows,
        "used_rows": made.used_rows,
        "left_out": made.left_out,
        "context": content.context,
        "worst_error": _worst(made.cells, "error"),
        "worst_held_out_error": _worst(made.cells, "held_out_error"),
        "cells": made.cells,
    }


def _print_summary(path: Path, content: ProfileContent) -> None:
    from trimtab.cli import output
    from trimtab.profile_file import INDISPENSABLE

    made, context = content.provenance, content.context
    assert made is not None
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in made.left_out.items()) or "none"
    modes = {cell.mode for cell in made.cells}
    what = f"{len(content.points)} batch sizes and {len(modes)} modes"
    print(f"{path}: {what} from {made.used_rows:,} of {made.rows:,} rows")
    print(f"left out: {left_out}")
    if context is None:
        print("context: not looked at, or of no effect")
    else:
        more = (
            f", {context.ms_per_longest_token * 1e3:.3g} us a token of the longest"
            if context.ms_per_longest_token
            else ""
        )
        print(
            f"context: {context.ms_per_token * 1e3:.3g} us a token of the batch{more}, "
            f"beyond {context.reference_tokens:,.0f} a request"
        )
    print(_worst_line("error", made.cells, "error"))
    print(_worst_line("held out", made.cells, "held_out_error"))
    lacking = [name for name in INDISPENSABLE if not getattr(content.key, name)]
    if lacking:
        print(
            f"the key lacks {' and '.join(lacking)}, which trimtabd asks for: give --like ENGINE or --key FIELD=VALUE"
        )
    output.print_table(_cell_table(made.cells))


def _worst(cells: Sequence[CellRecord], name: str) -> float | None:
    """The largest error by size; None if there is none."""
    return max((abs(error) for cell in cells if (error := getattr(cell, name)) is not None), default=None)


def _worst_line(title: str, cells: Sequence[CellRecord], name: str) -> str:
    judged = [cell for cell in cells if getattr(cell, name) is not None]
    if not judged:
        return f"{title}: too few rows of every batch size and mode to say it"
    worst = max(judged, key=lambda cell: abs(getattr(cell, name)))
    where = f"batch {worst.batch_size}, {worst.mode}"
    return f"{title}: {getattr(worst, name):+.1%} at the most ({where}), {len(judged)} batch sizes and modes judged"


def _cell_table(cells: Sequence[CellRecord]) -> Table:
    from trimtab.cli import output

    figures = ("BATCH", "ROWS", "MEDIAN MS", "ERROR", "HELD OUT")
    held_out = any(cell.held_out_error is not None for cell in cells)
    headers = ("BATCH", "MODE", *figures[1:4], *(figures[4:] if held_out else ()))
    table = output.plain_table(*headers, right=figures)
    for cell in cells:
        row = [
            str(cell.batch_size),
            cell.mode,
            f"{cell.rows:,}",
            output.number(cell.measured_ms, 3),
            f"{cell.error:+.1%}",
        ]
        if held_out:
            row.append(output.UNKNOWN if cell.held_out_error is None else f"{cell.held_out_error:+.1%}")
        table.add_row(*row)
    return table
