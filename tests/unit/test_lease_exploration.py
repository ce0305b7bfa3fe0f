"""Draws among an entry's modes: the same on every rank, and as often as the lease says."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab_sglang.lease import Lease, LeaseMachine, Mode, TableEntry, speculate, uniform

ENTRY = TableEntry(1, speculate(3), 0.7, ((speculate(1), 0.2), (speculate(5), 0.1)))
SEEDS = st.integers(0, 2**64 - 1)
seeded = settings(derandomize=True)


def exploring(seed: int = 11, dwell: int = 4, **fields: Any) -> Lease:
    return Lease(1, (ENTRY,), exploration_seed=seed, exploration_dwell_steps=dwell, **fields)


def modes(lease: Lease, steps: int, skipped: int = 0) -> list[Mode | None]:
    """The modes of so many steps under the lease, adopted after `skipped` steps without one."""
    machine = LeaseMachine()
    for _ in range(skipped):
        machine.choose(4)
    machine.adopt(lease)
    return [machine.choose(4) for _ in range(steps)]


@seeded
@given(SEEDS, st.integers(0, 2**40))
def test_a_draw_depends_on_seed_and_counter_alone_and_is_below_one(seed: int, counter: int) -> None:
    u = uniform(seed, counter)
    assert 0 <= u < 1
    assert u == uniform(seed, counter)


def test_draws_are_those_of_splitmix64() -> None:
    # The first outputs of the published generator from seed 1234567, of which a draw keeps the upper 53 bits.
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [uniform(1234567, i) for i in range(3)] == [(x >> 11) / 2**53 for x in outputs]


@seeded
@given(SEEDS, st.integers(0, 200))
def test_a_mode_depends_on_the_step_and_not_on_when_the_lease_came(seed: int, skipped: int) -> None:
    lease = exploring(seed)
    assert modes(lease, 40, skipped) == modes(lease, skipped + 40)[skipped:]


def test_a_draw_holds_for_its_dwell_by_the_engines_step_counter() -> None:
    drawn = [None, *modes(exploring(dwell=10), 599)]
    blocks = [set(drawn[start : start + 10]) - {None} for start in range(0, 600, 10)]
    assert all(len(block) == 1 for block in blocks)
    assert len(set().union(*blocks)) == 3


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_modes_come_as_often_as_their_probabilities_say(seed: int) -> None:
    drawn = Counter(modes(exploring(seed, dwell=2), 2 * 20_000))
    shares = {mode: count / drawn.total() for mode, count in drawn.items()}
    assert shares == pytest.approx({speculate(3): 0.7, speculate(1): 0.2, speculate(5): 0.1}, abs=0.012)


def test_a_draw_other_than_the_first_mode_is_marked_as_explored() -> None:
    machine = LeaseMachine()
    machine.adopt(exploring(dwell=1))
    for _ in range(200):
        mode = machine.choose(4)
        assert machine.explored == (mode != ENTRY.mode)
    assert machine.switches > 50


def test_without_an_exploration_dwell_nothing_is_drawn() -> None:
    assert set(modes(exploring(dwell=0), 200)) == {ENTRY.mode}


def test_the_minimum_dwell_goes_before_a_draw() -> None:
    drawn = modes(exploring(dwell=1, min_dwell_steps=25), 1000)
    changes = [i for i in range(1, 1000) if drawn[i] != drawn[i - 1]]
    assert changes
    assert all(later - earlier >= 25 for earlier, later in pairwise(changes))


@seeded
@given(st.floats(0, 1, exclude_max=True))
def test_an_entry_draws_one_of_its_modes_with_its_probability(u: float) -> None:
    expected = speculate(3) if u < 0.7 else speculate(1) if u < 0.7 + 0.2 else speculate(5)
    assert ENTRY.draw(u) == expected


def test_probabilities_of_an_entry() -> None:
    assert [ENTRY.probability_of(speculate(k)) for k in (1, 3, 5, 7)] == [0.2, 0.7, 0.1, 0]
