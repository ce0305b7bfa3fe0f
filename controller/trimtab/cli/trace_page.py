"""What `trimtab trace info` prints for people."""

from __future__ import annotations

from trimtab.cli import output
from trimtab.cli.duration import format_duration
from trimtab.replay.journals.summary import JournalSummary
from trimtab.replay.traces.summary import EngineSummary, TraceSummary


def print_trace(trace: TraceSummary) -> None:
    """The page of a trace."""
    print(f"{trace.file}: {trace.source}, {trace.rows:,} rows of {trace.steps:,} decode steps")
    print(
        f"rows with counts by depth {trace.counts_share:.1%}, with a step time {trace.timed_share:.1%}, "
        f"with a propensity {trace.propensity_share:.1%}"
    )
    if (size := trace.batch_size) is not None:
        print(f"batch sizes {size.smallest} to {size.largest}, median {size.median}, {size.distinct} of them")
    print()
    _print_engines(trace.engines)
    print()
    _print_modes(trace)
    if trace.acceptance:
        print()
        _print_acceptance(trace)


def _print_engines(engines: tuple[EngineSummary, ...]) -> None:
    figures = ("RUN", "ROWS", "TIME", "TOKENS", "MISSING STEPS", "GAPS", "GAP TIME")
    table = output.plain_table("ENGINE", *figures, right=figures)
    for e in engines:
        table.add_row(
            e.engine,
            str(e.run),
            f"{e.rows:,}",
            format_duration(e.span_s),
            output.number(e.tokens, 0),
            output.number(e.missing_steps, 0),
            f"{e.gap_rows:,}",
            format_duration(e.gap_s),
        )
    output.print_table(table)


def _print_modes(trace: TraceSummary) -> None:
    figures = ("ROWS", "STEPS", "ACCEPTED", "STEP MS")
    table = output.plain_table("MODE", *figures, right=figures)
    for mode in trace.modes:
        table.add_row(
            mode.mode,
            f"{mode.rows:,}",
            f"{mode.steps:,}",
            output.number(mode.accepted, 2),
            output.number(mode.step_ms, 2),
        )
    output.print_table(table)


def _print_acceptance(trace: TraceSummary) -> None:
    figures = ("DRAFT", "OFFERED", "ACCEPTED", "RATE")
    table = output.plain_table(*figures, right=figures)
    for position in trace.acceptance:
        table.add_row(
            str(position.depth),
            f"{position.offered:,}",
            f"{position.accepted:,}",
            output.number(position.rate, 3),
        )
    output.print_table(table)


def print_journal(journal: JournalSummary) -> None:
    """The page of a journal."""
    span = f"{journal.first_at} to {journal.last_at}" if journal.first_at else "nothing yet"
    print(f"{journal.file}: journal, {journal.entries:,} entries, {span}")
    if journal.pruned_through:
        print(f"pruned up to entry {journal.pruned_through:,}, except for what a restart needs")
    print()
    _print_runs(journal)
    print()
    engines = output.plain_table("ENGINE", "ENTRIES", "REPORTS", "LEASES", right=("ENTRIES", "REPORTS", "LEASES"))
    for engine in journal.engines:
        kinds = engine.kinds
        engines.add_row(
            engine.engine, f"{engine.entries:,}", f"{kinds.get('report', 0):,}", f"{kinds.get('lease', 0):,}"
        )
    output.print_table(engines)
    print()
    if not journal.gaps:
        print("no entry is missing")
    for gap in journal.gaps:
        lost = f"at least {gap.lost:,} lost when run {gap.run} died" if gap.died else f"{gap.lost:,} lost"
        print(f"gap after entry {gap.after:,}: {lost}")


def _print_runs(journal: JournalSummary) -> None:
    table = output.plain_table("RUN", "STATE", "STARTED", "ENDED", "VERSION", right=("RUN",))
    for run in journal.runs:
        table.add_row(str(run.run), run.state, run.started_at, run.ended_at or output.UNKNOWN, run.version)
    output.print_table(table)
