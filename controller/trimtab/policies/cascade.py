"""How many drafts will be accepted? Acceptance as a cascade, shared by all modes.

A step with k drafts shows for every position up to the first rejection whether its draft was accepted, so one
conditional probability a position, `p[i]` = P(draft i accepted | all before it accepted), serves every mode:
`E[accepted | k] = p[0] + p[0] p[1] + ... + p[0] ... p[k-1]`. Counts by depth are censor-correct as they come:
a request that accepted everything was never offered the next position.

Each `p[i]` is followed by a scalar Kalman filter on a random walk (Kalman 1960): discounted counts whose memory
fits the sample size, about `sqrt(p (1 - p) / q^2)` requests for one request a step and the root of the batch
times that for more, where q is the drift a step. Positions never or no longer seen lean on the one before them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# Drift of an acceptance probability in one decode step: 0.07 in 500 steps.
DRIFT_A_STEP = 0.003
# Beyond this a probability is unknown.
UNKNOWN_SD = 0.3
FIRST_GUESS = 0.7
# By how much neighbouring positions of one drafter differ.
NEIGHBOUR_SD = 0.1
# A surprise of this many standard deviations means the position has moved, not drifted.
SURPRISE = 4.5
UNKNOWN_VAR = UNKNOWN_SD**2
SMALLEST_SPREAD = 0.02

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """Accepted drafts by number of steps, and how sure that is.

    Attributes:
        accepted: Expected accepted drafts a request; shape `(n_steps + 1,)`, first 0.
        loadings: Standard deviations of `log(1 + accepted)` by independent source; shape
            `(n_steps + 1, n_sources)`. The covariance is `loadings @ loadings.T`.
        by_position: Conditional acceptance of each position; shape `(n_steps,)`.
    """

    accepted: Floats
    loadings: Floats
    by_position: Floats


class Cascade:
    """Conditional acceptance of every position. Owned by one policy.

    Args:
        depth: Positions to follow.
    """

    def __init__(self, depth: int) -> None:
        self._mean = [FIRST_GUESS] * depth
        self._var = [math.inf] * depth

    @property
    def depth(self) -> int:
        """Positions followed."""
        return len(self._mean)

    @property
    def seen(self) -> bool:
        """Whether any draft was ever offered since the last restart."""
        return any(map(math.isfinite, self._var))

    def advance(self, steps: int) -> None:
        """Let this many decode steps pass: what was known gets less sure."""
        grown = DRIFT_A_STEP**2 * steps
        self._var = [v if v >= UNKNOWN_VAR else min(UNKNOWN_VAR, v + grown) for v in self._var]

    def add(self, offered: Sequence[float], accepted: Sequence[float]) -> None:
        """Take in counts by position."""
        for i in range(min(len(offered), len(self._mean))):
            if offered[i] > 0:
                self._update(i, accepted[i] / offered[i], offered[i])

    def restart(self, offered: Sequence[float], accepted: Sequence[float]) -> None:
        """Everything changed: learn from these counts alone."""
        self._var = [math.inf] * self.depth
        self.add(offered, accepted)

    def curve(self) -> Curve:
        """Expected accepted drafts for every number of steps."""
        p, scale = self._blend()
        totals, reach, total = [0.0], 1.0, 0.0
        for rate in p:
            reach *= rate
            total += reach
            totals.append(total)
        accepted = np.array(totals)
        # d accepted[k] / d p[i] = (accepted[k] - accepted[i]) / p[i] for i < k.
        slopes = np.maximum(accepted[:, None] - accepted[:-1], 0.0)
        return Curve(accepted, slopes * scale / (1 + accepted)[:, None], np.array(p))

    def _update(self, i: int, rate: float, requests: float) -> None:
        mean, var = self._mean[i], self._var[i]
        noise = _spread(mean if math.isfinite(var) else rate) / requests
        if math.isinf(var):
            self._mean[i], self._var[i] = rate, _spread(rate) / requests
            return
        surprise = (rate - mean) ** 2
        if surprise > SURPRISE**2 * (var + noise):
            var = min(UNKNOWN_VAR, max(var, surprise))
        gain = var / (var + noise)
        self._mean[i] = mean + gain * (rate - mean)
        self._var[i] = var * (1 - gain)

    def _blend(self) -> tuple[list[float], list[float]]:
        """Means after every position has leant on the one before it, and their standard deviations over the mean."""
        p: list[float] = []
        scale: list[float] = []
        before, before_var, leaning_var = FIRST_GUESS, UNKNOWN_VAR, math.inf
        for mean, var in zip(self._mean, self._var, strict=True):
            if var == math.inf:
                mean, var = before, before_var if leaning_var == math.inf else leaning_var
            elif leaning_var < math.inf:
                share = leaning_var / (leaning_var + var)
                mean, var = share * mean + (1 - share) * before, share * var
            before, before_var = min(0.995, max(0.005, mean)), min(var, 2 * UNKNOWN_VAR)
            leaning_var = before_var + NEIGHBOUR_SD**2
            p.append(before)
            scale.append(math.sqrt(before_var) / before)
        return p, scale

    def state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        return {"mean": self._mean.copy(), "var": [v if math.isfinite(v) else None for v in self._var]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of the same depth; `ValueError` otherwise."""
        mean = [float(m) for m in state["mean"]]
        var = [math.inf if v is None else float(v) for v in state["var"]]
        if len(mean) != self.depth or len(var) != self.depth:
            raise ValueError(f"the acceptance is of {len(mean)} positions, not {self.depth}")
        self._mean, self._var = mean, var


def _spread(rate: float) -> float:
    """Variance of one request's outcome, not below what one more sample could show."""
    return max(SMALLEST_SPREAD, rate * (1 - rate))
