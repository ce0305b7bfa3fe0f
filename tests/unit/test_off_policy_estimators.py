"""Off-policy estimators against small bandits worked out by hand.

The log draws plain with 3/4 and drafting with 1/4. Of 800 blocks of one step 640 were plain (10 tokens in 5 ms) and
160 drafted (30 tokens in 10 ms), fewer than the 200 that were to be expected. The candidate always drafts.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from support.small_bandits import DRAFTING, MODES, PLAIN, Draw, log_of
from trimtab.replay.off_policy.choices import Choices
from trimtab.replay.off_policy.estimators import ESTIMATORS, Estimate, estimate_choices
from trimtab.replay.statistics.interval import Interval

UNEVEN = (Draw(640, PLAIN, 0.75, 10, 5), Draw(160, DRAFTING, 0.25, 30, 10))
# Drafting pays with one request and not with eight; the candidate drafts in 9 of 10 and in 2 of 10 steps.
TWO_STATES = (
    Draw(200, PLAIN, 0.5, 1, 5, wanted=0.9, batch_size=1),
    Draw(200, DRAFTING, 0.5, 3, 6, wanted=0.9, batch_size=1),
    Draw(300, PLAIN, 0.75, 8, 8, wanted=0.2, batch_size=8),
    Draw(100, DRAFTING, 0.25, 12, 20, wanted=0.2, batch_size=8),
)


def estimates(choices: Choices) -> dict[str, Estimate]:
    return {found.estimator: found for found in estimate_choices(choices, MODES)[1]}


def value(interval: Interval | None) -> float:
    assert interval is not None
    return interval.value


def values(found: Estimate) -> tuple[float, float, float]:
    assert found.refused is None
    return value(found.tokens_per_step), value(found.step_ms), value(found.tokens_per_s)


def test_ips_weighs_every_step_by_how_much_more_often_the_candidate_would_take_it() -> None:
    # 160 steps of weight 4 over 800: 160 * 4 * 30 / 800 and 160 * 4 * 10 / 800.
    assert values(estimates(log_of(UNEVEN))["ips"]) == pytest.approx((24.0, 8.0, 3000.0))


def test_snips_divides_by_the_weight_that_was_drawn() -> None:
    # All weight is on drafting: 30 tokens in 10 ms.
    assert values(estimates(log_of(UNEVEN))["snips"]) == pytest.approx((30.0, 10.0, 3000.0))


def test_dm_says_what_the_model_of_drafting_says() -> None:
    assert values(estimates(log_of(UNEVEN))["dm"]) == pytest.approx((30.0, 10.0, 3000.0), rel=0.02)


def test_dr_adds_to_the_model_what_it_was_wrong_by() -> None:
    found = estimates(log_of(UNEVEN))
    # The weight of drafting is 0.8: dm + 0.8 * (30 - dm).
    expected = 0.2 * value(found["dm"].tokens_per_step) + 0.8 * 30
    assert value(found["dr"].tokens_per_step) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("estimator", ["ips", "snips"])
def test_with_draws_as_often_as_expected_the_states_add_up(estimator: str) -> None:
    # 0.1 * 1 + 0.9 * 3 = 2.8 tokens in 0.1 * 5 + 0.9 * 6 = 5.9 ms with one request; 8.8 in 10.4 ms with eight.
    found = values(estimates(log_of(TWO_STATES))[estimator])
    assert found == pytest.approx((5.8, 8.15, 1e3 * 5.8 / 8.15))


@pytest.mark.parametrize("estimator", ["dm", "dr"])
def test_with_draws_as_often_as_expected_so_do_those_with_a_model(estimator: str) -> None:
    found = values(estimates(log_of(TWO_STATES))[estimator])
    assert found == pytest.approx((5.8, 8.15, 1e3 * 5.8 / 8.15), rel=0.01 if estimator == "dm" else 1e-3)


@pytest.mark.parametrize("estimator", ["ips", "snips"])
def test_a_candidate_that_draws_as_the_log_did_earns_what_the_log_earned(estimator: str) -> None:
    rng = np.random.default_rng(1)
    draws = [
        Draw(1, mode, (0.75, 0.25)[mode], tokens=10 + 20 * mode + rng.normal(), ms=5 + mode, wanted=0.25)
        for mode in (rng.random(400) < 0.25).astype(int).tolist()
    ]
    choices = log_of(draws)
    tokens, ms, _ = values(estimates(choices)[estimator])
    assert (tokens, ms) == pytest.approx((choices.tokens.mean(), choices.ms.mean()))


def test_figures_are_those_of_a_step_however_many_a_block_has() -> None:
    one, many = estimates(log_of(TWO_STATES)), estimates(log_of(TWO_STATES, steps=32))
    for name in ESTIMATORS:
        assert values(many[name]) == pytest.approx(values(one[name]))


def test_the_interval_of_ips_is_that_of_the_number_of_draws() -> None:
    found = estimates(log_of(UNEVEN))["ips"].tokens_per_step
    assert found is not None
    # 120 tokens with probability 1/5, else none: mean 24, standard deviation 48 over sqrt(800).
    assert math.log(found.high / found.low) / 2 == pytest.approx(1.96 * 48 / math.sqrt(800) / 24, rel=0.1)


def test_snips_knows_that_its_weights_were_drawn_with_its_rewards() -> None:
    found = estimates(log_of(UNEVEN))["snips"].tokens_per_step
    assert found is not None
    # Every step that counts emitted 30 tokens: there is nothing to be unsure of.
    assert found.high - found.low < 0.01


def test_states_are_taken_as_given_so_how_busy_they_were_widens_nothing() -> None:
    calm = [Draw(300, PLAIN, 0.75, 10, 5, wanted=0.25), Draw(100, DRAFTING, 0.25, 10, 5, wanted=0.25)]
    wild = [
        Draw(150, PLAIN, 0.75, 2 * size, 5, wanted=0.25, batch_size=size) for size in (1, 19)
    ] + [Draw(50, DRAFTING, 0.25, 2 * size, 5, wanted=0.25, batch_size=size) for size in (1, 19)]  # fmt: skip
    for draws in (calm, wild):
        found = estimates(log_of(draws))["ips"].tokens_per_step
        assert found is not None
        # Weights are all 1, and the model knows the rest.
        assert math.log(found.high / found.low) < 0.02


def test_the_estimators_that_were_asked_for_answer_in_that_order() -> None:
    found = estimate_choices(log_of(UNEVEN), MODES, ["dr", "ips"])[1]
    assert [estimate.estimator for estimate in found] == ["dr", "ips"]


def test_the_same_log_gives_the_same_estimates() -> None:
    assert estimate_choices(log_of(TWO_STATES), MODES) == estimate_choices(log_of(TWO_STATES), MODES)
