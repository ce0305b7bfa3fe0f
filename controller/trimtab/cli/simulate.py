"""`trimtab simulate`: what would a policy have made of a case?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.options import JsonOption, PoliciesOption
from trimtab.cli.replay_parts import replay_part

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.replay.simulation.cases import CaseEnvironment
    from trimtab.replay.simulation.efficiency import PhaseVerdict, Verdict
    from trimtab.replay.simulation.trial import NamedPolicy, Trial

FilesArgument = Annotated[list[Path], typer.Argument(metavar="FILE", help="Case files of kind env (JSON lines).")]
ProfileOption = Annotated[
    str,
    typer.Option(
        "--profile",
        metavar="FILE|case|none",
        help="What the policies are told that steps cost: a profile file, the case's own cost table, or nothing.",
    ),
]
IntervalOption = Annotated[
    float, typer.Option("--interval-ms", metavar="MS", min=1.0, max=5000.0, help="Report interval in simulated time.")
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the policies' randomness.")]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE.png", show_default=False, help="Draw what was chosen, and when.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate")(simulate)


def simulate(
    files: FilesArgument,
    policy: PoliciesOption = None,
    profile: ProfileOption = "none",
    interval_ms: IntervalOption = 250.0,
    seed: SeedOption = 0,
    json: JsonOption = False,
    plot: PlotOption = None,
) -> None:
    """Try policies on cases, through the same session and lease machine as live engines.

    EFFICIENCY is the time in which the best fixed step count of each phase would have produced the same tokens, over
    the time taken, switches included; BEST FIXED is the same for the best single step count.
    """
    from trimtab.cli import output
    from trimtab.policies.registry import DEFAULT_POLICY
    from trimtab.replay.simulation.case_file import read_case
    from trimtab.replay.simulation.trial import parse_policy

    policies = [parse_policy(text) for text in policy or [DEFAULT_POLICY]]
    cases = [read_case(path) for path in files]
    trials = _run(cases, policies, profile, interval_ms, seed)
    if plot is not None:
        _draw(trials, plot)
    verdicts = [verdict for trial in trials for verdict, _ in trial.courses]
    if json:
        output.print_json(verdicts)
    else:
        _print_tables(verdicts)


def _run(
    cases: Sequence[CaseEnvironment], policies: Sequence[NamedPolicy], profile: str, interval_ms: float, seed: int
) -> list[Trial]:
    """Every policy on every case; a bar on stderr where somebody watches."""
    from rich.console import Console
    from rich.progress import Progress

    from trimtab.replay.simulation.case_profiles import profile_source
    from trimtab.replay.simulation.efficiency import Judge
    from trimtab.replay.simulation.trial import Trial, try_policy

    profile_for = profile_source(profile)
    watching = Console(stderr=True)
    trials = []
    with Progress(console=watching, transient=True, disable=not watching.is_terminal) as progress:
        task = progress.add_task("Simulating", total=len(cases) * len(policies))
        for case in cases:
            judge = Judge(case)
            courses = []
            for policy in policies:
                progress.update(task, description=f"{case.name}: {policy.text}")
                course = try_policy(case, policy, profile_for(case), interval_ms, seed)
                courses.append((judge.judge(course, policy.text, profile), course))
                progress.advance(task)
            trials.append(Trial(case, judge, tuple(courses)))
    return trials


def _draw(trials: Sequence[Trial], path: Path) -> None:
    replay_part("simulation.plot", "matplotlib", "--plot").plot(trials, path)


def _print_tables(verdicts: Sequence[Verdict]) -> None:
    from trimtab.cli import output

    figures = ("TOKENS/S", "EFFICIENCY", "BEST FIXED", "SWITCHES/1000", "MIN DWELL")
    table = output.plain_table("CASE", "POLICY", *figures, right=figures)
    for v in verdicts:
        table.add_row(
            v.case,
            v.policy,
            output.number(v.tokens_per_s, 0),
            output.number(v.efficiency, 3),
            f"{v.best_fixed_efficiency:.3f} (k={v.best_fixed_k})",
            output.number(v.switches_per_1000_steps, 1),
            str(v.min_dwell_steps),
        )
    output.print_table(table)
    for case, group in groupby(verdicts, key=lambda v: v.case):
        print(f"\n{case}: share of steps by k, and efficiency, in each phase")
        output.print_table(_phase_table(list(group)))


def _phase_table(verdicts: Sequence[Verdict]) -> Table:
    from trimtab.cli import output

    table = output.plain_table("PHASE", "STEPS", "BEST K", *(v.policy for v in verdicts), right=("STEPS", "BEST K"))
    for rows in zip(*(v.phases for v in verdicts), strict=True):
        first = rows[0]
        table.add_row(first.phase or output.UNKNOWN, str(first.steps), str(first.best_k), *map(_phase_cell, rows))
    return table


def _phase_cell(phase: PhaseVerdict) -> str:
    """For example `0.97 3:90% 1:10%`: efficiency, then the step counts that ran, most frequent first."""
    ranked = sorted(phase.k.items(), key=lambda item: -item[1])
    shares = (f"{k}:{100 * n / phase.steps:.0f}%" for k, n in ranked if 200 * n >= phase.steps)
    return f"{phase.efficiency:.2f} {' '.join(shares)}"
