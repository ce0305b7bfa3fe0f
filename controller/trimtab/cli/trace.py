"""`trimtab trace`: make traces of what others wrote or of a journal, and say what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.command_group import command_group
from trimtab.cli.options import JsonOption
from trimtab.cli.replay_parts import replay_part

if TYPE_CHECKING:
    from trimtab.replay.traces.importing import ImportedFile, ImportReport

FilesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help="Step logs, step rows (CSV or JSON lines), logs of SGLang, or traces."),
]
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A trace, a file that one can be made of, or a journal.")
]
JournalArgument = Annotated[
    Path, typer.Argument(metavar="JOURNAL", help="The journal's file, or the state directory of trimtabd.")
]
TraceOption = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where the trace goes.")]
ExportOption = Annotated[
    Path, typer.Option("-o", "--output", metavar="FILE", help="Where the rows go: a trace, or CSV if it ends in .csv.")
]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--engine", metavar="NAME", show_default=False, help="Engine of files that name none. Default: the file's name."
    ),
]
OnlyOption = Annotated[
    str | None, typer.Option("--engine", metavar="ENGINE", show_default=False, help="Only this engine.")
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        "--steps", metavar="K", min=0, show_default=False, help="Drafts a step in logs of SGLang that do not say it."
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", show_default=False, help="From then on: 2026-11-30T14:00 (UTC), or 2h for 2h ago."
    ),
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="TIME", show_default=False, help="Up to then, in the same forms.")
]

commands = command_group("Traces: recorded decode steps, to replay and to learn from.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="trace")


@commands.command("import")
def import_files(
    files: FilesArgument,
    output: TraceOption,
    engine: NameOption = None,
    steps: StepsOption = None,
    json: JsonOption = False,
) -> None:
    """Make one trace of files that others wrote."""
    from trimtab.cli import output as out
    from trimtab.cli.progress import reading

    tools = _tools("traces.importing")
    with reading(files) as progress:
        report = tools.import_traces(files, output, engine, steps, progress)
    if json:
        out.print_json(report)
    else:
        _print_import(report)


@commands.command("info")
def info(file: FileArgument, json: JsonOption = False) -> None:
    """Say what is in a trace or a journal, and what is missing."""
    from trimtab.cli import output as out
    from trimtab.cli import trace_page
    from trimtab.cli.progress import counting

    journals = _tools("journals.summary")
    with counting() as progress:
        if is_journal := journals.is_journal(file):
            summary: Any = journals.summarize_journal(file, progress)
        else:
            summary = _tools("traces.summary").summarize(file, progress)
    if json:
        out.print_json(summary)
    elif is_journal:
        trace_page.print_journal(summary)
    else:
        trace_page.print_trace(summary)


@commands.command("export")
def export(
    journal: JournalArgument,
    output: ExportOption,
    engine: OnlyOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    json: JsonOption = False,
) -> None:
    """Make a trace of the step rows in a journal; a daemon may be writing it."""
    from trimtab.cli import output as out
    from trimtab.cli.duration import parse_time_ns
    from trimtab.cli.progress import counting

    tools = _tools("traces.exporting")
    wanted = tools.Wanted(
        engine,
        None if since is None else parse_time_ns("--since", since),
        None if until is None else parse_time_ns("--until", until),
    )
    with counting() as progress:
        report = tools.export_trace(journal, output, wanted, progress)
    if json:
        out.print_json(report)
        return
    print(f"{output}: {report.rows:,} rows of {', '.join(report.engines)}")
    for reason, rows in report.left_out.items():
        print(f"left out: {rows:,} {reason}")
    if report.unknown_lease:
        print(f"without propensity, since their lease is not in the journal: {report.unknown_lease:,}")


def _tools(name: str) -> Any:
    """What reads and writes traces; it needs more than the controller does."""
    return replay_part(name, "pyarrow")


def _print_import(report: ImportReport) -> None:
    from trimtab.cli import output

    print(f"{report.trace}: {report.rows:,} rows, {report.left_out:,} left out")
    table = output.plain_table("FILE", "SOURCE", "ROWS", "IMPORTED", "ENGINES", right=("ROWS", "IMPORTED"))
    for file in report.files:
        table.add_row(file.file, file.source, f"{file.rows:,}", f"{file.imported:,}", ", ".join(file.engines))
    output.print_table(table)
    for file in report.files:
        _print_remarks(file)


def _print_remarks(file: ImportedFile) -> None:
    word = "row" if file.file.endswith(".parquet") else "line"
    for reason, left in file.left_out.items():
        print(f"left out of {file.file}: {left.rows:,} {reason}, the first in {word} {left.first_line:,}")
    if file.ignored_columns:
        print(f"no place in a trace for columns of {file.file}: {', '.join(file.ignored_columns)}")
