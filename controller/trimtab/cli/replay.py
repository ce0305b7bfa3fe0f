"""`trimtab replay`: what other policies would have made of a recorded trace, and whether a journal can be followed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.options import JsonOption, PoliciesOption
from trimtab.cli.replay_parts import replay_part
from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from trimtab.replay.counterfactual.replay import ReplaySettings
    from trimtab.replay.counterfactual.result import ReplayResult, ReplayVerdict
    from trimtab.replay.journals.verify import EngineVerdict, VerifyResult
    from trimtab.replay.simulation.trial import NamedPolicy

TracesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="TRACE", help="Traces, journals, or files that `trimtab trace import` takes."),
]
ProfileOption = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        show_default=False,
        help="What steps cost. Default: a profile fitted on the trace itself.",
    ),
]
IntervalOption = Annotated[
    float, typer.Option("--interval-ms", metavar="MS", min=1.0, max=5000.0, help="Report interval in replayed time.")
]
SeedOption = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, help="Seed of the policies, of unseen luck and of the intervals.")
]
SwitchOption = Annotated[
    float | None,
    typer.Option(
        "--switch-ms",
        metavar="MS",
        min=0.0,
        show_default=False,
        help="What a change of mode costs. Default: learnt from the trace.",
    ),
]
ReportOption = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.html", show_default=False, help="Write a page with figures."),
]
EstimatorsOption = Annotated[
    str | None,
    typer.Option(
        "--estimators",
        metavar="ips,snips,dm,dr",
        show_default=False,
        help="Estimate from the modes that the trace chose at random, instead of replaying it.",
    ),
]
VerifyOption = Annotated[
    bool,
    typer.Option("--verify", help="Run the sessions of a journal again and compare every decision with the record."),
]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", metavar="ENGINE", show_default=False, help="With --verify: only this engine."),
]

EXIT_DIFFERENT = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay")(replay)


def replay(
    traces: TracesArgument,
    policy: PoliciesOption = None,
    profile: ProfileOption = None,
    interval_ms: IntervalOption = 250.0,
    seed: SeedOption = 0,
    switch_ms: SwitchOption = None,
    report: ReportOption = None,
    estimators: EstimatorsOption = None,
    verify: VerifyOption = False,
    engine: EngineOption = None,
    json: JsonOption = False,
) -> None:
    """Say what other policies would have made of recorded traces, with 95% intervals.

    OBSERVED is the share of tokens whose mode is the one that ran, TRUNCATED that with fewer drafts than ran, which
    is exact; MODELLED is the rest. With --estimators: what the policies would have earned on the recorded steps, from
    modes that were drawn with known probabilities; WORTH BLOCKS is how many equally heavy draws an estimate rests on.
    With --verify: whether every decision in a journal is the one that its record leads to; exit status 1 if not.
    """
    if verify:
        if policy or profile or report or estimators or switch_ms is not None:
            raise TrimtabError("--verify goes with --engine and --json alone: it compares what was decided")
        _verify(traces, engine, json)
        return
    if engine is not None:
        raise TrimtabError("--engine goes with --verify; to replay one engine, `trimtab trace export --engine` first")
    if estimators is not None:
        if profile or report or switch_ms is not None:
            raise TrimtabError("--estimators goes with --policy, --interval-ms, --seed and --json alone")
        _estimate(traces, _policies(policy), estimators, interval_ms, seed, json)
        return
    _replay(traces, _policies(policy), _settings(profile, interval_ms, seed, switch_ms), report, json)


def _tools(name: str) -> Any:
    """What reads traces and journals; it needs more than the controller does."""
    return replay_part(name, "pyarrow and scikit-learn")


# -- counterfactuals ---------------------------------------------------------------------------------


def _policies(texts: Sequence[str] | None) -> list[NamedPolicy]:
    from trimtab.policies.registry import DEFAULT_POLICY
    from trimtab.replay.simulation.trial import parse_policy

    return [parse_policy(text) for text in dict.fromkeys(texts or [DEFAULT_POLICY])]


def _settings(profile: Path | None, interval_ms: float, seed: int, switch_ms: float | None) -> ReplaySettings:
    from trimtab.profile_file import read_profile

    known = read_profile(profile) if profile is not None else None
    settings: ReplaySettings = _tools("counterfactual.replay").ReplaySettings(
        interval_ms=interval_ms,
        seed=seed,
        profile=known.profile if known else None,
        profile_name=known.name if known else "",
        switch_ms=switch_ms,
    )
    return settings


def _replay(
    traces: Sequence[Path], policies: Sequence[NamedPolicy], settings: ReplaySettings, report: Path | None, json: bool
) -> None:
    from trimtab.cli import output

    if report is not None and not report.parent.is_dir():
        raise TrimtabError(f"--report {report}: there is no directory {report.parent}")
    results = _results(traces, policies, settings)
    if report is not None:
        _write_report(results, report)
    verdicts = [verdict for result in results for verdict in result.verdicts]
    if json:
        output.print_json(verdicts)
    else:
        _print_results(results)


def _results(traces: Sequence[Path], policies: Sequence[NamedPolicy], settings: ReplaySettings) -> list[ReplayResult]:
    open_recording, replay_trace = _tools("traces.recording").open_recording, _tools("counterfactual.replay").replay
    found: list[ReplayResult] = []
    with _replaying() as progress:
        for number, path in enumerate(traces):
            # The bar goes over all traces; of each, to open it is a small part.
            told = _told(progress, path.name, number, len(traces))
            with open_recording(path, lambda share, told=told: told(share * 0.1)) as trace:
                found.append(
                    replay_trace(trace, policies, settings, str(path), lambda share, told=told: told(0.1 + share * 0.9))
                )
    return found


def _told(progress: Callable[[str, float], None], name: str, number: int, of: int) -> Callable[[float], None]:
    return lambda share: progress(name, (number + share) / of)


@contextmanager
def _replaying() -> Iterator[Callable[[str, float], None]]:
    """A bar on stderr where somebody watches; it is told which trace is played, and the share that is done."""
    from rich.console import Console
    from rich.progress import Progress

    watching = Console(stderr=True)
    with Progress(console=watching, transient=True, disable=not watching.is_terminal) as bar:
        task = bar.add_task("Replaying", total=1.0)
        yield lambda name, share: bar.update(task, description=f"Replaying {name}", completed=share)


def _write_report(results: Sequence[ReplayResult], path: Path) -> None:
    import shlex
    import sys

    words = ["trimtab", *sys.argv[1:]]
    _tools("report.page").write_report(results, path, shlex.join(words))


# -- estimates ---------------------------------------------------------------------------------------


def _estimate(
    traces: Sequence[Path],
    policies: Sequence[NamedPolicy],
    estimators: str,
    interval_ms: float,
    seed: int,
    json: bool,
) -> None:
    from trimtab.cli import output
    from trimtab.cli.estimating import estimate_traces, estimator_names, print_estimates

    names = estimator_names(estimators, _tools)
    with _replaying() as progress:
        numbers = {path: number for number, path in enumerate(traces)}
        found = estimate_traces(
            traces, policies, names, interval_ms, seed, _tools,
            lambda path: _told(progress, path.name, numbers[path], len(traces)),
        )  # fmt: skip
    if json:
        output.print_json(found)
    else:
        print_estimates(found)


# -- what is printed ---------------------------------------------------------------------------------


def _print_results(results: Sequence[ReplayResult]) -> None:
    from trimtab.cli import output

    figures = (
        "TOKENS/S", "95% FROM", "TO", "OF RECORDED", "OF BEST FIXED", "SWITCHES/1000", "OBSERVED", "TRUNCATED",
        "MODELLED",
    )  # fmt: skip
    several = len(results) > 1
    table = output.plain_table(*(("TRACE",) if several else ()), "POLICY", *figures, right=figures)
    for result in results:
        for v in result.verdicts:
            table.add_row(*([result.trace] if several else []), v.policy, *_figures(v))
    output.print_table(table)
    for result in results:
        print()
        for line in _remarks(result):
            print(line)


def _figures(v: ReplayVerdict) -> list[str]:
    from trimtab.cli import output

    return [
        output.number(v.tokens_per_s, 0),
        output.number(v.low, 0),
        output.number(v.high, 0),
        *(f"{gain.value:.3f} ({gain.low:.3f}-{gain.high:.3f})" for gain in (v.against_recorded, v.against_best_fixed)),
        output.number(v.switches_per_1000_steps, 1),
        *(f"{share:.1%}" for share in (v.observed_share, v.truncated_share, v.modelled_share)),
    ]


def _remarks(result: ReplayResult) -> Iterator[str]:
    """What belongs to a trace beside its table."""
    recorded = result.verdicts[0]
    price = result.costs.price
    told = f"told by {price.seen} changes" if price.seen else "nobody knows" if not price.ms else "as given"
    yield f"{result.trace}: {result.rows:,} rows, {recorded.tokens:,} tokens"
    yield f"the best fixed mode, known afterwards only, is {recorded.best_fixed}"
    yield f"step times: profile {recorded.profile}; a change of mode costs {price.ms:.2g} ms ({told})"
    rows = "".join(f", {n:,} rows ({reason})" for reason, n in recorded.left_out_rows.items())
    yield f"left out: {recorded.left_out_s:,.1f} s of pauses and gaps that nobody can explain{rows}"
    if len(recorded.engines) > 1:
        for v in result.verdicts:
            by_engine = ", ".join(f"{e.engine} run {e.run} {e.tokens_per_s:,.0f}" for e in v.engines)
            yield f"{v.policy} by engine, tokens/s: {by_engine}"
    for note, who in groupby(_notes(result), key=lambda pair: pair[0]):
        yield f"note on {', '.join(name for _, name in who)}: {note}"


def _notes(result: ReplayResult) -> list[tuple[str, str]]:
    return sorted((note, v.policy) for v in result.verdicts for note in v.notes)


# -- journals ----------------------------------------------------------------------------------------


def _verify(journals: Sequence[Path], engine: str | None, json: bool) -> None:
    from trimtab.cli import output
    from trimtab.cli.progress import counting

    if len(journals) != 1:
        raise TrimtabError("--verify takes one journal")
    run_again = _tools("journals.verify").verify
    with counting("Verifying") as progress:
        result: VerifyResult = run_again(journals[0], engine, progress)
    if json:
        output.print_json(result)
    else:
        _print_verification(journals[0], result)
    if not result.ok:
        raise typer.Exit(EXIT_DIFFERENT)


def _print_verification(path: Path, result: VerifyResult) -> None:
    from trimtab.cli import output

    figures = ("ENTRIES", "DECISIONS", "CHECKPOINTS", "NOT VERIFIED")
    table = output.plain_table("ENGINE", *figures, "RESULT", right=figures)
    for verdict in result.engines:
        table.add_row(
            verdict.engine,
            f"{verdict.entries:,}",
            f"{verdict.decisions:,}",
            f"{verdict.checkpoints:,}",
            f"{verdict.unverified:,}",
            _verdict_word(verdict),
        )
    output.print_table(table)
    if result.lost:
        print(f"{result.lost:,} entries or more were lost; what follows them was verified from the next checkpoint on")
    difference = result.difference
    if difference is None:
        print(f"{path}: every decision that could be followed is the one that was recorded")
        return
    where = f"{difference.kind} {difference.field}".rstrip()
    print(
        f"{path}: the first difference is entry {difference.seq:,} (run {difference.run}, {difference.engine}): {where}"
    )
    print(f"  recorded: {difference.recorded}")
    print(f"  now:      {difference.replayed}")


def _verdict_word(verdict: EngineVerdict) -> str:
    if verdict.difference is not None:
        return "differs"
    return "ok" if verdict.decisions or not verdict.entries else "nothing to compare"
