"""The model of what a mode would have brought: what it learns, and that no block has a say in its own prediction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.bandit_worlds import WORLDS, play
from support.small_bandits import DRAFTING, PLAIN, Draw, log_of
from trimtab.replay.off_policy import reward_model
from trimtab.replay.off_policy.choices import Choices
from trimtab.replay.off_policy.reward_model import FOLDS, expect


def known_log() -> Choices:
    return play(WORLDS["drawing_candidate"], (1,)).choices


def test_it_learns_what_each_mode_brings_at_each_batch() -> None:
    world = WORLDS["drawing_candidate"]
    choices, scene = play(world, (2,)).choices, world(np.random.default_rng((2,)))
    expected = expect(choices).by_mode / choices.steps[:, None]
    for found, truth in zip(expected, (scene.tokens, scene.ms), strict=True):
        assert np.median(np.abs(found / truth - 1)) < 0.05


def test_a_mode_that_ran_rarely_leans_on_what_the_modes_have_in_common() -> None:
    choices = log_of(
        [Draw(1, DRAFTING, 0.5, 30, 6, batch_size=16), Draw(9, DRAFTING, 0.5, 3, 6)]
        + [Draw(100, PLAIN, 0.5, size, 5, batch_size=size) for size in (1, 2, 4, 8, 16)]
    )
    tokens = expect(choices).by_mode[0, :, DRAFTING]
    assert (tokens[choices.batch_size == 16] > 4 * tokens[choices.batch_size == 1].max()).all()


def test_a_block_has_no_say_in_its_own_prediction() -> None:
    choices = known_log()
    own = choices.block == 10
    changed = replace(choices, tokens=np.where(own, 50 * choices.tokens, choices.tokens))
    before, after = expect(choices).by_mode, expect(changed).by_mode
    np.testing.assert_allclose(after[:, own], before[:, own], rtol=1e-6)
    assert np.abs(after / before - 1)[0].max() > 0.01


def test_both_stretches_of_a_block_are_left_out_together() -> None:
    choices = known_log()
    first = np.flatnonzero(choices.block == 10)[0]
    tokens = choices.tokens.copy()
    tokens[first] *= 50
    before, after = expect(choices).by_mode, expect(replace(choices, tokens=tokens)).by_mode
    np.testing.assert_allclose(after[:, first + 1], before[:, first + 1], rtol=1e-6)


@pytest.mark.parametrize("reward", [0, 1])
def test_the_influence_of_a_block_is_what_leaving_it_out_moves(reward: int) -> None:
    choices = known_log()
    last = choices.block == choices.block[-1]
    odd = replace(
        choices, tokens=np.where(last, 3 * choices.tokens, choices.tokens), ms=np.where(last, 9.0, choices.ms)
    )
    expected, without = expect(odd), odd.where(~last)
    moved = expected.under(odd)[reward, ~last].sum() - expect(without).under(without)[reward].sum()
    assert expected.influence[reward, last].sum() == pytest.approx(moved, rel=0.15)


def test_of_a_long_log_it_learns_from_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = known_log()
    whole = expect(choices)
    # Two stretches a block, and blocks are dealt into five parts in turn: every tenth would be of one part.
    monkeypatch.setattr(reward_model, "MOST_STRETCHES", len(choices) // 10)
    part = expect(choices)
    assert np.count_nonzero(part.influence[0]) == len(choices) // 10
    assert part.under(choices).sum(axis=1) == pytest.approx(whole.under(choices).sum(axis=1), rel=0.1)


def test_features_that_never_change_are_left_out() -> None:
    choices = known_log()
    wider = replace(choices, features=np.column_stack([choices.features, np.ones(len(choices))]))
    np.testing.assert_allclose(expect(wider).by_mode, expect(choices).by_mode)


def test_a_log_without_any_state_has_one_figure_for_each_mode() -> None:
    choices = log_of([Draw(50, PLAIN, 0.5, 10, 5), Draw(50, DRAFTING, 0.5, 30, 10)])
    tokens = expect(choices).by_mode[0]
    assert np.ptp(tokens, axis=0) == pytest.approx(0, abs=1)
    assert tokens.mean(axis=0) == pytest.approx((10, 30), rel=0.05)


def test_there_are_as_many_parts_as_folds_even_in_a_short_log() -> None:
    choices = log_of([Draw(FOLDS, PLAIN, 0.5, 10, 5), Draw(FOLDS, DRAFTING, 0.5, 30, 10)])
    assert np.isfinite(expect(choices).by_mode).all()
