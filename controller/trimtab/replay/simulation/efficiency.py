"""How good was it? The time that the best fixed mode of each phase would have needed, over the time taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import msgspec
import numpy as np
import numpy.typing as npt

from trimtab.domain import Mode
from trimtab.replay.simulation.cases import CaseEnvironment
from trimtab.replay.simulation.drivers import Course

# A phase this long has a settled part: what comes after its first steps.
LONG_PHASE_STEPS = 600
SETTLED_FROM_STEP = 300

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


class PhaseVerdict(msgspec.Struct, frozen=True):
    """One phase of a case under one policy.

    Attributes:
        phase: Its label; empty where the case has none.
        steps: Decode steps in it.
        best_k: Drafts a step of its best fixed mode.
        efficiency: As for the whole case.
        settled_efficiency: The same from step 300 of the phase on, against the best fixed mode of those steps; None in
            phases under 600 steps.
        k: Decode steps by drafts a step.
    """

    phase: str
    steps: int
    best_k: int
    efficiency: float
    settled_efficiency: float | None
    k: dict[int, int]


class Verdict(msgspec.Struct, frozen=True):
    """One policy on one case.

    Attributes:
        efficiency: Time in which the best fixed mode of each phase, switches for free, would have produced the same
            tokens, over the time taken, switches included.
        best_fixed_efficiency: The same for the best single fixed mode, `best_fixed_k` drafts a step.
        switches: Steps that ran in another mode than the step before.
        min_dwell_steps: Shortest stay in a mode that ended in a switch; all steps if there was none.
        phases: Phase by phase, in order of appearance.
    """

    case: str
    policy: str
    profile: str
    tokens_per_s: float
    efficiency: float
    best_fixed_efficiency: float
    best_fixed_k: int
    steps: int
    tokens: int
    seconds: float
    switches: int
    switches_per_1000_steps: float
    min_dwell_steps: int
    phases: tuple[PhaseVerdict, ...]


class Judge:
    """Knows what every fixed mode makes of every step of a case, and judges policies by it.

    Attributes:
        phases: Labels in order of appearance.
    """

    def __init__(self, case: CaseEnvironment) -> None:
        self._case = case
        self._ms = case.ms_by_mode()
        self._tokens = case.tokens_by_mode()
        labels = np.array([load.phase for load in case.loads])
        self.phases = tuple(dict.fromkeys(load.phase for load in case.loads))
        self._members = {phase: np.flatnonzero(labels == phase) for phase in self.phases}

    def best_mode(self, phase: str) -> Mode:
        """The fixed mode with the most tokens a second over the phase's steps."""
        return self._case.modes[int(np.argmax(self._rates(self._members[phase])))]

    def best_fixed(self) -> tuple[Mode, float]:
        """The best single mode for the whole case, and its efficiency; no switch is charged to it."""
        ideal_ms = np.zeros(len(self._case.modes))
        for members in self._members.values():
            ideal_ms += self._tokens[members].sum(axis=0) / self._rates(members).max()
        efficiencies = ideal_ms / self._ms.sum(axis=0)
        best = int(np.argmax(efficiencies))
        return self._case.modes[best], float(efficiencies[best])

    def judge(self, course: Course, policy: str, profile: str = "none") -> Verdict:
        """The verdict on what a policy made of the case."""
        step_ms, tokens = np.array(course.step_ms), np.array(course.tokens, dtype=float)
        phases = tuple(self._judge_phase(phase, course, step_ms, tokens) for phase in self.phases)
        ideal_ms = sum(tokens[members].sum() / self._rates(members).max() for members in self._members.values())
        mode, efficiency = self.best_fixed()
        n_steps = len(course.modes)
        return Verdict(
            case=self._case.name,
            policy=policy,
            profile=profile,
            tokens_per_s=course.tokens_per_s,
            efficiency=float(ideal_ms / step_ms.sum()),
            best_fixed_efficiency=efficiency,
            best_fixed_k=mode.steps,
            steps=n_steps,
            tokens=int(tokens.sum()),
            seconds=course.seconds,
            switches=course.switches,
            switches_per_1000_steps=1000 * course.switches / n_steps,
            min_dwell_steps=shortest_dwell(course.modes),
            phases=phases,
        )

    def _judge_phase(self, phase: str, course: Course, step_ms: Floats, tokens: Floats) -> PhaseVerdict:
        members = self._members[phase]
        settled = members[SETTLED_FROM_STEP:] if len(members) >= LONG_PHASE_STEPS else None
        return PhaseVerdict(
            phase=phase,
            steps=len(members),
            best_k=self.best_mode(phase).steps,
            efficiency=self._efficiency(members, step_ms, tokens),
            settled_efficiency=None if settled is None else self._efficiency(settled, step_ms, tokens),
            k=dict(sorted(Counter(course.modes[i].steps for i in members).items())),
        )

    def _efficiency(self, members: Indices, step_ms: Floats, tokens: Floats) -> float:
        """Against the best fixed mode of exactly these steps."""
        return float(tokens[members].sum() / self._rates(members).max() / step_ms[members].sum())

    def _rates(self, members: Indices) -> Floats:
        """Tokens a millisecond of each mode over these steps; shape `(n_modes,)`."""
        rates: Floats = self._tokens[members].sum(axis=0) / self._ms[members].sum(axis=0)
        return rates


def shortest_dwell(modes: Sequence[Mode]) -> int:
    """Steps of the shortest stay in a mode that ended in a switch; all steps if there was none.

    The last stay is cut off by the end and says nothing.
    """
    stays = [len(list(group)) for _, group in groupby(modes)]
    return min(stays[:-1], default=len(modes))
