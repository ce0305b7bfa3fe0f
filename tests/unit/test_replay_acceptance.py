"""Acceptance over the course of a trace, against acceptance that is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trimtab.replay.arrays import Floats
from trimtab.replay.trace_model.acceptance import AcceptanceCourse, follow_acceptance
from trimtab.replay.trace_model.survey import BlockSums

DEPTH = 3
BLOCK_STEPS = 64


def block_sums(offered: Floats, accepted: Floats, squares: Floats | None = None, rows: float = 1.0) -> BlockSums:
    n = len(offered)
    return BlockSums(
        first_block=np.array([0, n]),
        steps=np.full(n, float(BLOCK_STEPS)),
        offered=offered,
        accepted=accepted,
        squares=np.zeros(offered.shape) if squares is None else squares,
        rows=np.full(offered.shape, rows),
        sum_requests=np.zeros((n, DEPTH + 1)),
        sum_accepted=np.zeros(n),
    )


def drawn(rates: Floats, requests: int, seed: int = 0) -> BlockSums:
    """Counts of independent requests; `rates` of shape `(n_blocks, DEPTH)`."""
    rng = np.random.default_rng(seed)
    offered, accepted = np.zeros(rates.shape), np.zeros(rates.shape)
    reached = np.full(len(rates), requests)
    for d in range(DEPTH):
        offered[:, d] = reached
        reached = accepted[:, d] = rng.binomial(reached.astype(int), rates[:, d])
    return block_sums(offered, accepted)


def follow(sums: BlockSums, depth: int = DEPTH) -> AcceptanceCourse:
    return follow_acceptance(sums, ["llama-a"] * (len(sums.first_block) - 1), depth)


def test_a_block_learns_from_what_came_before_and_after_it() -> None:
    blocks = np.arange(400)
    rates = 0.6 + 0.25 * np.sin(blocks / 60)[:, None] * np.array([1.0, 0.9, 0.8])
    found = follow(drawn(rates, requests=60))
    off = found.conditional - rates
    assert np.abs(off[:, 0]).mean() < 0.04
    # As unsure as it says: neither too sure nor much too unsure.
    assert 0.5 < (off / found.own_sd).std() < 1.1


def test_a_sudden_change_is_followed_within_a_block_or_two() -> None:
    rates = np.where(np.arange(100) < 50, 0.9, 0.3)[:, None] * np.ones(DEPTH)
    found = follow(drawn(rates, requests=2_000)).conditional[:, 0]
    assert found[:49] == pytest.approx(0.9, abs=0.05)
    assert found[52:] == pytest.approx(0.3, abs=0.05)


def test_positions_never_seen_are_taken_from_the_deepest_and_are_less_sure_with_depth() -> None:
    found = follow(drawn(np.full((50, DEPTH), 0.8), requests=500), depth=6)
    assert found.conditional[:, 3:] == pytest.approx(np.repeat(found.conditional[:, 2:3], 3, axis=1))
    lean = found.lean_sd.mean(axis=0)
    assert lean[:3].max() < 0.01
    assert lean[3] >= 0.1
    assert lean[3] < lean[4] < lean[5]


def test_where_nothing_was_ever_drafted_nothing_is_known() -> None:
    nothing = np.zeros((20, DEPTH))
    found = follow(block_sums(nothing, nothing))
    assert found.conditional == pytest.approx(0.7)
    assert found.lean_sd.min() >= 0.3


def test_requests_that_share_their_luck_count_for_less() -> None:
    rng = np.random.default_rng(1)
    rows, size = BLOCK_STEPS, 32
    # One draw a row for all of its requests.
    accepted = np.where(rng.random((200, rows)) < 0.6, size, 0)
    shape = (200, DEPTH)
    sums = block_sums(
        np.full(shape, float(rows * size)) * [1, 0, 0],
        accepted.sum(axis=1)[:, None] * np.array([1.0, 0, 0]),
        (accepted**2 / size).sum(axis=1)[:, None] * np.array([1.0, 0, 0]),
        rows,
    )
    found = follow(sums)
    assert found.dispersion[0] == pytest.approx(size, rel=0.1)
    assert found.own_sd[:, 0].mean() > 0.02


def with_sums(n: int, requests: dict[int, float], accepted: float) -> BlockSums:
    nothing = np.zeros((n, DEPTH))
    sums = block_sums(nothing, nothing)
    for k, count in requests.items():
        sums.sum_requests[:, k] = count
    sums.sum_accepted[:] = accepted
    return sums


def test_sums_are_explained_by_one_acceptance_at_every_position() -> None:
    p = 0.6
    found = follow(with_sums(5, {1: 400.0, 3: 2_000.0}, 400 * p + 2_000 * (p + p**2 + p**3)))
    assert found.by_sum == pytest.approx(p, abs=1e-9)
    # It also tells what lies beyond.
    assert found.conditional[:, 0] == pytest.approx(p, abs=0.01)


def test_a_window_of_few_requests_is_widened_until_it_says_something() -> None:
    sums = with_sums(40, {1: 50.0}, 0.0)
    sums.sum_accepted[:] = np.random.default_rng(0).binomial(50, 0.6, 40)
    found = follow(sums).by_sum
    assert found == pytest.approx(0.6, abs=0.04)
    assert np.ptp(found) < 0.06


def test_runs_of_one_engine_go_on_from_each_other_and_other_engines_do_not() -> None:
    counts, nothing = drawn(np.full((30, DEPTH), 0.9), 500), np.zeros((10, DEPTH))
    offered, accepted = (np.concatenate([part, nothing]) for part in (counts.offered, counts.accepted))
    both = replace(block_sums(offered, accepted), first_block=np.array([0, 30, 40]))
    same = follow_acceptance(both, ["a", "a"], DEPTH).conditional[30:, 0]
    other = follow_acceptance(both, ["a", "b"], DEPTH).conditional[30:, 0]
    assert same == pytest.approx(0.9, abs=0.02)
    assert other == pytest.approx(0.7)
