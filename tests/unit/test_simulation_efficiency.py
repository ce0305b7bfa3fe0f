"""Efficiency on cases that can be worked out on paper, and the known figures of the shipped ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.small_cases import Script, load_with_runs, small_case
from trimtab.domain import PLAIN_WARM, speculate
from trimtab.replay.simulation.case_file import read_case
from trimtab.replay.simulation.cases import CaseEnvironment
from trimtab.replay.simulation.drivers import play
from trimtab.replay.simulation.efficiency import Judge, Verdict, shortest_dwell
from trimtab.replay.simulation.trial import parse_policy, try_policy

CASES = Path(__file__).parents[1] / "data" / "cases"


def two_phases(switch_ms: float = 5.0) -> CaseEnvironment:
    """Four steps in which nothing is accepted, then four in which everything is; plain 10 ms, one draft 15 ms.

    The best of the first phase is plain with 1 token in 10 ms, of the second one draft with 2 tokens in 15 ms.
    """
    hard, easy = load_with_runs([0], "hard"), load_with_runs([8], "easy")
    return small_case([hard] * 4 + [easy] * 4, {0: 10.0, 1: 15.0}, switch_ms=switch_ms)


def verdict_on(steps: list[int], case: CaseEnvironment) -> Verdict:
    return Judge(case).judge(play(case, Script(steps)), "script")


@pytest.mark.parametrize(
    ("steps", "ideal_ms", "taken_ms"),
    [
        # Hard tokens are worth 10 ms each and easy ones 7.5 ms.
        ([0] * 8, 4 * 10 + 4 * 7.5, 80),
        ([1] * 8, 4 * 10 + 8 * 7.5, 5 + 120),
        ([0] * 4 + [1] * 4, 4 * 10 + 8 * 7.5, 40 + 5 + 60),
        ([0, 1] * 4, 4 * 10 + 6 * 7.5, 4 * 10 + 4 * 15 + 7 * 5),
    ],
)
def test_efficiency_is_the_time_of_the_best_of_each_phase_over_the_time_taken(
    steps: list[int], ideal_ms: float, taken_ms: float
) -> None:
    verdict = verdict_on(steps, two_phases())
    assert verdict.seconds == pytest.approx(taken_ms / 1e3)
    assert verdict.efficiency == pytest.approx(ideal_ms / taken_ms)
    assert verdict.tokens_per_s == pytest.approx(verdict.tokens / taken_ms * 1e3)


def test_the_best_of_each_phase_with_free_switches_is_exactly_one() -> None:
    assert verdict_on([0] * 4 + [1] * 4, two_phases(switch_ms=0.0)).efficiency == pytest.approx(1.0)


def test_the_best_single_mode_is_judged_by_the_same_measure_and_pays_no_switch() -> None:
    verdict = verdict_on([1] * 8, two_phases())
    # Plain: 70 ms of worth in 80 ms; one draft: 100 in 120.
    assert verdict.best_fixed_k == 0
    assert verdict.best_fixed_efficiency == pytest.approx(70 / 80)
    judge = Judge(two_phases())
    assert [judge.best_mode(phase) for phase in judge.phases] == [PLAIN_WARM, speculate(1)]


def test_a_file_without_phases_is_one_phase() -> None:
    case = small_case([load_with_runs([0]), load_with_runs([8])], {0: 10.0, 1: 15.0})
    verdict = verdict_on([0, 1], case)
    assert [(phase.phase, phase.steps, phase.k) for phase in verdict.phases] == [("", 2, {0: 1, 1: 1})]
    # The best fixed mode over both steps makes 3 tokens in 30 ms, plain 2 in 20: a tie at 0.1 tokens a ms.
    assert verdict.efficiency == pytest.approx(30 / 25)


def test_phases_are_judged_one_by_one() -> None:
    verdict = verdict_on([1] * 5 + [0] * 3, two_phases())
    hard, easy = verdict.phases
    assert (hard.phase, hard.best_k, hard.k) == ("hard", 0, {1: 4})
    assert hard.efficiency == pytest.approx(40 / 65)
    assert (easy.phase, easy.best_k, easy.k) == ("easy", 1, {0: 3, 1: 1})
    assert easy.efficiency == pytest.approx(5 * 7.5 / (15 + 3 * 10 + 5))


def test_only_long_phases_have_a_settled_part_and_it_leaves_the_first_steps_out() -> None:
    long, short = [load_with_runs([8], "long")] * 600, [load_with_runs([8], "short")] * 599
    case = small_case(long + short, {0: 10.0, 1: 15.0}, start=1)
    verdict = verdict_on([0] * 300 + [1] * 899, case)
    assert [phase.settled_efficiency for phase in verdict.phases] == [pytest.approx(1.0), None]
    assert verdict.phases[0].efficiency == pytest.approx((300 * 7.5 + 300 * 15) / (3000 + 4500))


@pytest.mark.parametrize(
    ("steps", "dwell"),
    [([1, 1, 1], 3), ([1, 1, 3], 2), ([1, 3, 3, 3, 1, 1], 1), ([3, 3, 3, 1, 1, 3], 2), ([1], 1)],
)
def test_the_shortest_dwell_counts_stays_that_ended_in_a_switch(steps: list[int], dwell: int) -> None:
    assert shortest_dwell([speculate(k) for k in steps]) == dwell


def test_switches_are_counted_as_they_are_charged() -> None:
    verdict = verdict_on([1, 1, 0, 0, 1, 1, 1, 1], two_phases())
    assert (verdict.switches, verdict.switches_per_1000_steps, verdict.min_dwell_steps) == (3, 375.0, 2)


@pytest.mark.parametrize(
    ("name", "sglang", "best_fixed"),
    [
        ("m01_h200_8b_mixed_load", 0.913, 0.912),
        ("m02_h200_32b_mixed_load", 0.868, 0.964),
        ("c04_recover_from_plain", 0.859, 0.745),
    ],
)
def test_sglangs_rule_and_the_best_fixed_mode_come_out_as_known(name: str, sglang: float, best_fixed: float) -> None:
    case = read_case(CASES / f"{name}.jsonl")
    verdict = Judge(case).judge(try_policy(case, parse_policy("sglang-ema")), "sglang-ema")
    assert verdict.efficiency == pytest.approx(sglang, abs=0.001)
    assert verdict.best_fixed_efficiency == pytest.approx(best_fixed, abs=0.001)
