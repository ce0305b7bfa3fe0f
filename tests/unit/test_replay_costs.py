"""What steps and switches of a trace cost: as profiles say it, where they say nothing, and how sure that is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.replay_traces import MS, Recorder, engine, flat_profile, prepared, write
from trimtab.domain import modes_of, speculate
from trimtab.errors import DataError
from trimtab.policies.profile import ContextCost, CostProfile, ProfilePoint, profile_of
from trimtab.replay.counterfactual.replay import ReplaySettings
from trimtab.replay.environment import CostTable
from trimtab.replay.profiles.table import ProfileTable
from trimtab.replay.trace_model.unmeasured_costs import completed

STEPS = (0, 1, 2, 3, 5, 7)
MODES = modes_of(STEPS)


def profile_by_context() -> CostProfile:
    points = [
        ProfilePoint(size, {mode: 5 + size / 8 + mode.steps + context / 100 for mode in MODES[:4]}, limit)
        for size in (1, 16, 64)
        for context, limit in ((100, 100), (900, 500), (2_000, None))
        if size == 16 or limit is None
    ]
    return profile_of(points, ContextCost(300, 1e-4, 2e-4))


@given(
    st.integers(1, 100),
    st.one_of(st.none(), st.floats(1, 5_000)),
    st.one_of(st.none(), st.floats(1, 9_000)),
)
@settings(max_examples=200)
def test_whole_columns_cost_what_single_steps_cost(size: int, context: float | None, longest: float | None) -> None:
    profile = profile_by_context()
    table = ProfileTable(profile, MODES)
    sizes = np.array([size])
    columns = [np.array([np.nan if value is None else value]) for value in (context, longest)]
    found = table.step_ms(table.cells(sizes), sizes, *columns)[0]
    assert found == pytest.approx([profile.step_ms(mode, size, context, longest) for mode in MODES])


def measured(model: str, backend: str) -> tuple[CostTable, list[int]]:
    table = CostTable.measured(model, backend)
    return table, list(table.graph_batch_sizes)


@pytest.mark.parametrize(("model", "backend"), [("8B", "fa3"), ("32B", "fa3"), ("8B", "triton")])
@pytest.mark.parametrize("seen", [(0, 1, 2, 3), (0, 3), (1, 3), (0, 1)])
def test_what_was_measured_stays_and_the_rest_is_about_as_far_off_as_it_says(
    model: str, backend: str, seen: tuple[int, ...]
) -> None:
    table, sizes = measured(model, backend)
    profile = profile_of(
        ProfilePoint(size, {speculate(k): table.step_ms(speculate(k), size) for k in seen}) for size in sizes
    )
    rows = np.array([[100.0 if k in seen else 0.0 for k in STEPS] for _ in sizes])
    found = completed(profile, MODES, rows)
    truth = np.log([[table.step_ms(mode, size) for mode in MODES] for size in sizes])
    off = np.log([[found.profile.step_ms(mode, size) for mode in MODES] for size in sizes]) - truth
    sd = np.sqrt((found.sources**2).sum(axis=2) + found.own_sd**2)
    known = rows > 0
    assert off[known] == pytest.approx(0.0, abs=1e-12)
    assert (sd[known] == 0).all()
    assert np.sqrt(np.mean((off / np.where(known, 1, sd))[~known] ** 2)) < 1.8


def test_a_mode_near_those_that_were_measured_is_surer_than_one_far_away() -> None:
    table, sizes = measured("8B", "fa3")
    profile = profile_of(
        ProfilePoint(size, {speculate(k): table.step_ms(speculate(k), size) for k in (1, 3)}) for size in sizes
    )
    found = completed(profile, MODES, np.array([[0.0, 99.0, 0.0, 99.0, 0.0, 0.0]] * len(sizes)))
    sd = np.sqrt((found.sources**2).sum(axis=2) + found.own_sd**2).mean(axis=0)
    between, beyond, far = sd[STEPS.index(2)], sd[STEPS.index(5)], sd[STEPS.index(7)]
    assert between < beyond < far


def alternating(tmp_path: Path, price_ms: float, before: float = 0.0) -> Path:
    """Changes of mode every 20 steps; `before` is the share of their price that the row before pays."""
    rng, recorder = np.random.default_rng(0), Recorder()
    for i in range(4_000):
        steps, first, last = (3, 1)[i // 20 % 2], i % 20 == 0 and i > 0, i % 20 == 19
        more = price_ms * (1 - before) * first + price_ms * before * last
        noise = float(np.exp(0.02 * rng.standard_normal()))
        recorder.step(steps, [1, 2], step_ms=MS[steps] * noise + more)
    return write(tmp_path / "t.parquet", (engine(), recorder.rows))


@pytest.mark.parametrize("before", [0.0, 0.6])
def test_the_price_of_a_switch_is_learnt_from_the_steps_around_it(tmp_path: Path, before: float) -> None:
    with prepared(alternating(tmp_path, 4.0, before), ReplaySettings()) as world:
        price = world.environment.costs.price
    assert price.ms == pytest.approx(4.0, abs=0.3)
    assert 0 < price.sd_ms < 0.5
    assert price.seen == 199


def test_without_a_trace_of_it_a_switch_costs_nothing_and_a_price_that_is_given_holds(tmp_path: Path) -> None:
    path = alternating(tmp_path, 0.0)
    with prepared(path, ReplaySettings()) as world:
        assert world.environment.costs.price.ms == pytest.approx(0.0, abs=0.1)
    with prepared(path, ReplaySettings(switch_ms=7.0)) as world:
        assert (world.environment.costs.price.ms, world.environment.costs.price.sd_ms) == (7.0, 0.0)


def test_a_trace_of_one_mode_cannot_say_what_others_cost_and_asks_for_a_profile(tmp_path: Path) -> None:
    recorder = Recorder()
    for _ in range(50):
        recorder.step(3, [1, 2])
    path = write(tmp_path / "t.parquet", (engine(), recorder.rows))
    with (
        pytest.raises(DataError, match=r"t\.parquet: there is too little to learn from: .* with --profile"),
        prepared(path, ReplaySettings()),
    ):
        pass


def test_a_profile_from_elsewhere_is_set_to_the_level_of_the_trace(tmp_path: Path) -> None:
    recorder = Recorder()
    for i in range(400):
        recorder.step((3, 1)[i // 20 % 2], [1, 2])
    path = write(tmp_path / "t.parquet", (engine(), recorder.rows))
    slow = flat_profile({k: 1.5 * ms for k, ms in MS.items()})
    with prepared(path, ReplaySettings(profile=slow)) as world:
        (stretch,) = world.environment.stretches()
        assert world.environment.costs.level == pytest.approx(1 / 1.5)
    seven = world.environment.modes.index(speculate(7))
    assert stretch.step_ms[:, seven] == pytest.approx(MS[7])
