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


def typical(ratios: Sequence[float]) -> Estimate:
    """The typical paired ratio (Hodges and Lehmann 1963) and its interval from the signed-rank test, on logarithms.

    A machine that stands still for a moment spoils one pair; that moves this little, and a mean a lot.
    """
    logs = [math.log(ratio) for ratio in ratios]
    n = len(logs)
    walsh = sorted((logs[i] + logs[j]) / 2 for i in range(n) for j in range(i, n))
    value, outside = math.exp(statistics.median(walsh)), _signed_rank_quantile(n)
    if not outside:
        return Estimate(value, 0.0, math.inf)
    return Estimate(value, math.exp(walsh[outside - 1]), math.exp(walsh[-outside]))


def _signed_rank_quantile(n: int) -> int:
    """The smallest rank sum that chance stays at or below with 2.5% or more; 0 if `n` pairs cannot say so much."""
    ways = [1]
    for rank in range(1, n + 1):
        ways = [
            (ways[total] if total < len(ways) else 0) + (ways[total - rank] if 0 <= total - rank < len(ways) else 0)
            for total in range(len(ways) + rank)
        ]
    so_far = 0
    for total, count in enumerate(ways):
        so_far += count
        if so_far >= 0.025 * 2**n:
            return total
    return 0


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
