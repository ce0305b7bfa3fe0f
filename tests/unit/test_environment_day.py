"""The day that the demo plays: seeded, the same for everybody, and with no setting that is right all day."""

from __future__ import annotations

import pytest

from trimtab.domain import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, Mode, speculate
from trimtab.replay.environment import StepLoad
from trimtab.replay.simulation.day import DAY, DAY_MODES, DayEnvironment, Traffic, conditional_acceptance
from trimtab.replay.simulation.demo_table import compare, contenders


def loads_every(ms: float, day: DayEnvironment) -> list[StepLoad]:
    found: list[StepLoad] = []
    while (load := day.load(len(found), len(found) * ms)) is not None:
        found.append(load)
    return found


def test_the_same_seed_gives_the_same_day_and_another_seed_another() -> None:
    one, same, other = (loads_every(20, DayEnvironment(5, seed)) for seed in (3, 3, 4))
    assert one == same
    assert one != other


def test_a_day_ends_on_time_and_passes_through_its_phases_in_order() -> None:
    loads = loads_every(10, DayEnvironment(8))
    assert len(loads) == 800
    assert list(dict.fromkeys(load.phase for load in loads)) == [phase.name for phase in DAY]
    bounds = {phase.name: (phase.fewest, phase.most) for phase in DAY}
    assert all(bounds[load.phase][0] <= load.batch_size <= bounds[load.phase][1] for load in loads)


def test_the_load_at_a_time_does_not_depend_on_the_steps_before() -> None:
    day = DayEnvironment(10)
    early, late = day.load(5, 4000.0), day.load(900, 4000.0)
    assert early is not None
    assert late is not None
    assert (early.batch_size, early.phase) == (late.batch_size, late.phase)


def test_a_mixture_of_easy_and_hard_requests_accepts_more_the_deeper_it_gets() -> None:
    conditional = conditional_acceptance([Traffic(0.9, 0.5), Traffic(0.3, 0.5)])
    assert conditional[0] == pytest.approx(0.6)
    assert conditional[1] == pytest.approx((0.81 + 0.09) / 1.2)
    assert list(conditional) == sorted(conditional)
    assert conditional_acceptance([Traffic(0.7)]) == pytest.approx([0.7] * 8)


def best_mode_by_phase(day: DayEnvironment) -> dict[str, Mode]:
    made: dict[tuple[str, Mode], list[float]] = {}
    for mode in DAY_MODES:
        for load in loads_every(25, day):
            sums = made.setdefault((load.phase, mode), [0.0, 0.0])
            sums[0] += load.emitted(mode.steps)
            sums[1] += day.step_ms(mode, load)
    return {phase.name: max(DAY_MODES, key=lambda m: made[phase.name, m][0] / made[phase.name, m][1]) for phase in DAY}


def test_no_fixed_mode_is_right_all_day() -> None:
    best = best_mode_by_phase(DayEnvironment(30))
    assert best["night agents"] == speculate(7)
    assert best["noon peak"] == PLAIN_WARM
    assert best["extraction jobs"] == speculate(1)
    assert len(set(best.values())) >= 4


def test_the_final_table_names_every_contender_and_gives_all_the_same_day() -> None:
    standings = compare(lambda: DayEnvironment(3, seed=1))
    assert [s.policy for s in standings] == [
        "trimtab", "sglang-ema", "fixed-0", "fixed-1", "fixed-2", "fixed-3", "fixed-5", "fixed-7",
    ]  # fmt: skip
    assert all(s.tokens_per_s > 0 and s.steps > 0 for s in standings)
    assert standings == compare(lambda: DayEnvironment(3, seed=1))
    assert [s.switches for s in standings if s.policy == "fixed-3"] == [0]


def test_kinds_of_plain_have_names_of_their_own_in_the_table() -> None:
    day = DayEnvironment(1, modes=(PLAIN_WARM, PLAIN_COLD, PLAIN_NATIVE))
    assert list(contenders(day)) == ["trimtab", "sglang-ema", "fixed-0", "fixed-plain_cold", "fixed-plain_native"]
