"""Acceptance by position: what is learnt from a step, and what is believed where nothing was seen."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.step_rows import depth_counts
from trimtab.policies.cascade import Cascade

DEPTH = 5


def run_of(rng: random.Random, chances: list[float]) -> int:
    run = 0
    while run < len(chances) and rng.random() < chances[run]:
        run += 1
    return run


def fed(chances: list[float], steps: list[int], batch_size: int = 16, n: int = 200, seed: int = 3) -> Cascade:
    """A cascade that saw `n` steps with the numbers of drafts in turn."""
    rng, cascade = random.Random(seed), Cascade(DEPTH)
    for i in range(n):
        counts = depth_counts([run_of(rng, chances) for _ in range(batch_size)], steps[i % len(steps)])
        cascade.advance(1)
        cascade.add(counts.offered, counts.accepted)
    return cascade


def accepted(chances: list[float], steps: int) -> float:
    reach, total = 1.0, 0.0
    for chance in chances[:steps]:
        reach *= chance
        total += reach
    return total


@pytest.mark.parametrize("steps", [[5], [1, 5], [1, 2, 3, 5], [3, 3, 5]], ids=str)
def test_one_cascade_serves_all_numbers_of_drafts_however_they_were_mixed(steps: list[int]) -> None:
    chances = [0.8, 0.7, 0.6, 0.5, 0.4]
    curve = fed(chances, steps).curve()
    for k in range(DEPTH + 1):
        assert curve.accepted[k] == pytest.approx(accepted(chances, k), abs=0.1)


def test_a_full_accept_is_censored_it_says_nothing_of_the_next_position() -> None:
    always = fed([1.0, 1.0, 1.0, 0.0, 0.0], [2])
    assert always.curve().accepted[2] == pytest.approx(2.0, abs=0.03)
    deeper = fed([0.9, 0.5, 0.5, 0.5, 0.5], [2]).curve()
    assert deeper.by_position[:2] == pytest.approx([0.9, 0.5], abs=0.04)


def test_positions_never_seen_lean_on_the_deepest_seen_not_on_the_first() -> None:
    curve = fed([0.9, 0.4, 0.4, 0.4, 0.4], [2]).curve()
    assert curve.by_position[2:] == pytest.approx([curve.by_position[1]] * 3)
    assert curve.accepted[5] < 0.5 * accepted([0.9] * DEPTH, DEPTH)


def test_before_anything_was_seen_it_is_a_guess_and_says_so() -> None:
    curve = Cascade(DEPTH).curve()
    spread = (curve.loadings**2).sum(axis=1) ** 0.5
    assert curve.accepted[0] == 0.0
    assert spread[0] == 0.0
    assert all(spread[k] > 0.1 for k in range(1, DEPTH + 1))


def test_the_interval_narrows_with_requests_and_widens_with_steps_without_news() -> None:
    def sd(cascade: Cascade) -> float:
        return float((cascade.curve().loadings[3] ** 2).sum() ** 0.5)

    chances = [0.7] * DEPTH
    few, many = fed(chances, [3], batch_size=1, n=20), fed(chances, [3], batch_size=64, n=20)
    assert sd(many) < sd(few) / 2
    before = sd(many)
    many.advance(2_000)
    assert sd(many) > 2 * before


def test_the_mean_outlives_a_time_without_news() -> None:
    cascade = fed([0.2] * DEPTH, [3])
    cascade.advance(100_000)
    assert cascade.curve().by_position[0] == pytest.approx(0.2, abs=0.05)


def test_larger_batches_are_followed_faster() -> None:
    def steps_to_follow(batch_size: int) -> int:
        cascade = fed([0.6] * DEPTH, [1], batch_size, n=300)
        for step in range(1, 2_000):
            cascade.advance(1)
            cascade.add((batch_size,), (0.7 * batch_size,))
            if cascade.curve().by_position[0] > 0.65:
                return step
        return 2_000

    assert steps_to_follow(64) < steps_to_follow(4) < steps_to_follow(1) < 300


def test_a_leap_far_beyond_chance_is_believed_at_once_a_stroke_of_luck_is_not() -> None:
    cascade = fed([0.6] * DEPTH, [1], batch_size=32)
    cascade.advance(1)
    cascade.add((320,), (0.67 * 320,))
    assert cascade.curve().by_position[0] < 0.64
    cascade.add((320,), (0.1 * 320,))
    assert cascade.curve().by_position[0] < 0.2


def test_after_a_restart_only_what_came_since_counts() -> None:
    cascade = fed([0.9] * DEPTH, [5])
    cascade.restart((100.0,), (20.0,))
    assert cascade.curve().by_position == pytest.approx([0.2] * DEPTH)


counts_by_depth = st.lists(st.integers(0, 60), min_size=1, max_size=DEPTH + 2).map(
    lambda falls: sorted(falls, reverse=True)
)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 50), counts_by_depth), max_size=20))
def test_whatever_comes_expectations_grow_with_drafts_and_stay_possible(
    reports: list[tuple[int, list[int]]],
) -> None:
    cascade = Cascade(DEPTH)
    for steps, reach in reports:
        cascade.advance(steps)
        cascade.add(reach[:-1], reach[1:])
    curve = cascade.curve()
    assert all(0 < p < 1 for p in curve.by_position)
    assert all(a <= b <= a + 1 for a, b in zip(curve.accepted, curve.accepted[1:], strict=False))
    assert (curve.loadings >= 0).all()
    again = Cascade(DEPTH)
    again.set_state(cascade.state())
    assert (again.curve().accepted == curve.accepted).all()


def test_a_state_of_another_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="5 positions, not 3"):
        Cascade(3).set_state(Cascade(5).state())
