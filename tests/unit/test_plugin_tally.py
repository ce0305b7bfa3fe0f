"""Accepted drafts counted by depth: each draft is offered to those who had the one before it accepted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab_sglang.rows import ABSENT, Tally, tally

seeded = settings(derandomize=True)


@pytest.mark.parametrize(
    ("counts", "steps", "expected"),
    [
        ([3], 3, Tally(1, (1, 1, 1), (1, 1, 1), 3)),
        ([0], 3, Tally(1, (1, 0, 0), (0, 0, 0), 0)),
        ([3, 0, 1, 2], 3, Tally(4, (4, 3, 2), (3, 2, 1), 0)),
        ([0, 0], 0, Tally(2, (), (), 0)),
        ([], 3, Tally(0, (0, 0, 0), (0, 0, 0), ABSENT)),
        ([1] * 5 + [5] * 25, 5, Tally(30, (30, 30, 25, 25, 25), (30, 25, 25, 25, 25), 1)),
        ([0, 0, 4] + [5] * 27, 5, Tally(30, (30, 28, 28, 28, 28), (28, 28, 28, 28, 27), 4 / 3)),
    ],
)
def test_counts_by_depth(counts: list[int], steps: int, expected: Tally) -> None:
    assert tally(counts, steps) == expected


steps_and_counts = st.integers(0, 8).flatmap(
    lambda steps: st.tuples(st.just(steps), st.lists(st.integers(0, steps), max_size=40))
)


@seeded
@given(steps_and_counts)
def test_the_counts_of_a_batch_are_those_of_its_requests(drawn: tuple[int, list[int]]) -> None:
    steps, counts = drawn
    dropped: Counter[str] = Counter()
    counted = tally(counts, steps, (), dropped)
    assert counted.offered == tuple(sum(c >= depth for c in counts) for depth in range(steps))
    assert counted.accepted == tuple(sum(c > depth for c in counts) for depth in range(steps))
    assert counted.accepted_tokens == sum(counts)
    assert counted.requests == len(counts)
    assert dropped.total() == 0
    worst = sorted(counts)[: max(1, len(counts) // 10)]
    assert counted.worst_decile == (sum(worst) / len(worst) if counts else ABSENT)


@seeded
@given(steps_and_counts, st.sets(st.integers(0, 39)))
def test_skipped_requests_say_nothing(drawn: tuple[int, list[int]], skip: set[int]) -> None:
    steps, counts = drawn
    skipped = sorted(i for i in skip if i < len(counts))
    dropped: Counter[str] = Counter()
    assert tally(counts, steps, skipped, dropped) == tally([c for i, c in enumerate(counts) if i not in skip], steps)
    assert dropped["late_request"] == len(skipped)


BAD: list[tuple[Any, str]] = [
    (-1, "negative_count"),
    (-300, "negative_count"),
    (4, "count_above_steps"),
    (256, "count_above_steps"),
    (None, "unreadable_count"),
    (1.5, "unreadable_count"),
    ("3", "unreadable_count"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_a_bad_count_is_left_out_and_counted_and_the_others_stay(bad: Any, reason: str) -> None:
    dropped: Counter[str] = Counter()
    counted = tally([3, bad, 1], 3, (), dropped)
    assert counted == tally([3, 1], 3)
    assert +dropped == Counter({reason: 1})


@seeded
@given(st.lists(st.integers(-3, 9) | st.none() | st.floats(0, 3), max_size=30))
def test_every_request_is_either_counted_or_dropped_with_a_reason(counts: list[Any]) -> None:
    dropped: Counter[str] = Counter()
    counted = tally(counts, 5, (), dropped)
    assert counted.requests + dropped.total() == len(counts)
