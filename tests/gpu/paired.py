"""Ratios of measurements, and how sure they are."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Quantiles of Student's t for a two-sided 95% interval, by degrees of freedom; the next smaller listed one counts.
T_95 = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 11: 2.201,
    13: 2.16, 15: 2.131, 19: 2.093, 24: 2.064, 29: 2.045, 39: 2.023, 59: 2.001, 119: 1.98,
}  # fmt: skip
RESAMPLES = 1000


@dataclass(frozen=True)
class Estimate:
    """A value and its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f}-{self.high:.3f})"


def geometric(ratios: Sequence[float]) -> Estimate:
    """Geometric mean of paired ratios, by Student's t on their logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Estimate(math.exp(mean), 0.0, math.inf)
    degrees = max(known for known in T_95 if known < len(logs))
    half = T_95[degrees] * statistics.stdev(logs) / math.sqrt(len(logs))
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def of_groups(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Ratio of the geometric means of two independent groups of the same spread, by Student's t on logarithms."""
    groups = [[math.log(value) for value in group] for group in (ours, theirs)]
    difference = statistics.fmean(groups[0]) - statistics.fmean(groups[1])
    degrees = sum(map(len, groups)) - 2
    if min(map(len, groups)) < 2:
        return Estimate(math.exp(difference), 0.0, math.inf)
    variance = sum(statistics.variance(group) * (len(group) - 1) for group in groups) / degrees
    t = T_95[max(known for known in T_95 if known <= degrees)]
    half = t * math.sqrt(variance * sum(1 / len(group) for group in groups))
    return Estimate(math.exp(difference), math.exp(difference - half), math.exp(difference + half))


def resampled(sizes: Sequence[int], figure: Callable[[Sequence[Sequence[int]]], float], seed: int = 0) -> Estimate:
    """A figure of several groups of blocks, and its interval by bootstrap: blocks are drawn anew within each group.

    Args:
        sizes: Blocks in each group.
        figure: Takes for each group the numbers of the blocks that are drawn.
        seed: Of the draws.
    """
    drawn = random.Random(seed)
    whole = figure([range(size) for size in sizes])
    found = sorted(figure([drawn.choices(range(size), k=size) for size in sizes]) for _ in range(RESAMPLES))
    return Estimate(whole, found[round(0.025 * (RESAMPLES - 1))], found[round(0.975 * (RESAMPLES - 1))])
