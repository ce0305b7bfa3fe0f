"""What the checks with the real model work out of what they measured."""

from __future__ import annotations

import random

import pytest

import real_statistics as stats


def test_a_divergence_is_the_first_difference_and_what_follows_is_not_compared() -> None:
    found, compared = stats.divergences([[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 9, 9], [5, 6, 7, 8]], [[0.5] * 4] * 2)
    assert found == [stats.Divergence(0, 2, 0.5)]
    assert compared == 3 + 4


def test_the_rate_is_in_1000_tokens_with_the_interval_of_its_count() -> None:
    rate = stats.divergence_rate([stats.Divergence(0, 1, gap) for gap in (0.01, 0.3, 0.02)], 2000)
    assert (rate["divergences"], rate["places"]) == (3, 1)
    assert rate["in_1000_tokens"] == 1.5
    assert rate["interval_95"] == pytest.approx([0.31, 4.38], abs=0.02)
    assert (rate["largest_gap"], rate["median_gap"]) == (0.3, 0.02)


def test_as_many_in_as_much_is_no_more() -> None:
    assert stats.more_often(0, 1000, 5, 1000) == 1.0
    assert stats.more_often(5, 1000, 5, 1000) == pytest.approx(0.623, abs=1e-3)


def test_all_of_8_in_half_of_it_is_more() -> None:
    assert stats.more_often(8, 1000, 0, 1000) == pytest.approx(0.5**8)


@pytest.mark.parametrize(("count", "low", "high"), [(0, 0.0, 3.69), (10, 4.80, 18.39), (100, 81.4, 121.6)])
def test_poisson_intervals_are_those_of_the_tables(count: int, low: float, high: float) -> None:
    assert stats.poisson_interval(count) == pytest.approx((low, high), rel=0.01, abs=0.02)


@pytest.mark.parametrize(
    ("statistic", "freedom", "p"),
    [(3.841, 1, 0.05), (18.307, 10, 0.05), (23.209, 10, 0.01), (124.342, 100, 0.05), (2.558, 10, 0.99), (0.0, 5, 1.0)],
)
def test_chi_square_is_that_of_the_tables(statistic: float, freedom: int, p: float) -> None:
    assert stats.chi_square_above(statistic, freedom) == pytest.approx(p, rel=2e-3)


def test_samples_of_one_distribution_pass_and_others_do_not() -> None:
    source = random.Random(1)
    samples = [
        stats.counted({str(token): count for token, count in enumerate(drawn(source, tilt))}) for tilt in (0, 0, 0.05)
    ]
    assert stats.same_distribution(samples[0], samples[1])["p"] > 0.01
    assert stats.same_distribution(samples[0], samples[2])["p"] < 1e-4


def drawn(source: random.Random, tilt: float) -> list[int]:
    """How often each of 40 tokens came in 20,000 draws; the first is likelier by `tilt`."""
    weights = [1 / (i + 1) for i in range(40)]
    weights[0] += tilt * sum(weights) * 2
    counts = [0] * 40
    for token in source.choices(range(40), weights, k=20_000):
        counts[token] += 1
    return counts


def test_in_half_of_the_tests_p_is_below_a_half() -> None:
    source = random.Random(2)
    ps = [
        stats.same_distribution(dict(enumerate(drawn(source, 0))), dict(enumerate(drawn(source, 0))))["p"]
        for _ in range(60)
    ]
    assert 0.3 < sum(p < 0.5 for p in ps) / len(ps) < 0.7


def test_tokens_seen_in_one_sample_alone_count() -> None:
    assert stats.same_distribution({"1": 500, "2": 500}, {"1": 500, "3": 500})["p"] < 1e-9


def test_a_single_token_says_nothing() -> None:
    assert stats.same_distribution({"1": 100}, {"1": 90}) == {"chi_square": 0.0, "freedom": 0, "p": 1.0}


def test_several_tests_are_one_by_bonferroni() -> None:
    assert stats.together([{"p": 0.01}, {"p": 0.5}])["p"] == 0.02


def test_a_round_gives_its_accepted_drafts_and_one_more() -> None:
    assert stats.per_round([[0, 2], [3], []]) == [2.0, 4.0]


def test_equal_pairs_have_a_ratio_of_one_without_doubt() -> None:
    told = stats.paired_ratio([2.0, 3.0], [2.0, 3.0])
    assert (told["ratio"], told["interval_95"]) == (1.0, [1.0, 1.0])


def test_the_interval_of_a_paired_ratio_is_that_of_the_differences() -> None:
    """Differences 0 and 0.2: mean 0.1, deviation 0.1414, half width 1.96 * 0.1; over a mean of 2."""
    told = stats.paired_ratio([2.0, 2.2], [2.0, 2.0])
    assert told["ratio"] == 1.05
    assert told["interval_95"] == pytest.approx([1.05 - 0.098, 1.05 + 0.098], abs=1e-3)


def test_geometric_ratios_use_students_t() -> None:
    """Logs 0.00 and 0.02: mean 0.01, half width 12.706 * 0.01."""
    told = stats.geometric_ratio([1.0, 1.0202013], [1.0, 1.0])
    assert told["ratio"] == 1.0101
    assert told["interval_95"] == pytest.approx([0.8895, 1.1469], abs=2e-4)
