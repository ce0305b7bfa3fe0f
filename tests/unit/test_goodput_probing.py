"""Probes: whether, when, how long, and where in the interval."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.domain import TableEntry, speculate
from trimtab.policies.probing import Price, Probe, ProbeClock, dwell_for, plan_probe, worth_of_a_look
from trimtab_sglang.lease import Lease, LeaseMachine


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000), last_step=st.integers(0, 5_000), steps=st.integers(1, 120), dwell=st.integers(4, 16)
)
def test_exactly_one_block_of_the_interval_runs_the_probe(seed: int, last_step: int, steps: int, dwell: int) -> None:
    probe = plan_probe(0, 1, dwell, steps, last_step, seed)
    if steps < 2 * dwell:
        assert probe.probability == 1.0
        return
    first = (last_step // dwell + 1) * dwell
    modes = follow(probe, last_step, first + steps // dwell * dwell)
    inside = modes[first - last_step - 1 : first - last_step - 1 + steps // dwell * dwell]
    assert inside.count(speculate(1)) == dwell
    assert probe.probability == pytest.approx(1 / (steps // dwell))


def follow(probe: Probe, last_step: int, until: int) -> list[object]:
    """Modes of an engine that adopts the probe's lease after `last_step`."""
    machine = LeaseMachine()
    machine.step = last_step
    entry = TableEntry(1, speculate(3), 1 - probe.probability, ((speculate(1), probe.probability),))
    machine.adopt(Lease(1, (entry,), exploration_seed=probe.seed, exploration_dwell_steps=probe.dwell))
    return [machine.choose(4) for _ in range(until - last_step)]


def test_every_block_is_the_one_equally_often() -> None:
    places = [0, 0, 0, 0]
    for seed in range(0, 400_000, 1_000):
        probe = plan_probe(0, 1, 8, 32, 0, seed)
        modes = follow(probe, 0, 40)[7:39]
        places[modes.index(speculate(1)) // 8] += 1
    assert min(places) > 70


@pytest.mark.parametrize(("batch_size", "dwell"), [(1, 16), (4, 9), (8, 5), (256, 5)])
def test_small_batches_are_looked_at_longer(batch_size: int, dwell: int) -> None:
    assert dwell_for(batch_size) == dwell


@pytest.mark.parametrize(
    ("gain", "sd", "worth"),
    [(0.0, 0.2, 0.06), (-0.1, 0.2, 0.03), (-0.3, 0.05, 0.0), (-0.01, 0.01, 0.0), (-1.0, 0.3, 0.0), (0.0, 0.0, 0.0)],
)
def test_a_look_is_worth_what_it_may_change(gain: float, sd: float, worth: float) -> None:
    assert worth_of_a_look(gain, sd, 8, 8) == pytest.approx(worth, abs=0.02)


def test_near_ties_that_a_probe_could_not_tell_apart_are_left_alone() -> None:
    assert worth_of_a_look(-0.005, 0.02, 16, 1) < 0.002 < worth_of_a_look(-0.005, 0.2, 16, 1)


def price(**fields: float) -> Price:
    return Price(
        **{"steps": 6, "step_ms": 10.0, "loss": 0.3, "switch_ms": 0.5, "gain": 0.1, "stay_ms": 5_000.0, **fields}  # type: ignore[arg-type]
    )


def test_a_probe_has_to_pay_for_two_switches_and_the_worse_mode() -> None:
    assert price().cost_ms == pytest.approx(1.0 + 18.0)
    assert price().pays
    assert not price(switch_ms=300.0).pays
    assert price(switch_ms=300.0, stay_ms=60_000.0).pays
    assert price(loss=-0.2).cost_ms == pytest.approx(1.0)


def test_probes_take_at_most_a_twentieth_of_the_time() -> None:
    assert price().wait_ms == pytest.approx(20 * 19.0)


def test_where_switches_are_dear_the_whole_interval_is_the_probe() -> None:
    assert not price().favours_whole(25)
    assert price(switch_ms=300.0).favours_whole(25)


def test_the_wait_grows_with_the_age_of_the_present_state() -> None:
    clock, cheap = ProbeClock(2), price(loss=0.0)
    waits = []
    for _ in range(4_000):
        clock.advance(0, 1, 10.0)
        if clock.due(0, cheap):
            waits.append(clock.state()["since_steps"])
            clock.probed()
    assert waits[:6] == [32] * 6
    assert waits == sorted(waits)
    assert waits[-1] > 300
    clock.changed()
    assert clock.age(0) == 0
