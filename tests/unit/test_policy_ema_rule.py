from __future__ import annotations

import random

import pytest

from support.step_rows import step_row
from trimtab.domain import PLAIN_WARM, modes_of, speculate
from trimtab.policies.contract import PolicyContext
from trimtab.policies.ema_rule import DEFAULT_SLOTS, EmaRule, slots_for
from trimtab.policies.sglang_ema import SglangEmaPolicy

GRAPHS = (1, 2, 4, 8, 16, 32, 64)


def rule(initial_steps: int = 3, graph_batch_sizes: tuple[int, ...] = GRAPHS) -> EmaRule:
    return EmaRule(DEFAULT_SLOTS, initial_steps, graph_batch_sizes)


@pytest.mark.parametrize(
    ("initial_steps", "by_batch_size"),
    [
        (3, {1: 3, 4: 3, 5: 3, 8: 3, 16: 3, 17: 1, 32: 1, 33: 0, 64: 0, 200: 0}),
        (7, {1: 7, 4: 7, 5: 1, 17: 1, 64: 0}),
        (2, {1: 5, 5: 1, 17: 1, 64: 0}),
        (0, {1: 5, 5: 0, 17: 0, 64: 0}),
    ],
)
def test_a_slot_begins_at_the_engines_steps_or_in_the_middle(initial_steps: int, by_batch_size: dict[int, int]) -> None:
    begun = rule(initial_steps)
    assert {size: begun.steps_for(size) for size in by_batch_size} == by_batch_size


@pytest.mark.parametrize(
    ("batch_size", "accepted", "trail"),
    [
        (1, 3.0, "3333333333333335555"),
        (1, 0.0, "333333333333333111111111"),
        (1, 2.0, "3333333333333333333"),
        (8, 0.0, "3333333333333330000011111000001111100000"),
        (32, 1.0, "1111111111111111111"),
        (64, None, "0000000000000000000"),
    ],
)
def test_after_a_warm_up_of_ten_every_fifth_batch_decides(batch_size: int, accepted: float | None, trail: str) -> None:
    decided, seen = rule(), ""
    for _ in trail:
        seen += str(decided.steps_for(batch_size))
        decided.observe(accepted, batch_size)
    assert seen == trail


# Steps of 600 batches, taken from the class of SGLang 0.5.23 itself on the load of the test below.
RECORDED = (
    "1111111111117777777777771113333333331111111111117773333333333333333333333333333333333333333333333333"
    "3333333311100000111133333333333333333333333333333333333333333333333333333333333333333333333333333333"
    "3333333333333333333333333333333333333333333333333333333333333333333333333333100000111110333333333333"
    "3333333333300000111113333333333333333333333333333333333333333333333333333333333333330000111111113333"
    "3333333311111110000011111000001133333333333333333111111133333333333311111111333333333355555555555555"
    "5555333333333333333333333000001111100000553333333333111113333333333333333333333333333333111000001111"
)


def test_the_trail_on_a_seeded_load_is_the_one_recorded_from_sglang() -> None:
    load, decided, trail = random.Random(23), rule(initial_steps=7), ""
    batch_size, chance = 1, 0.0
    for i in range(len(RECORDED)):
        if i % 12 == 0:
            batch_size, chance = load.choice([1, 3, 6, 12, 20]), load.random()
        steps = decided.steps_for(batch_size)
        decided.observe(round(chance * steps, 3), batch_size)
        trail += str(steps)
    assert trail == RECORDED


@pytest.mark.parametrize(
    ("offered", "candidates"),
    [
        ([0, 1, 2, 3, 5, 7], {1: (1, 3, 5, 7), 8: (0, 1, 3), 32: (0, 1), 64: (0,)}),
        ([3, 5], {1: (3, 5), 8: (3,), 32: (3,), 64: (3,)}),
        ([0, 2], {1: (2,), 8: (0,), 32: (0,), 64: (0,)}),
        ([2, 4], {1: (4,), 8: (2,), 32: (2,), 64: (2,)}),
    ],
)
def test_a_slot_without_an_offered_candidate_keeps_the_nearest_lower_steps(
    offered: list[int], candidates: dict[int, tuple[int, ...]]
) -> None:
    assert {start: slot.candidates for start, slot in slots_for(offered).items()} == candidates


@pytest.mark.parametrize("graph_batch_sizes", [(), GRAPHS, (1, 2, 4, 6, 8, 12, 40), (16, 48), (1, 2)])
def test_the_table_has_an_edge_exactly_where_the_slot_of_a_batch_size_changes(
    graph_batch_sizes: tuple[int, ...],
) -> None:
    fresh = rule(7, graph_batch_sizes)
    firsts = fresh.first_batch_sizes()
    for size in range(1, 100):
        first = max(edge for edge in firsts if edge <= size)
        for _ in range(15):
            fresh.observe(1.0, size)
        assert fresh.mean_for(first) == fresh.mean_for(size)
        assert fresh.steps_for(first) == fresh.steps_for(size)


def test_as_a_policy_it_waits_out_rows_that_still_run_plain_from_an_older_lease() -> None:
    policy = SglangEmaPolicy(PolicyContext(modes_of([0, 1, 3]), (1,), GRAPHS, initial_steps=3))
    policy.learn([step_row(PLAIN_WARM, batch_size=8)] * 40)
    assert policy.choose().table[1].mode == speculate(3)
    policy.learn([step_row(speculate(3), batch_size=8, accepted=0)] * 10)
    assert policy.choose().table[1].mode == PLAIN_WARM
