"""`trimtab replay --estimators`: what policies would have earned where a trace chose its modes at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from trimtab.replay.off_policy.estimate import EstimateResult
    from trimtab.replay.simulation.trial import NamedPolicy
    from trimtab.replay.statistics.interval import Interval

Tools = Callable[[str], Any]
Told = Callable[[Path], Callable[[float], None]]


def estimator_names(text: str, tools: Tools) -> list[str]:
    """The names in a list with commas between.

    Raises:
        TrimtabError: There is no such estimator.
    """
    known = tools("off_policy.estimators").ESTIMATORS
    names = list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise TrimtabError(f"unknown estimator {(unknown or [text])[0]!r}; there are: {', '.join(known)}")
    return names


def estimate_traces(
    traces: Sequence[Path],
    policies: Sequence[NamedPolicy],
    estimators: Sequence[str],
    interval_ms: float,
    seed: int,
    tools: Tools,
    told: Told,
) -> list[EstimateResult]:
    """What every estimator says of every policy on every trace.

    Args:
        traces: Traces, journals, or files that a trace can be made of.
        policies: The candidates.
        estimators: Names of estimators.
        interval_ms: Report interval in recorded time.
        seed: Of the policies and of the resampling.
        tools: Finds the parts of `trimtab.replay` that need more than the controller does.
        told: For a trace, whom to tell which share of it is done.
    """
    open_recording, off_policy = tools("traces.recording").open_recording, tools("off_policy.estimate")
    settings = off_policy.OffPolicySettings(interval_ms, seed)
    found: list[EstimateResult] = []
    for path in traces:
        tell = told(path)
        with open_recording(path, lambda share, tell=tell: tell(share * 0.1)) as trace:
            found += off_policy.estimate(
                trace, policies, estimators, settings, str(path), lambda share, tell=tell: tell(0.1 + share * 0.9)
            )
    return found


def print_estimates(results: Sequence[EstimateResult]) -> None:
    """A table of what was estimated; below it, what each trace says for each policy, and why some say nothing."""
    from trimtab.cli import output

    figures = ("TOKENS/S", "95% FROM", "TO", "OF RECORDED", "TOKENS/STEP", "STEP MS", "WORTH BLOCKS", "MEAN WEIGHT")
    several = len({result.trace for result in results}) > 1
    table = output.plain_table(*(("TRACE",) if several else ()), "POLICY", "ESTIMATOR", *figures, right=figures)
    for result in results:
        table.add_row(*([result.trace] if several else []), result.policy, result.estimator, *_figures(result))
    output.print_table(table)
    print()
    for line in _remarks(results):
        print(line)


def _figures(result: EstimateResult) -> list[str]:
    from trimtab.cli import output

    recorded, value = result.recorded_tokens_per_s, result.tokens_per_s
    known = result.support.blocks > 0
    return [
        output.number(value, 0),
        output.number(result.low, 0),
        output.number(result.high, 0),
        output.number(value / recorded if value and recorded else None, 3),
        _with_interval(result.tokens_per_step),
        _with_interval(result.step_ms),
        output.number(result.support.effective_blocks if known else None, 0),
        output.number(result.support.mean_weight if known else None, 3),
    ]


def _with_interval(figure: Interval | None) -> str:
    from trimtab.cli import output

    return f"{figure.value:.3g} ({figure.low:.3g}-{figure.high:.3g})" if figure else output.UNKNOWN


def _remarks(results: Sequence[EstimateResult]) -> Iterator[str]:
    for trace, of_trace in groupby(results, key=lambda result: result.trace):
        first = next(of_trace)
        left_out = "".join(f", {rows:,} left out ({reason})" for reason, rows in first.left_out.items())
        recorded = f", {first.recorded_tokens_per_s:,.0f} tokens/s as recorded" if first.recorded_tokens_per_s else ""
        yield f"{trace}: {first.rows:,} rows{left_out}{recorded}"
    refused = [result for result in results if result.refused]
    for (policy, why), alike in groupby(refused, key=lambda result: (result.policy, result.refused)):
        yield f"{policy}, {', '.join(result.estimator for result in alike)}: {why}"
