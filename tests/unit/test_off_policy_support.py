"""When estimates are refused, and the reason that is given."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from support.small_bandits import DRAFTING, MODES, PLAIN, Draw, log_of
from trimtab.replay.off_policy.choices import Choices
from trimtab.replay.off_policy.estimators import ESTIMATORS, estimate_choices
from trimtab.replay.off_policy.support import Support

WEIGHING = {"ips", "snips", "dr"}
GOOD = (Draw(300, PLAIN, 0.5, 10, 5), Draw(300, DRAFTING, 0.5, 30, 10))


def refusals(choices: Choices) -> dict[str, str | None]:
    return {found.estimator: found.refused for found in estimate_choices(choices, MODES)[1]}


def support_for(choices: Choices) -> Support:
    return estimate_choices(choices, MODES)[0]


def with_unknown(choices: Choices, share: float) -> Choices:
    unknown = np.arange(len(choices)) < share * len(choices)
    return replace(choices, probability=np.where(unknown, np.nan, choices.probability))


def test_a_log_that_drew_what_the_candidate_wants_is_answered() -> None:
    assert refusals(log_of(GOOD)) == dict.fromkeys(ESTIMATORS)


def test_a_refusal_has_a_reason_and_no_figures() -> None:
    (found,) = estimate_choices(log_of([Draw(10, PLAIN, 0.5, 10, 5)]), MODES, ["dr"])[1]
    assert found.refused
    assert found.tokens_per_s is found.tokens_per_step is found.step_ms is None


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        (
            with_unknown(log_of(GOOD), 0.5),
            "50.0% of the steps do not say with which probability their mode was chosen, at most 5% may; record under "
            "a policy that explores, and export the journal",
        ),
        (
            log_of([*GOOD, Draw(3, PLAIN, 0.0, 10, 5)]),
            "3 steps ran a mode that is said to have had the probability 0: the record contradicts itself",
        ),
        (
            log_of([*GOOD, Draw(2, PLAIN, 1.5, 10, 5)]),
            "2 steps ran a mode that is said to have had the probability 1.5: the record contradicts itself",
        ),
        (
            log_of([Draw(50, PLAIN, 0.5, 10, 5), Draw(49, DRAFTING, 0.5, 30, 10)]),
            "only 99 blocks of steps were chosen apart from each other, it takes 100",
        ),
        (log_of(GOOD).where(np.zeros(600, dtype=bool)), "there is no timed decode step"),
    ],
    ids=["unknown", "zero", "beyond one", "few draws", "nothing"],
)
def test_a_log_that_cannot_be_used_is_refused_for_every_estimator(choices: Choices, reason: str) -> None:
    assert refusals(choices) == dict.fromkeys(ESTIMATORS, reason)


def test_a_few_steps_without_probability_are_left_out_and_counted() -> None:
    choices = with_unknown(log_of(GOOD), 0.05)
    assert refusals(choices) == dict.fromkeys(ESTIMATORS)
    assert (support_for(choices).steps, support_for(choices).unknown_steps) == (570, 30)


def test_a_mode_that_was_never_drawn_is_refused_by_its_name() -> None:
    found = refusals(log_of([Draw(400, PLAIN, 0.9, 10, 5, wanted=0.25)]))
    for name in WEIGHING:
        assert found[name] == (
            "in 25.0% of the steps the candidate wants a mode that the log could not choose there, speculate(3) above "
            "all; at most 0.5% may"
        )
    assert found["dm"] == (
        "the candidate wants speculate(3) in 25.0% of the steps, which ran in 0 blocks; a model of it takes 20"
    )


def test_steps_that_had_no_choice_support_no_other_mode() -> None:
    choices = log_of([Draw(300, PLAIN, 1.0, 10, 5), *GOOD])
    found = refusals(choices)
    assert found["dm"] is None
    for name in WEIGHING:
        assert found[name] is not None
        assert "in 33.3% of the steps the candidate wants a mode that the log could not choose" in str(found[name])
    assert support_for(choices).unsupported_share == pytest.approx(1 / 3)


def test_steps_that_had_no_choice_support_the_mode_that_ran() -> None:
    assert refusals(log_of([Draw(300, PLAIN, 1.0, 10, 5, wanted=0.0), *GOOD])) == dict.fromkeys(ESTIMATORS)


def test_weights_that_do_not_add_up_tell_of_modes_that_were_never_drawn_in_some_states() -> None:
    # With eight requests plain had nine chances in ten, and the tenth was for another mode.
    choices = log_of([*GOOD, Draw(600, PLAIN, 0.9, 10, 5, batch_size=8)])
    assert support_for(choices).mean_weight == pytest.approx(0.5)
    assert refusals(choices)["ips"] == (
        "the mean weight of a step is 0.500 and not 1: the candidate wants modes where the log hardly ever chose them"
    )


def test_too_few_effective_blocks_are_refused() -> None:
    choices = log_of([Draw(900, PLAIN, 0.9, 10, 5), Draw(99, DRAFTING, 0.1, 30, 10)])
    assert support_for(choices).effective_blocks == pytest.approx(99)
    found = refusals(choices)
    assert found["dm"] is None
    assert {found[name] for name in WEIGHING} == {
        "what the candidate wants was chosen too rarely: 999 blocks are worth 99, it takes 100"
    }


def test_effective_blocks_are_those_of_the_weights_where_rewards_are_alike() -> None:
    # Weights 2 and 10: (100 * 2 + 20 * 10)^2 / (100 * 4 + 20 * 100).
    draws = [Draw(100, DRAFTING, 0.5, 3, 6), Draw(20, DRAFTING, 0.1, 3, 6), Draw(280, PLAIN, 0.7, 1, 5)]
    assert support_for(log_of(draws)).effective_blocks == pytest.approx(400**2 / 2400, rel=0.01)


def test_busy_blocks_count_for_more_so_that_fewer_are_effective() -> None:
    draws = [
        *(Draw(195, mode, 0.5, 2 * size, 5, batch_size=size) for mode in (0, 1) for size in (1,)),
        *(Draw(5, mode, 0.5, 2 * size, 5, batch_size=size) for mode in (0, 1) for size in (200,)),
    ]
    assert support_for(log_of(draws)).effective_blocks < 12


def test_one_block_that_weighs_too_much_is_refused() -> None:
    draws = [Draw(250, DRAFTING, 0.5, 3, 6), Draw(1, DRAFTING, 0.03, 3, 6), Draw(249, PLAIN, 0.5, 1, 5)]
    assert "one block has 6.2% of all weight, at most 5% may" in str(refusals(log_of(draws))["ips"])


def test_rows_of_one_draw_are_one_block_whatever_their_number() -> None:
    choices = log_of(GOOD)
    twice = Choices(*(np.repeat(getattr(choices, name), 2, axis=0) for name in Choices.__slots__))
    assert support_for(twice).blocks == support_for(choices).blocks == 600
    assert math.isclose(support_for(twice).effective_blocks, support_for(choices).effective_blocks)
