"""Hand-made cases whose figures can be worked out on paper, and a driver that plays a script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trimtab.domain import Mode, modes_of, speculate
from trimtab.replay.environment import StepLoad, load_of
from trimtab.replay.simulation.cases import CaseEnvironment, CostRow
from trimtab.replay.simulation.drivers import StepResult


def load_with_runs(runs: Iterable[int], phase: str = "", context_tokens: int | None = None) -> StepLoad:
    """The load whose requests have these runs of accepted drafts."""
    hist = [0] * 9
    for run in runs:
        hist[run] += 1
    return load_of(hist, context_tokens, phase=phase)


def small_case(
    loads: Sequence[StepLoad], ms: Mapping[int, float], start: int = 0, switch_ms: float = 0.0
) -> CaseEnvironment:
    """A case in which a step takes `ms[k]` whatever the batch."""
    return CaseEnvironment("small", modes_of(ms), speculate(start), [CostRow(64, ms)], loads, switch_ms)


class Script:
    """Plays these modes, one a step, and keeps the results."""

    def __init__(self, steps: Iterable[int]) -> None:
        self._modes = iter([speculate(k) for k in steps])
        self.results: list[StepResult] = []

    def choose(self, load: StepLoad) -> Mode:
        return next(self._modes)

    def finish(self, result: StepResult) -> None:
        self.results.append(result)
