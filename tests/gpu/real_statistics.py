"""What the measurements with the real model say: divergences, distributions, ratios with their intervals."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Below that a cell of a chi-square test says too little; such cells are thrown together.
LEAST_EXPECTED = 5.0
Z_95 = 1.96
# Quantiles of Student's t for a two-sided 95% interval, by degrees of freedom; from 30 on nearly the normal's.
T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip


@dataclass(frozen=True)
class Divergence:
    """The first token of an output that is not the reference's.

    Attributes:
        request: Which output.
        at: Which token of it.
        gap: Between the reference's two likeliest tokens there, in nats.
    """

    request: int
    at: int
    gap: float


def divergences(
    reference: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], gaps: Sequence[Sequence[float]]
) -> tuple[list[Divergence], int]:
    """First differences, and the tokens up to them: what comes after one is another text and is not compared."""
    found, compared = list[Divergence](), 0
    for request, (right, other) in enumerate(zip(reference, outputs, strict=True)):
        at = next((i for i, (a, b) in enumerate(zip(right, other, strict=True)) if a != b), None)
        compared += len(right) if at is None else at + 1
        if at is not None:
            found.append(Divergence(request, at, gaps[request][at]))
    return found, compared


def divergence_rate(found: Sequence[Divergence], compared: int) -> dict[str, Any]:
    """Divergences in 1,000 tokens with a 95% interval (Poisson), and how small the gap was where they are."""
    low, high = poisson_interval(len(found))
    gaps = sorted(divergence.gap for divergence in found)
    per = 1000 / max(1, compared)
    return {
        "divergences": len(found),
        "places": len({(divergence.request, divergence.at) for divergence in found}),
        "tokens_compared": compared,
        "in_1000_tokens": round(len(found) * per, 4),
        "interval_95": [round(low * per, 4), round(high * per, 4)],
        "largest_gap": gaps[-1] if gaps else None,
        "median_gap": statistics.median(gaps) if gaps else None,
    }


def more_often(one: int, of_one: int, other: int, of_other: int) -> float:
    """Probability of so many events or more among `of_one`, if they were as likely as among `of_other`.

    Given their sum, the events of one side are binomial.
    """
    total, share = one + other, of_one / (of_one + of_other)
    logs = [
        math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1)
        + k * math.log(share) + (total - k) * math.log1p(-share)
        for k in range(one, total + 1)
    ]  # fmt: skip
    return min(1.0, sum(map(math.exp, logs)))


def poisson_interval(count: int) -> tuple[float, float]:
    """95% interval of a Poisson mean, from the quantiles of chi-square in Wilson and Hilferty's approximation."""

    def bound(freedom: int, z: float) -> float:
        return freedom / 2 * (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3

    return (bound(2 * count, -Z_95) if count else 0.0), bound(2 * count + 2, Z_95)


def same_distribution(one: Mapping[Any, int], other: Mapping[Any, int]) -> dict[str, float]:
    """Chi-square test that two samples of tokens come from one distribution; rare tokens count as one.

    Args:
        one: How often each token was seen.
        other: The same of the other sample.
    """
    n_one, n_other = sum(one.values()), sum(other.values())
    smaller = min(n_one, n_other) / (n_one + n_other)
    both, rare = list[tuple[int, int]](), [0, 0]
    for token in sorted({*one, *other}, key=str):
        seen = one.get(token, 0), other.get(token, 0)
        if sum(seen) * smaller < LEAST_EXPECTED:
            rare = [rare[0] + seen[0], rare[1] + seen[1]]
        else:
            both.append(seen)
    if sum(rare) * smaller >= LEAST_EXPECTED:
        both.append((rare[0], rare[1]))
    statistic = sum(
        (seen - share * sum(pair)) ** 2 / (share * sum(pair))
        for pair in both
        for seen, share in zip(pair, (n_one / (n_one + n_other), n_other / (n_one + n_other)), strict=True)
    )
    freedom = max(0, len(both) - 1)
    return {"chi_square": round(statistic, 3), "freedom": freedom, "p": chi_square_above(statistic, freedom)}


def chi_square_above(statistic: float, freedom: int) -> float:
    """Probability that chi-square is above a value: the upper incomplete gamma function, as series or fraction."""
    if freedom <= 0 or statistic <= 0:
        return 1.0
    a, x = freedom / 2, statistic / 2
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while term > total * 1e-15:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1 - scale * total)
    # Lentz's method.
    b = x + 1 - a
    c, d = 1e300, 1 / b
    fraction = d
    for i in range(1, 10_000):
        step = -i * (i - a)
        b += 2
        d = 1 / (step * d + b)
        c = b + step / c
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return scale * fraction


def together(tests: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """Several tests of one thing, by Bonferroni: the smallest p counts as often as there are tests."""
    ps = [test["p"] for test in tests]
    return {
        "tests": len(ps),
        "smallest_p": min(ps, default=1.0),
        "p": min(1.0, min(ps, default=1.0) * len(ps)),
        "below_0.05": sum(p < 0.05 for p in ps),
    }


def per_round(accepted: Sequence[Sequence[int]]) -> list[float]:
    """Tokens a round of each request: its accepted drafts and the target's own token."""
    return [1 + statistics.fmean(rounds) for rounds in accepted if rounds]


def paired_ratio(one: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """Ratio of two means over the same requests, with its 95% interval from the paired differences."""
    differences = [a - b for a, b in zip(one, other, strict=True)]
    base = statistics.fmean(other)
    half = Z_95 * statistics.stdev(differences) / math.sqrt(len(differences)) / base if len(differences) > 1 else None
    ratio = statistics.fmean(one) / base
    return {
        "pairs": len(differences),
        "means": [round(statistics.fmean(one), 4), round(base, 4)],
        "ratio": round(ratio, 4),
        "interval_95": None if half is None else [round(ratio - half, 4), round(ratio + half, 4)],
    }


def mean_interval(values: Sequence[float]) -> dict[str, Any]:
    """Mean and its 95% interval by Student's t."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": mean, "interval_95": None, "of": len(values)}
    half = _t_95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "interval_95": [mean - half, mean + half], "of": len(values)}


def geometric_ratio(one: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """Geometric mean of paired ratios and its 95% interval by Student's t on their logarithms."""
    logs = mean_interval([math.log(a / b) for a, b in zip(one, other, strict=True)])
    ends = logs["interval_95"]
    return {
        "ratio": round(math.exp(logs["mean"]), 4),
        "interval_95": ends and [round(math.exp(end), 4) for end in ends],
        "of": logs["of"],
    }


def counted(place: Mapping[str, int]) -> Counter[str]:
    """Counts as JSON keeps them: tokens are texts there."""
    return Counter({str(token): count for token, count in place.items()})


def _t_95(freedom: int) -> float:
    return T_95[freedom - 1] if freedom <= len(T_95) else Z_95 + 2.5 / freedom
