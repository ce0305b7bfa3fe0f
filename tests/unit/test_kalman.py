"""The filter against the closed form: all observations at once."""

from __future__ import annotations

import base64
import json
import math

import numpy as np
import pytest

from trimtab.policies.kalman import KalmanFilter


def test_one_by_one_is_the_same_as_all_at_once() -> None:
    rng = np.random.default_rng(3)
    root = rng.normal(size=(4, 4))
    prior = root @ root.T + np.eye(4)
    filter_ = KalmanFilter(prior, 8)
    entries = [filter_.add(0.5), filter_.add(0.5)]
    full = np.zeros((6, 6))
    full[:4, :4], full[4, 4], full[5, 5] = prior, 0.5, 0.5
    seen, values, noise = [], rng.normal(size=12), rng.uniform(0.1, 1.0, size=12)
    for i in range(12):
        weights = rng.normal(size=4)
        seen.append(np.concatenate([weights, np.eye(2)[i % 2]]))
        filter_.observe(weights, entries[i % 2], values[i], noise[i])
    design = np.array(seen)
    covariance = np.linalg.inv(np.linalg.inv(full) + design.T @ (design / noise[:, None]))
    assert filter_.covariance == pytest.approx(covariance)
    assert filter_.mean == pytest.approx(covariance @ design.T @ (values / noise))


def test_an_entry_may_begin_as_another_and_what_a_dropped_one_taught_stays() -> None:
    filter_ = KalmanFilter(np.eye(1), 4)
    first = filter_.add(1.0)
    filter_.observe(np.ones(1), first, 2.0, 0.01)
    second = filter_.add(0.25, like=first)
    assert filter_.mean[second] == filter_.mean[first]
    assert filter_.covariance[second, second] == pytest.approx(filter_.covariance[first, first] + 0.25)
    assert filter_.covariance[second, first] == pytest.approx(filter_.covariance[first, first])
    shared, moved = filter_.mean[0], filter_.mean[second]
    variance = filter_.covariance[second, second]
    filter_.drop(first)
    assert filter_.size == 2
    assert filter_.mean.tolist() == [shared, moved]
    assert filter_.covariance[1, 1] == variance
    assert (filter_.covariance == filter_.covariance.T).all()


def test_time_fades_and_widens() -> None:
    filter_ = KalmanFilter(np.eye(1), 3)
    at = filter_.add(1.0)
    filter_.observe(np.ones(1), at, 2.0, 0.01)
    mean, covariance = filter_.mean.copy(), filter_.covariance.copy()
    filter_.fade(0, 0.5, 0.1)
    assert filter_.mean.tolist() == [mean[0] / 2, mean[1]]
    assert filter_.covariance[0, 0] == pytest.approx(covariance[0, 0] / 4 + 0.1)
    assert filter_.covariance[0, 1] == filter_.covariance[1, 0] == covariance[0, 1] / 2
    filter_.widen(1, 0.2, 0.6)
    assert filter_.covariance[1, 1] == pytest.approx(min(0.6, covariance[1, 1] + 0.2))
    filter_.widen(1, 9.0, 0.6)
    assert filter_.covariance[1, 1] == pytest.approx(0.6)


def test_what_nothing_explains_is_doubted_at_first_and_then_put_down_to_the_entry_itself() -> None:
    filter_ = KalmanFilter(np.eye(1), 2)
    at = filter_.add(0.01)
    for _ in range(20):
        assert not filter_.observe(np.ones(1), at, 0.0, 0.01, 0.5)
    assert filter_.observe(np.ones(1), at, 4.0, 0.01, 0.5)
    assert np.abs(filter_.mean).max() < 0.01
    assert filter_.observe(np.ones(1), at, 4.0, 0.01, 0.5, believed=True)
    shared, own = filter_.mean
    assert own > 3.5 > 0.1 > abs(shared)


def test_a_snapshot_is_the_same_to_the_bit_once_it_is_rounded() -> None:
    rng = np.random.default_rng(5)
    filter_, again = (KalmanFilter(np.eye(3), 6) for _ in range(2))
    at = [filter_.add(0.5) for _ in range(3)]
    for i in range(9):
        filter_.observe(rng.normal(size=3), at[i % 3], float(rng.normal()), 0.1)
    filter_.round()
    again.set_state(json.loads(json.dumps(filter_.state())))
    assert again.size == filter_.size
    assert (again.mean == filter_.mean).all()
    assert (again.covariance == filter_.covariance).all()
    assert again.state() == filter_.state()


@pytest.mark.parametrize(
    ("mean", "values"),
    [([0.0, 0.0], [1.0] * 6), ([0.0] * 9, [1.0] * 45), ([0.0, 0.0], [1.0, math.nan, 1.0]), ([0.0], [])],
)
def test_a_state_that_does_not_fit_is_refused(mean: list[float], values: list[float]) -> None:
    filter_ = KalmanFilter(np.eye(1), 4)
    covariance = base64.b64encode(np.array(values, "<f4").tobytes()).decode()
    with pytest.raises(ValueError, match="does not belong"):
        filter_.set_state({"mean": mean, "covariance": covariance})
    with pytest.raises(ValueError, match="base64"):
        filter_.set_state({"mean": [0.0], "covariance": "?"})
    assert filter_.size == 1
