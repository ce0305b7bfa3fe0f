"""How sure is a figure of a replay? 95% intervals from the sampling noise of the trace and from what is modelled.

With W the tokens and T the time of a course, the rate is `r = W / T`, and its interval is `r exp(+-h)` with

    h^2 = h_blocks^2 + 1.96^2 (sum over sources s of (dT/ds sd_s / T)^2 + var_luck / T^2)

* `h_blocks`: bootstrap of `log(mean W_b / mean T_b)` over blocks b of time (`statistics/bootstrap.py`). A block is as
  many parts of the trace as hang together (Politis and White, "Automatic block-length selection for the dependent
  bootstrap", 2004): load that changes slowly makes blocks long.
* Sources: what was fitted and not seen, one standard deviation each (delta method), independent of each other: times of
  the profile by batch size and mode; acceptance by position, as counted (independent between stretches of the trace)
  and as taken from the position before (alike all over); how acceptance runs along the positions where only sums are
  known; the price of a switch.
* Luck: requests that go on beyond what was run get this far or that.

A comparison of two courses resamples the same blocks for both and takes the difference of their sources, so what they
have in common cancels out.

Limits. The interval speaks of load like the one in the trace, not of other load. With fewer than about 20 stretches of
load that do not hang together it says little. That a mode changes the load itself (requests that end sooner come back
sooner) is not in it, nor what a policy would have done at another price of a switch or another acceptance. Where the
time of a mode was never measured, its uncertainty is what `trace_model/unmeasured_costs.py` believes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trimtab.replay.arrays import Floats
from trimtab.replay.counterfactual.ledger import Doubts
from trimtab.replay.statistics.bootstrap import BlockBootstrap
from trimtab.replay.statistics.interval import Interval, block_length

NORMAL_95 = 1.96
# Blocks that there are at least, if the trace has so many parts; and how many times wider than that of normal blocks
# an interval of a few may be.
FEWEST_BLOCKS = 12
WIDEST = 2.0


@dataclass(frozen=True, slots=True)
class CourseTime:
    """What intervals need of a course.

    Attributes:
        ms: Time by bin; shape `(n_bins,)`.
        sources: How all of it moves with what is modelled, in ms; see `Doubts.vector`.
        luck_var: See `Doubts`.
    """

    ms: Floats
    sources: Floats
    luck_var: float

    @classmethod
    def of(cls, ms: Floats, doubts: Doubts) -> CourseTime:
        """Of a course with these doubts."""
        return cls(ms, doubts.vector(), doubts.luck_var)

    @property
    def total_ms(self) -> float:
        """All of the time."""
        return float(self.ms.sum())


class CourseIntervals:
    """Intervals of all courses of one trace, from the same blocks.

    Args:
        tokens: By bin; shape `(n_bins,)`.
        ms: Time of the recorded run by bin.
        seed: Of the draws.

    Attributes:
        block: Bins that stay together.
    """

    def __init__(self, tokens: Floats, ms: Floats, seed: int = 0) -> None:
        n = len(tokens)
        excess = tokens - tokens.sum() / max(1e-9, ms.sum()) * ms
        self.block = min(block_length(excess), max(1, n // FEWEST_BLOCKS))
        blocks = max(1, n // self.block)
        self._starts = np.arange(blocks) * n // blocks
        self._tokens = tokens
        self._bootstrap = BlockBootstrap(blocks, seed) if blocks > 1 else None

    def rate(self, course: CourseTime) -> Interval:
        """Tokens a second of a course."""
        var = (np.sum(course.sources**2) + course.luck_var) / course.total_ms**2
        value = float(self._tokens.sum()) / course.total_ms * 1e3
        return self._interval(value, self._tokens, course.ms, float(var))

    def gain(self, course: CourseTime, reference: CourseTime) -> Interval:
        """Tokens a second of a course over those of a reference."""
        if course is reference or np.array_equal(course.ms, reference.ms):
            return Interval(1.0, 1.0, 1.0)
        apart = course.sources / course.total_ms - reference.sources / reference.total_ms
        luck = course.luck_var / course.total_ms**2 + reference.luck_var / reference.total_ms**2
        value = reference.total_ms / course.total_ms
        return self._interval(value, reference.ms, course.ms, float(np.sum(apart**2)) + luck)

    def _interval(self, value: float, top: Floats, bottom: Floats, model_var: float) -> Interval:
        if self._bootstrap is None or value <= 0:
            return Interval(value, 0.0, math.inf)
        with np.errstate(over="ignore"):
            found = self._bootstrap.ratio(*(np.add.reduceat(values, self._starts) for values in (top, bottom)))
        blocks = math.log(found.high / found.value) if math.isfinite(found.high) else math.inf
        half = math.hypot(min(blocks, self._widest(top, bottom)), NORMAL_95 * math.sqrt(model_var))
        return Interval(value, value * math.exp(-half), value * math.exp(half))

    def _widest(self, top: Floats, bottom: Floats) -> float:
        a, b = (np.add.reduceat(values, self._starts) for values in (top, bottom))
        apart = a / a.mean() - b / b.mean()
        free = len(a) - 1
        # Student's 97.5% quantile to the second order (Abramowitz and Stegun, 26.7.5).
        student = NORMAL_95 + 2.37 / free + 2.82 / free**2
        return WIDEST * student * float(np.sqrt(np.mean(apart**2) / free))
