"""Thompson sampling with discounted normal posteriors (Thompson 1933; Raj and Kalyani, arXiv 1707.09727).

The mean reward of a mode is believed to be normal around what it earned, with the variance of a play over the
number of plays; a mode that was never played is believed to be like the best one, and to be far off. A mode runs
with the probability that it is the best, from the same stratified draws every time.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from trimtab.policies.arms import Arm
from trimtab.policies.contract import PolicyContext
from trimtab.policies.lots import LotsPolicy

DRAWS = 256
# Spread of a mode that was never played, the most there is, and the least of one that was: shares of the best mean.
UNKNOWN_SHARE = 0.5
LEAST_SHARE = 0.01


class ThompsonParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast to forget.

    Attributes:
        half_life_s: Step time in a band after which what was seen there counts half.
        dwell_steps: Steps between two draws.
    """

    half_life_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 5.0
    dwell_steps: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 32


class ThompsonPolicy(LotsPolicy):
    """Each mode with the probability that it earns most."""

    name: ClassVar[str] = "thompson"
    summary: ClassVar[str] = "each mode with the probability that it earns most"
    Parameters = ThompsonParameters

    def __init__(self, context: PolicyContext, parameters: ThompsonParameters | None = None) -> None:
        p = parameters or ThompsonParameters()
        super().__init__(context, p.half_life_s, p.dwell_steps)
        self._draws = _stratified_normals(len(self._modes), context.seed)

    def chances(self, band: int) -> list[float]:
        """Share of draws in which each mode is the best."""
        source = self._arms.nearest_known(band)
        arms, best = self._arms.bands[source], self._arms.best_tps(source)
        if best <= 0:
            return [1.0 if m == self._first else 0.0 for m in range(len(arms))]
        mean = np.array([arm.goodput_tps or best for arm in arms])
        sd = np.array([_sd_of_mean(arm, best) for arm in arms])
        winners = (mean + sd * self._draws).argmax(axis=1)
        shares: list[float] = (np.bincount(winners, minlength=len(arms)) / DRAWS).tolist()
        return shares


def _sd_of_mean(arm: Arm, best_tps: float) -> float:
    """How far the mean may be off: by the scatter of plays, within what is plausible at all."""
    if arm.plays <= 0:
        return UNKNOWN_SHARE * best_tps
    sd = arm.sd_tps / math.sqrt(arm.plays)
    return min(UNKNOWN_SHARE * best_tps, max(LEAST_SHARE * best_tps, sd))


def _stratified_normals(columns: int, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Normal numbers of shape `(DRAWS, columns)`: every column has one from each of `DRAWS` equal strata."""
    strata = np.array([NormalDist().inv_cdf((i + 0.5) / DRAWS) for i in range(DRAWS)])
    generator = np.random.Generator(np.random.Philox(key=abs(seed)))
    return np.column_stack([generator.permutation(strata) for _ in range(columns)])
