"""What `goodput` makes of the cases, at the default interval, and of cases that were not there when it was written."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import groupby
from pathlib import Path
from statistics import mean

import pytest

from support.fresh_cases import by_context, dear_switches, mixed_load, recovery
from support.small_cases import load_with_runs, small_case
from trimtab.replay.simulation.case_file import read_case
from trimtab.replay.simulation.case_profiles import case_profile
from trimtab.replay.simulation.cases import CaseEnvironment
from trimtab.replay.simulation.drivers import Course
from trimtab.replay.simulation.efficiency import Judge, Verdict
from trimtab.replay.simulation.trial import parse_policy, try_policy

CASES = Path(__file__).parents[1] / "data" / "cases"
M01, M02, M03 = "m01_h200_8b_mixed_load", "m02_h200_32b_mixed_load", "m03_h200_8b_context"
C01, C04 = "c01_flap_at_pivot", "c04_recover_from_plain"


@cache
def case(name: str) -> tuple[CaseEnvironment, Judge]:
    read = read_case(CASES / f"{name}.jsonl")
    return read, Judge(read)


def play(played: CaseEnvironment, judge: Judge, profile: str) -> tuple[Verdict, Course]:
    told = case_profile(played) if profile == "case" else None
    course = try_policy(played, parse_policy("goodput"), told)
    return judge.judge(course, "goodput", profile), course


@cache
def result(name: str, profile: str) -> tuple[Verdict, Course]:
    return play(*case(name), profile)


@pytest.mark.parametrize(
    ("name", "profile", "efficiency", "switches_per_1000_steps"),
    [
        (M01, "case", 0.985, 36),
        (M01, "none", 0.965, 50),
        (M02, "case", 0.985, 36),
        (M02, "none", 0.97, 50),
        (M03, "case", 0.985, 36),
        (M03, "none", 0.98, 50),
        (C01, "case", 0.985, 1000 * 22 / 1500),
        (C01, "none", 0.985, 1000 * 22 / 1500),
        (C04, "case", 0.93, 1000 * 54 / 1200),
        (C04, "none", 0.93, 1000 * 54 / 1200),
    ],
)
def test_it_reaches_the_efficiency_within_the_switches(
    name: str, profile: str, efficiency: float, switches_per_1000_steps: float
) -> None:
    verdict, _ = result(name, profile)
    assert verdict.efficiency >= efficiency
    assert verdict.switches_per_1000_steps <= switches_per_1000_steps


@pytest.mark.parametrize("name", [M01, M02, M03, C01])
def test_in_a_settled_phase_it_is_never_a_hundredth_below_the_best_fixed_mode(name: str) -> None:
    verdict, _ = result(name, "case")
    settled = [phase.settled_efficiency for phase in verdict.phases if phase.settled_efficiency is not None]
    assert settled
    assert min(settled) >= 0.99


@pytest.mark.parametrize("profile", ["case", "none"])
def test_c01_at_the_pivot_it_settles_instead_of_flapping(profile: str) -> None:
    verdict, course = result(C01, profile)
    modes = course.modes
    assert verdict.switches <= 24
    assert sum(modes[i] != modes[i - 1] for i in range(1_000, 1_500)) <= 8
    assert verdict.efficiency >= 0.97 * verdict.best_fixed_efficiency


@pytest.mark.parametrize("profile", ["case", "none"])
def test_c04_it_comes_back_from_plain_and_probes_little_where_plain_is_right(profile: str) -> None:
    verdict, course = result(C04, profile)
    steps = {str(phase): [m.steps for m in course.modes[300 * phase : 300 * phase + 300]] for phase in range(4)}
    assert verdict.efficiency >= 1.2 * verdict.best_fixed_efficiency
    assert verdict.switches <= 60
    for high in ("1", "3"):
        assert next(i for i, k in enumerate(steps[high]) if k >= 3) <= 60
        assert mean(k == 7 for k in steps[high][100:]) > 0.95
    assert next(i for i, k in enumerate(steps["2"]) if k <= 1) <= 60
    assert mean(k > 0 for k in steps["2"]) <= 0.25


FRESH: dict[str, tuple[Callable[[int], CaseEnvironment], float, float, float, float]] = {
    # Mean and smallest efficiency with a profile, then without.
    "mixed loads": (mixed_load, 0.985, 0.975, 0.97, 0.95),
    "contexts": (by_context, 0.985, 0.975, 0.97, 0.95),
    "recoveries": (recovery, 0.94, 0.92, 0.93, 0.90),
}


@pytest.mark.parametrize("family", FRESH)
def test_it_does_as_well_on_cases_from_fresh_seeds(family: str) -> None:
    make, mean_with, least_with, mean_without, least_without = FRESH[family]
    cases = [make(seed) for seed in range(20_261_201, 20_261_205)]
    for profile, mean_wanted, least_wanted, most_switches in (
        ("case", mean_with, least_with, 36),
        ("none", mean_without, least_without, 50),
    ):
        verdicts = [play(fresh, Judge(fresh), profile)[0] for fresh in cases]
        assert mean(v.efficiency for v in verdicts) >= mean_wanted
        assert min(v.efficiency for v in verdicts) >= least_wanted
        assert max(v.switches_per_1000_steps for v in verdicts) <= most_switches


@pytest.mark.parametrize("profile", ["case", "none"])
def test_where_a_switch_is_dear_it_learns_that_from_the_first_ones_and_stops(profile: str) -> None:
    cases = [dear_switches(seed) for seed in range(20_261_211, 20_261_216)]
    verdicts = [play(fresh, Judge(fresh), profile)[0] for fresh in cases]
    assert max(v.switches_per_1000_steps for v in verdicts) <= 5
    # A handful of switches of 300 ms in half a minute: that is what there is to lose.
    assert mean(v.efficiency - v.best_fixed_efficiency for v in verdicts) >= -0.08


@pytest.mark.parametrize("name", [M01, M02])
def test_where_a_switch_costs_as_much_as_twenty_steps_it_still_beats_every_fixed_mode(name: str) -> None:
    cheap, _ = case(name)
    dear = CaseEnvironment(cheap.name, cheap.modes, cheap.start, cheap.cost_rows, cheap.loads, 200.0)
    verdict, _ = play(dear, Judge(dear), "case")
    assert verdict.efficiency >= verdict.best_fixed_efficiency
    assert verdict.switches_per_1000_steps <= 4


def test_where_an_interval_has_few_steps_the_looks_out_of_plain_get_rarer_all_the_same() -> None:
    # At 30 ms a step a look takes a whole interval: the engine's way back to plain is no new state.
    loads = [load_with_runs([1] * 4 + [0] * 60)] * 1_200
    played = small_case(loads, {0: 30.0, 1: 45.0, 3: 75.0})
    course = play(played, Judge(played), "case")[1]
    stays = [len(list(group)) for mode, group in groupby(course.modes) if mode.steps == 0]
    assert stays[-2] > 3 * stays[1]
