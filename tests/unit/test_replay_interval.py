"""Intervals of figures of a replay, against series whose noise is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trimtab.replay.arrays import Floats
from trimtab.replay.counterfactual.intervals import CourseIntervals, CourseTime
from trimtab.replay.statistics.interval import block_length

BINS = 400
NOTHING = np.zeros(1)


def course(ms: Floats, sources: Floats = NOTHING, luck_var: float = 0.0) -> CourseTime:
    return CourseTime(ms, sources, luck_var)


def noisy(seed: int, sd: float = 0.3) -> tuple[Floats, Floats]:
    """Tokens and times by bin whose rate scatters independently."""
    rng = np.random.default_rng(seed)
    return np.full(BINS, 1_000.0), 100.0 * np.exp(sd * rng.standard_normal(BINS))


def half_width(low: float, high: float) -> float:
    return math.log(high / low) / 2


def test_independent_parts_give_the_interval_of_a_mean() -> None:
    tokens, ms = noisy(0)
    found = CourseIntervals(tokens, ms).rate(course(ms))
    assert found.value == pytest.approx(tokens.sum() / ms.sum() * 1e3)
    expected = 1.96 * ms.std() / ms.mean() / math.sqrt(BINS)
    assert half_width(found.low, found.high) == pytest.approx(expected, rel=0.2)


def test_parts_that_hang_together_count_for_less() -> None:
    tokens, ms = noisy(1)
    # Twenty parts of the same load in a row.
    ms = np.repeat(ms[: BINS // 20], 20)
    intervals = CourseIntervals(tokens, ms)
    assert intervals.block > 10
    found = intervals.rate(course(ms))
    expected = 1.96 * ms.std() / ms.mean() / math.sqrt(BINS / 20)
    assert half_width(found.low, found.high) > 0.8 * expected


def test_what_two_courses_have_in_common_cancels_out() -> None:
    tokens, ms = noisy(2, sd=1.0)
    intervals = CourseIntervals(tokens, ms)
    faster = intervals.gain(course(0.8 * ms), course(ms))
    assert (faster.value, faster.low, faster.high) == pytest.approx((1.25, 1.25, 1.25))
    alone = intervals.rate(course(ms))
    assert half_width(alone.low, alone.high) > 0.1


def test_what_is_modelled_widens_an_interval_by_its_own_standard_deviation() -> None:
    tokens, ms = np.full(BINS, 10.0), np.full(BINS, 100.0)
    intervals = CourseIntervals(tokens, ms)
    total = ms.sum()
    found = intervals.rate(course(ms, sources=np.array([0.03, 0.04]) * total))
    assert half_width(found.low, found.high) == pytest.approx(1.96 * 0.05)
    lucky = intervals.rate(course(ms, luck_var=(0.02 * total) ** 2))
    assert half_width(lucky.low, lucky.high) == pytest.approx(1.96 * 0.02)


def test_a_doubt_that_two_courses_share_is_no_doubt_about_their_difference() -> None:
    tokens, ms = np.full(BINS, 10.0), np.full(BINS, 100.0)
    intervals = CourseIntervals(tokens, ms)
    shared = np.array([0.1, 0.0]) * ms.sum()
    other = np.array([0.0, 0.03]) * ms.sum()
    same = intervals.gain(course(0.5 * ms, 0.5 * shared), course(ms, shared))
    assert half_width(same.low, same.high) == pytest.approx(0.0, abs=1e-9)
    apart = intervals.gain(course(0.5 * ms, 0.5 * (shared + other)), course(ms, shared))
    assert half_width(apart.low, apart.high) == pytest.approx(1.96 * 0.03)


def test_a_course_is_exactly_as_good_as_itself() -> None:
    tokens, ms = noisy(3)
    found = CourseIntervals(tokens, ms).gain(course(ms, np.array([5.0])), course(ms.copy(), np.array([5.0])))
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_one_part_tells_no_noise_and_the_interval_says_so() -> None:
    found = CourseIntervals(np.array([10.0]), np.array([100.0])).rate(course(np.array([100.0])))
    assert (found.value, found.low, found.high) == (100.0, 0.0, math.inf)


def test_the_same_seed_gives_the_same_interval() -> None:
    tokens, ms = noisy(4)
    once, again, other = (CourseIntervals(tokens, ms, seed).rate(course(ms)) for seed in (1, 1, 2))
    assert once == again
    assert once != other


@pytest.mark.parametrize(("memory", "shortest", "longest"), [(0.0, 1, 3), (0.5, 3, 12), (0.9, 10, 45)])
def test_the_longer_the_memory_of_a_series_the_longer_its_blocks(memory: float, shortest: int, longest: int) -> None:
    rng, lengths = np.random.default_rng(0), []
    for _ in range(20):
        series, value = [], 0.0
        for shock in rng.standard_normal(BINS):
            value = memory * value + shock
            series.append(value)
        lengths.append(block_length(series))
    assert shortest <= np.median(lengths) <= longest


def test_a_series_without_noise_has_blocks_of_one() -> None:
    assert block_length([5.0] * 50) == 1
    assert block_length([1.0, 2.0]) == 1
