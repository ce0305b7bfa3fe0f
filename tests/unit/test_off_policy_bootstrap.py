"""Intervals by block bootstrap: what they are made of, and how often they cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.replay.arrays import Floats
from trimtab.replay.statistics.bootstrap import MOST_UNITS, BlockBootstrap


def skewed(seed: int, blocks: int) -> Floats:
    """Mean 1, standard deviation 1."""
    return np.random.default_rng(seed).exponential(1.0, blocks)


def half_width(low: float, high: float) -> float:
    return math.log(high / low) / 2


def test_the_value_is_the_ratio_of_the_means() -> None:
    found = BlockBootstrap(4).ratio(np.array([1.0, 2.0, 3.0, 6.0]), np.array([2.0, 2.0, 1.0, 1.0]))
    assert found.value == pytest.approx(2.0)


def test_blocks_that_are_all_alike_leave_no_doubt() -> None:
    found = BlockBootstrap(50).ratio(np.full(50, 3.0), np.full(50, 2.0))
    assert (found.low, found.value, found.high) == (1.5, 1.5, 1.5)


def test_what_moves_top_and_bottom_alike_leaves_no_doubt() -> None:
    busy = skewed(1, 200)
    found = BlockBootstrap(200).ratio(3 * busy, busy)
    assert found.low == pytest.approx(3.0)
    assert found.high == pytest.approx(3.0)


def test_the_interval_is_about_two_standard_errors_wide_and_symmetric_on_the_logarithm() -> None:
    values = np.random.default_rng(2).normal(10, 2, 400)
    found = BlockBootstrap(400).ratio(values, np.ones(400))
    assert math.log(found.high / found.value) == pytest.approx(math.log(found.value / found.low))
    assert half_width(found.low, found.high) == pytest.approx(1.96 * 0.2 / math.sqrt(400), rel=0.1)


def test_rare_heavy_blocks_widen_it_beyond_the_normal_interval() -> None:
    values = np.exp(2 * np.random.default_rng(8).normal(size=400))
    found = BlockBootstrap(400).ratio(values, np.ones(400))
    error = values.std() / values.mean() / math.sqrt(400)
    assert half_width(found.low, found.high) > 2.5 * error


def test_a_mean_that_is_not_above_zero_is_told_as_zero() -> None:
    found = BlockBootstrap(100).ratio(np.zeros(100), np.ones(100))
    assert (found.low, found.value, found.high) == (0.0, 0.0, 0.0)


def test_the_same_seed_gives_the_same_interval() -> None:
    values = skewed(3, 300)
    first, again, other = (BlockBootstrap(300, seed).ratio(values, np.ones(300)) for seed in (1, 1, 2))
    assert first == again != other


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_the_interval_does_not_depend_on_units(of_top: float, of_bottom: float) -> None:
    bootstrap, top, bottom = BlockBootstrap(60), skewed(4, 60), 1 + skewed(5, 60)
    plain, scaled = bootstrap.ratio(top, bottom), bootstrap.ratio(top * of_top, bottom * of_bottom)
    for name in ("value", "low", "high"):
        assert getattr(scaled, name) == pytest.approx(getattr(plain, name) * of_top / of_bottom, rel=1e-4)


def test_a_long_log_is_resampled_in_neighbouring_blocks_with_the_same_interval() -> None:
    blocks = 3 * MOST_UNITS + 17
    values = skewed(6, blocks)
    found = BlockBootstrap(blocks).ratio(values, np.ones(blocks))
    assert found.value == pytest.approx(values.mean())
    assert half_width(found.low, found.high) == pytest.approx(1.96 / math.sqrt(blocks), rel=0.1)


def test_it_covers_the_mean_of_skewed_blocks() -> None:
    bootstrap = BlockBootstrap(100)
    found = [bootstrap.ratio(skewed(seed, 100), np.ones(100)) for seed in range(1_000)]
    assert 0.93 <= np.mean([f.low <= 1.0 <= f.high for f in found]) <= 0.97
