"""The baselines beside `goodput`: simple rules, held to what their sources promise and no more."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from support.step_rows import step_row
from trimtab.domain import PLAIN_WARM, Mode, StepRow, modes_of, speculate
from trimtab.errors import PolicyError
from trimtab.policies.contract import Policy, PolicyContext
from trimtab.policies.registry import policy_factory

MODES = modes_of([0, 1, 3, 5])
TPS = {0: 1_000.0, 1: 1_500.0, 3: 2_500.0, 5: 1_200.0}


def create(name: str, bands: tuple[int, ...] = (1, 9), seed: int = 1, **parameters: object) -> Policy:
    return policy_factory(name, parameters)(PolicyContext(MODES, bands, initial_steps=1, seed=seed))


def rows(mode: Mode, tps: float, n: int, batch_size: int = 8) -> list[StepRow]:
    """Ten milliseconds a step, every other one with a tenth more tokens than the mean, the others with less."""
    tokens = tps / 100
    return [step_row(mode, batch_size, step_ns=10_000_000, emitted_tokens=round(tokens * s)) for s in (0.9, 1.1)] * (
        n // 2
    )


def feed(policy: Policy, tps: Mapping[int, float] = TPS, reports: int = 30) -> None:
    """What an engine reports that draws its modes by the probabilities of the first band."""
    for _ in range(reports):
        band = policy.choose().bands[0]
        for mode in MODES:
            policy.learn(rows(mode, tps[mode.steps], 2 * math.ceil(20 * band.entry.probability_of(mode))))


def chances(policy: Policy, batch_size: int = 8) -> dict[int, float]:
    policy.choose()
    return {mode.steps: policy.probability_of(batch_size, mode) for mode in MODES}


@pytest.mark.parametrize(
    ("table", "entries"),
    [
        ("1:5, 9:1, 64:0", [(1, speculate(5)), (9, speculate(1)), (64, PLAIN_WARM)]),
        ("32:1;8:3", [(1, speculate(3)), (32, speculate(1))]),
        ("", [(1, speculate(5)), (8, speculate(3)), (32, speculate(1)), (64, speculate(1))]),
    ],
)
def test_a_table_is_followed_as_written(table: str, entries: list[tuple[int, Mode]]) -> None:
    decision = create("table", table=table).choose()
    assert [(entry.min_batch_size, entry.mode) for entry in decision.table] == entries


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("1:4", r"steps 4 is not among the engine's candidates; choose one of: 0, 1, 3, 5"),
        ("1:5, many", r"'many' is no pair of batch size and steps, such as 8:3"),
        ("0:5", r"'0:5' is no pair"),
        ("8:5, 8:3", r"batch size 8 is there twice"),
    ],
)
def test_a_table_that_cannot_be_followed_is_refused(table: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        create("table", table=table)


@pytest.mark.parametrize("name", ["thompson", "epsilon-greedy", "exp3"])
def test_it_comes_to_draw_the_best_mode_mostly(name: str) -> None:
    policy = create(name)
    feed(policy, reports=60)
    found = chances(policy)
    assert max(found, key=lambda steps: found[steps]) == 3
    assert found[3] > (0.85 if name != "exp3" else 0.3)


@pytest.mark.parametrize("name", ["thompson", "epsilon-greedy", "exp3"])
def test_it_follows_when_another_mode_becomes_the_best(name: str) -> None:
    policy = create(name)
    feed(policy, reports=60)
    feed(policy, {**TPS, 3: 800.0, 5: 2_500.0}, reports=200)
    found = chances(policy)
    assert max(found, key=lambda steps: found[steps]) == 5


def test_epsilon_is_shared_by_all_modes_alike() -> None:
    policy = create("epsilon-greedy", epsilon=0.2)
    feed(policy)
    assert chances(policy) == pytest.approx({0: 0.05, 1: 0.05, 3: 0.85, 5: 0.05})


def test_exp3_begins_without_a_preference_and_never_gives_a_mode_up() -> None:
    policy = create("exp3", gamma=0.2)
    assert chances(policy) == pytest.approx(dict.fromkeys(TPS, 0.25))
    feed(policy, reports=200)
    assert min(chances(policy).values()) >= 0.2 / 4 - 1e-9


def test_thompson_draws_modes_that_may_be_the_best_and_never_those_that_cannot() -> None:
    policy = create("thompson")
    for mode, tps in ((MODES[0], 500.0), (MODES[1], 2_000.0), (MODES[2], 2_010.0), (MODES[3], 400.0)):
        policy.learn(rows(mode, tps, 20))
    found = chances(policy)
    assert found[0] == found[5] == 0.0
    assert 0.2 < found[1] < found[3]


@pytest.mark.parametrize("name", ["thompson", "epsilon-greedy"])
def test_a_band_that_was_never_entered_takes_over_what_the_nearest_one_found(name: str) -> None:
    policy = create(name)
    feed(policy)
    assert chances(policy, batch_size=200) == chances(policy, batch_size=8)


def test_nothing_is_drawn_before_anything_was_seen() -> None:
    assert chances(create("thompson")) == {0: 0.0, 1: 1.0, 3: 0.0, 5: 0.0}
