"""A day of a fleet's load in a few seconds: what the demo plays, seeded, on the measured step times.

Indexed by time: what a policy chooses changes how many steps it gets out of a phase, not how long the phase is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from trimtab.domain import PLAIN_WARM, Mode, speculate
from trimtab.replay.environment import MAX_DEPTH, Acceptance, CostTable, StepLoad, load_of

TICKS_A_DAY = 480
DAY_MODES = (PLAIN_WARM, *(speculate(steps) for steps in (1, 2, 3, 5, 7)))
MEASURED_SWITCH_MS = 0.3


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of request. Each draft is accepted with `acceptance` if those before it were; `share` of the batch."""

    acceptance: float
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the day: how long, how many requests at once, how much context, and whose requests they are."""

    name: str
    share_of_day: float
    fewest: int
    most: int
    context_tokens: int
    traffic: tuple[Traffic, ...]


CODE, EXTRACTION, CHAT, STORIES = 0.9, 0.72, 0.5, 0.3
DAY = (
    Phase("night agents", 0.14, 1, 6, 2000, (Traffic(CODE),)),
    Phase("morning code", 0.20, 16, 64, 1200, (Traffic(CODE),)),
    Phase("noon peak", 0.20, 128, 243, 300, (Traffic(STORIES),)),
    Phase("afternoon mix", 0.18, 40, 110, 700, (Traffic(CODE, 0.5), Traffic(STORIES, 0.5))),
    Phase("evening chat", 0.16, 8, 40, 900, (Traffic(CHAT),)),
    Phase("extraction jobs", 0.12, 160, 243, 200, (Traffic(EXTRACTION),)),
)


class DayEnvironment:
    """A day played in `seconds` of time; see `Environment`.

    The number of requests follows a random walk between the bounds of the phase. Load and luck depend on the
    seed, the time and the index of the step alone, so every policy meets the same day.
    """

    def __init__(
        self,
        seconds: float = 30.0,
        seed: int = 0,
        costs: CostTable | None = None,
        modes: Sequence[Mode] = DAY_MODES,
        start: Mode | None = None,
        phases: Sequence[Phase] = DAY,
    ) -> None:
        self.name = "day"
        self.modes = tuple(modes)
        self.start = start or (speculate(3) if speculate(3) in self.modes else self.modes[-1])
        self.switch_ms = MEASURED_SWITCH_MS
        self._costs = costs or CostTable.measured()
        self.graph_batch_sizes = self._costs.graph_batch_sizes
        self._length_ms = seconds * 1e3
        self._acceptance = Acceptance(seed)
        self._phases = [_phase_at(phases, (tick + 0.5) / TICKS_A_DAY) for tick in range(TICKS_A_DAY)]
        self._requests = _random_walk(self._phases, np.random.default_rng(seed))
        self._conditional = {phase.name: conditional_acceptance(phase.traffic) for phase in phases}

    def load(self, step_index: int, now_ms: float) -> StepLoad | None:
        """The requests that run at this time; None after the day."""
        if now_ms >= self._length_ms:
            return None
        tick = int(now_ms / self._length_ms * TICKS_A_DAY)
        phase, requests = self._phases[tick], self._requests[tick]
        run_hist = self._acceptance.run_hist(self._conditional[phase.name], requests, step_index)
        return load_of(run_hist, phase.context_tokens, phase=phase.name)

    def step_ms(self, mode: Mode, load: StepLoad) -> float:
        """The measured step time."""
        return self._costs.step_ms(mode, load.batch_size, load.context_tokens or 0)


def conditional_acceptance(traffic: Sequence[Traffic]) -> tuple[float, ...]:
    """Probability that draft d is accepted if those before it were, over a mixed batch; shape `(MAX_DEPTH,)`.

    It grows with depth in a mixture: those who get far are the easy ones.
    """
    reach = [sum(kind.share * kind.acceptance**depth for kind in traffic) for depth in range(MAX_DEPTH + 1)]
    return tuple(reach[depth + 1] / reach[depth] for depth in range(MAX_DEPTH))


def _phase_at(phases: Sequence[Phase], share_of_day: float) -> Phase:
    total = sum(phase.share_of_day for phase in phases)
    ends = accumulate(phase.share_of_day / total for phase in phases)
    return next((phase for phase, end in zip(phases, ends, strict=True) if share_of_day < end), phases[-1])


def _random_walk(phases: Sequence[Phase], rng: np.random.Generator) -> list[int]:
    """Requests at each tick: a walk in steps of up to an eighth of the phase's range, turned back at its bounds."""
    requests: list[int] = []
    here = float(phases[0].fewest)
    for phase in phases:
        width = phase.most - phase.fewest
        if not phase.fewest <= here <= phase.most:
            here = phase.fewest + width * rng.random()
        here = min(max(here + width * rng.uniform(-1, 1) / 8, phase.fewest), phase.most)
        requests.append(round(here))
    return requests
