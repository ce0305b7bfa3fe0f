"""What `goodput` makes of many cases that nobody could look at: their seeds come from the commit under test."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

import numpy as np
import pytest

from support.commit_seed import commit_seed
from support.fresh_cases import any_switch_cost, by_context, dear_switches, mixed_load, recovery
from trimtab.replay.environment import padded_size
from trimtab.replay.simulation.case_profiles import case_profile
from trimtab.replay.simulation.cases import CaseEnvironment
from trimtab.replay.simulation.drivers import Course
from trimtab.replay.simulation.efficiency import SETTLED_FROM_STEP, Judge, PhaseVerdict, Verdict
from trimtab.replay.simulation.trial import parse_policy, try_policy

pytestmark = pytest.mark.long

CASES = 40


def play(case: CaseEnvironment, profile: str) -> tuple[Verdict, Course, Judge]:
    judge = Judge(case)
    course = try_policy(case, parse_policy("goodput"), case_profile(case) if profile == "case" else None)
    return judge.judge(course, "goodput", profile), course, judge


def verdicts(make: Callable[[int], CaseEnvironment], profile: str) -> list[Verdict]:
    return [play(make(commit_seed() + i), profile)[0] for i in range(CASES)]


@pytest.mark.parametrize(
    ("make", "profile", "mean_efficiency", "least_efficiency", "most_switches"),
    [
        (mixed_load, "case", 0.985, 0.95, 36),
        (mixed_load, "none", 0.98, 0.93, 50),
        (by_context, "case", 0.985, 0.96, 36),
        (by_context, "none", 0.98, 0.95, 50),
        (recovery, "case", 0.95, 0.90, 45),
        (recovery, "none", 0.95, 0.87, 50),
    ],
)
def test_it_is_close_to_the_best_mode_of_every_phase_and_switches_little(
    make: Callable[[int], CaseEnvironment],
    profile: str,
    mean_efficiency: float,
    least_efficiency: float,
    most_switches: float,
) -> None:
    found = verdicts(make, profile)
    assert mean(v.efficiency for v in found) >= mean_efficiency
    assert min(v.efficiency for v in found) >= least_efficiency
    assert max(v.switches_per_1000_steps for v in found) <= most_switches


@pytest.mark.parametrize(("profile", "mean_gain", "least_gain"), [("case", 0.015, -0.08), ("none", 0.005, -0.1)])
def test_whatever_a_switch_costs_up_to_50_ms_it_beats_the_best_fixed_mode_on_the_whole(
    profile: str, mean_gain: float, least_gain: float
) -> None:
    gains = [v.efficiency - v.best_fixed_efficiency for v in verdicts(any_switch_cost, profile)]
    assert mean(gains) >= mean_gain
    assert min(gains) >= least_gain


@pytest.mark.parametrize(("profile", "mean_gain", "least_gain"), [("case", -0.04, -0.25), ("none", -0.075, -0.3)])
def test_where_a_switch_costs_300_ms_it_makes_a_handful(profile: str, mean_gain: float, least_gain: float) -> None:
    found = verdicts(dear_switches, profile)
    gains = [v.efficiency - v.best_fixed_efficiency for v in found]
    assert max(v.switches_per_1000_steps for v in found) <= 6
    assert mean(gains) >= mean_gain
    assert min(gains) >= least_gain


def test_in_a_settled_phase_no_fixed_mode_is_a_hundredth_faster_at_the_same_batch_sizes() -> None:
    settled: list[float] = []
    for i in range(CASES):
        case = mixed_load(commit_seed() + i, 3_000, (600, 1_100))
        verdict, course, judge = play(case, "case")
        start = 0
        for phase in verdict.phases:
            if phase.settled_efficiency is not None:
                settled.append(against_fixed(case, course, judge, start, phase))
            start += phase.steps
    assert mean(e >= 0.99 for e in settled) >= 0.9
    assert min(settled) >= 0.95


def against_fixed(case: CaseEnvironment, course: Course, judge: Judge, start: int, phase: PhaseVerdict) -> float:
    """Time in which the best fixed mode would have made the same tokens at each batch size, over the time taken.

    Without "at each batch size" a mode may win by the number of its tokens in small batches, where the load goes by
    steps whatever they bring: there even the best mode at every batch size may be hundredths behind a fixed one.
    """
    steps = np.arange(start + SETTLED_FROM_STEP, start + phase.steps)
    sizes = np.array([padded_size(case.graph_batch_sizes, case.loads[i].batch_size) for i in steps])
    ms, tokens = case.ms_by_mode(), case.tokens_by_mode()
    needed_ms = np.zeros(len(case.modes))
    for size in np.unique(sizes):
        at = steps[sizes == size]
        made = sum(course.tokens[i] for i in at)
        needed_ms += made * ms[at].sum(axis=0) / tokens[at].sum(axis=0)
    return float(needed_ms.min() / sum(course.step_ms[i] for i in steps))
