"""What a candidate would have wanted at every recorded step, while something else ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from support.exploring_log import RecordingDriver
from support.fresh_cases import mixed_load
from support.session_talk import TestPolicy, engine, one_mode
from support.step_rows import step_row
from trimtab.domain import EngineInfo, Mode, TableEntry, speculate
from trimtab.errors import PolicyError
from trimtab.policies.contract import BandDecision, Decision
from trimtab.policies.registry import PolicyFactory
from trimtab.replay.off_policy.shadow import Shadow
from trimtab.replay.simulation.drivers import _engine_info, play
from trimtab.replay.simulation.engine_side import REPORT_INTERVAL_MS
from trimtab.replay.simulation.trial import NamedPolicy, parse_policy

TWO_BANDS = (BandDecision(1, speculate(3), "exploit"), BandDecision(5, speculate(1), "exploit"))


def shadow_of(decision: Decision, info: EngineInfo | None = None) -> tuple[Shadow, TestPolicy]:
    made: list[TestPolicy] = []

    def factory(context: object) -> TestPolicy:
        made.append(TestPolicy(context, decision))  # type: ignore[arg-type]
        return made[-1]

    policy = NamedPolicy("told", "told", cast(PolicyFactory, factory))
    return Shadow(info or engine(), policy, REPORT_INTERVAL_MS, 0), made[-1]


def modes_wanted(shadow: Shadow, sizes: Sequence[int]) -> list[Mode | None]:
    wishes = [shadow.wish(size) for size in sizes]
    return [wish.mode if wish else None for wish in wishes]


def test_its_wish_is_the_entry_of_its_table_for_the_batch() -> None:
    shadow, _ = shadow_of(Decision(TWO_BANDS, smoothing=1.0, hysteresis=0.0))
    assert modes_wanted(shadow, [1, 4, 5, 8, 4]) == [speculate(k) for k in (3, 3, 1, 1, 3)]


def test_the_table_is_read_with_its_smoothing_and_hysteresis() -> None:
    shadow, _ = shadow_of(Decision(TWO_BANDS, smoothing=0.5, hysteresis=0.1))
    # The mean goes 4, 5, 5.5 (an edge of 5 is passed at 5.5), 4.75, 4.375 (and left below 4.5).
    assert modes_wanted(shadow, [4, 6, 6, 4, 4]) == [speculate(k) for k in (3, 3, 1, 1, 3)]


def test_no_dwell_of_its_own_past_holds_it() -> None:
    shadow, _ = shadow_of(Decision(TWO_BANDS, smoothing=1.0, hysteresis=0.0, min_dwell_steps=1_000))
    assert modes_wanted(shadow, [1, 8, 1]) == [speculate(k) for k in (3, 1, 3)]


@pytest.mark.parametrize(("dwell_steps", "drafting", "plain"), [(8, 0.75, 0.25), (0, 1.0, 0.0)])
def test_an_entry_counts_with_all_of_its_probabilities_if_its_lots_are_drawn(
    dwell_steps: int, drafting: float, plain: float
) -> None:
    band = BandDecision(1, speculate(3), "explore", 0.75, ((speculate(0), 0.25),))
    shadow, _ = shadow_of(Decision((band,), exploration_seed=3, exploration_dwell_steps=dwell_steps))
    wishes = {shadow.wish(4) for _ in range(100)}
    (wish,) = wishes
    assert isinstance(wish, TableEntry)
    assert (wish.probability_of(speculate(3)), wish.probability_of(speculate(0))) == (drafting, plain)


def test_it_is_told_what_ran_at_the_report_interval() -> None:
    shadow, policy = shadow_of(one_mode(speculate(3)))
    told = []
    for step in range(1, 61):
        shadow.wish(4)
        shadow.see(step_row(speculate(1), step=step, result_ns=7 + step * 10_000_000, wall_gap_ns=10_000_000))
        told.append(len(policy.learned))
    # Steps take 10 ms; a report leaves once a step has ended after it was due.
    assert [told[n - 1] for n in (25, 26, 50, 51)] == [0, 25, 25, 50]
    assert {row.mode for row in policy.learned} == {speculate(1)}


def test_a_new_decision_counts_from_the_next_step_on() -> None:
    shadow, policy = shadow_of(one_mode(speculate(3)))
    policy.decision = one_mode(speculate(0))
    wanted = []
    for step in range(1, 30):
        wanted += modes_wanted(shadow, [4])
        shadow.see(step_row(step=step, result_ns=step * 10_000_000, wall_gap_ns=10_000_000))
    assert wanted == [speculate(3)] * 26 + [speculate(0)] * 3


def test_a_policy_that_cannot_work_with_the_engine_says_so() -> None:
    with pytest.raises(PolicyError, match="steps 7 is not among"):
        Shadow(engine(), parse_policy("fixed:7"), REPORT_INTERVAL_MS, 0)


@pytest.mark.parametrize("policy", ["epsilon-greedy:epsilon=0.4", "thompson", "goodput", "ucb", "table:1:3;8:1"])
def test_beside_its_own_log_a_policy_wants_what_it_wanted_then(policy: str) -> None:
    case = mixed_load(11, 2_500, (300, 900))
    driver = RecordingDriver(case, policy, seed=4)
    play(case, driver)
    shadow = Shadow(_engine_info(case), parse_policy(policy), REPORT_INTERVAL_MS, 4)
    differing = []
    for number, row in enumerate(driver.rows):
        wish = shadow.wish(row.batch_size)
        if number not in driver.held and (
            wish is None or wish.probability_of(row.mode) != driver.probabilities[number]
        ):
            differing.append(number)
        shadow.see(row)
    assert differing == []
    assert len(driver.held) < len(driver.rows) / 20
