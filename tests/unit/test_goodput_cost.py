"""Step times: predicted from a profile or from nothing, corrected by what was seen."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from trimtab.domain import speculate
from trimtab.policies.cost import MOST_CELLS, CostModel, Observation, Outlook, Place
from trimtab.policies.cost_features import context_knot
from trimtab.policies.row_reader import context_class
from trimtab.replay.environment import CostTable

STEPS = (0, 1, 2, 3, 5, 7)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
PLACES = [Place(math.log2(size), 0.0, 0.0) for size in SIZES]


def observe(model: CostModel, band: int, mode: int, ratio: float, rows: int = 25, context: float = 0.0) -> None:
    observation = Observation(rows, math.log(ratio), math.log2(SIZES[band]), context_knot(context), 0.0)
    model.observe({(band, mode, context_class(context / SIZES[band])): observation}, rows)


def learnt(ms: Callable[[int, int], float], seen: list[tuple[int, int]], with_profile: bool = False) -> Outlook:
    """What is expected everywhere after the cells `seen` (band, mode) were timed."""
    model = CostModel(STEPS, len(SIZES), 128, with_profile)
    for _ in range(3):
        for band, mode in seen:
            observe(model, band, mode, ms(SIZES[band], STEPS[mode]))
    return model.predict(PLACES, 0)


@pytest.fixture(scope="module")
def h200() -> Callable[[int, int], float]:
    table = CostTable.measured("8B", "fa3")
    return lambda size, steps: table.step_ms(speculate(steps), size)


def test_what_was_measured_is_believed(h200: Callable[[int, int], float]) -> None:
    everywhere = [(band, mode) for band in range(len(SIZES)) for mode in range(len(STEPS))]
    outlook = learnt(h200, everywhere)
    for band, mode in everywhere:
        assert math.exp(outlook.log_ratio[band, mode]) == pytest.approx(h200(SIZES[band], STEPS[mode]), rel=0.03)


def test_two_modes_in_two_bands_predict_the_others_before_they_ever_ran(h200: Callable[[int, int], float]) -> None:
    outlook = learnt(h200, [(0, 3), (0, 1), (7, 3), (7, 1)])
    for band, size in enumerate(SIZES):
        for mode, steps in enumerate(STEPS):
            assert math.exp(outlook.log_ratio[band, mode]) == pytest.approx(h200(size, steps), rel=0.45)
    between = np.array([[h200(size, steps) for steps in STEPS] for size in SIZES])
    misses = np.abs(outlook.log_ratio - np.log(between))
    assert np.median(misses) < 0.12
    assert (misses < 2.5 * np.sqrt(outlook.variance)).all()


@pytest.mark.parametrize("scale", [0.05, 1.0, 40.0])
def test_the_scale_of_the_hardware_does_not_matter(h200: Callable[[int, int], float], scale: float) -> None:
    outlook = learnt(lambda size, steps: scale * h200(size, steps), [(3, 3)])
    assert math.exp(outlook.log_ratio[3, 3]) == pytest.approx(scale * h200(8, 3), rel=0.02)
    assert (np.diff(outlook.log_ratio[3]) > 0).all()


def test_a_mode_that_ran_is_known_better_than_one_that_did_not(h200: Callable[[int, int], float]) -> None:
    outlook = learnt(h200, [(3, 3)])
    apart = np.sqrt(outlook.difference_variance(3, 3))
    assert apart[3] == 0.0
    assert apart[2] < apart[1] < apart[0]
    assert apart[0] > 0.1
    both = learnt(h200, [(3, 3), (3, 0)])
    assert np.sqrt(both.difference_variance(3, 3))[0] < 0.03


def test_with_a_profile_nothing_has_to_be_seen_and_what_is_seen_corrects_it() -> None:
    untouched = learnt(lambda size, steps: 1.0, [], with_profile=True)
    assert (untouched.log_ratio == 0.0).all()
    assert (np.sqrt(untouched.difference_variance(3, 3)) < 0.15).all()
    slow_wide = learnt(lambda size, steps: 1.3 if steps >= 5 else 1.0, [(3, 4), (3, 3)], with_profile=True)
    assert math.exp(slow_wide.log_ratio[3, 4]) == pytest.approx(1.3, rel=0.05)
    assert math.exp(slow_wide.log_ratio[3, 5]) > 1.1
    assert math.exp(slow_wide.log_ratio[3, 3]) == pytest.approx(1.0, abs=0.03)


def test_what_slows_all_modes_down_is_not_held_against_the_one_that_runs() -> None:
    model = CostModel(STEPS, len(SIZES), 128, with_profile=True)
    for _ in range(40):
        observe(model, 3, 3, 1.0)
        observe(model, 3, 4, 1.0)
    before = model.predict(PLACES, 0).log_ratio
    for i in range(60):
        observe(model, 3, 3, 1.0 + 0.002 * i)
    after = model.predict(PLACES, 0).log_ratio
    assert after[3, 3] - before[3, 3] > 0.05
    assert after[3, 4] - before[3, 4] > 0.6 * (after[3, 3] - before[3, 3])


def test_a_longer_context_is_no_drift() -> None:
    """Requests that grow must not make a mode look cheap that is timed for the first time beside them."""
    model = CostModel(STEPS, len(SIZES), 128, with_profile=True)
    for _ in range(10):
        observe(model, 3, 3, 1.0, context=8 * 300)
        observe(model, 3, 3, 1.3, context=8 * 5_000)
    for tokens in range(300, 5_000, 100):
        model.predict(PLACES, 0)
        slower = 1.0 + 0.3 * math.log(tokens / 300) / math.log(5_000 / 300)
        observe(model, 3, 3, slower, context=8 * tokens)
    observe(model, 0, 4, 1.0)
    assert math.exp(model.predict(PLACES, 0).log_ratio[0, 4]) == pytest.approx(1.0, abs=0.06)


def test_a_drift_goes_back_to_nothing_when_nothing_speaks_for_it() -> None:
    model = CostModel(STEPS, len(SIZES), 128, with_profile=True)
    for _ in range(40):
        observe(model, 3, 3, 1.0)
    before = model.predict(PLACES, 0).log_ratio[3, 3]
    for _ in range(6):
        observe(model, 3, 3, 1.2)
    slow = model.predict(PLACES, 0).log_ratio[3, 3] - before
    assert slow > 0.1
    for _ in range(300):
        model.observe({}, 20)
    assert model.predict(PLACES, 0).log_ratio[3, 3] - before < 0.4 * slow


def test_a_mode_that_was_timed_while_all_were_slow_is_put_right_later() -> None:
    model = CostModel(STEPS, len(SIZES), 128, with_profile=True)
    for ratio in [1.0] * 40 + [1.15] * 10:
        observe(model, 3, 3, ratio)
    for _ in range(3):
        observe(model, 3, 4, 1.15)
    for _ in range(10):
        observe(model, 3, 3, 1.0)
    outlook = model.predict(PLACES, 0).log_ratio[3]
    assert outlook[4] - outlook[3] < 0.5 * math.log(1.15)


def test_a_step_or_two_say_little() -> None:
    """The first steps behind a prefill may take anything."""
    after = {}
    for rows in (1, 25):
        model = CostModel(STEPS, len(SIZES), 128, with_profile=True)
        for _ in range(10):
            observe(model, 3, 3, 1.0)
        observe(model, 3, 2, 2.0, rows)
        after[rows] = math.exp(model.predict(PLACES, 0).log_ratio[3, 2])
    assert after[1] < 1.1 < 1.3 < after[25]


@pytest.mark.parametrize(("rows", "believed_at"), [(1, 2), (8, 1)])
def test_a_hundredth_of_the_time_is_doubted_of_one_row_and_believed_of_a_few(rows: int, believed_at: int) -> None:
    model = CostModel(STEPS, len(SIZES), 128, with_profile=True)
    for _ in range(10):
        observe(model, 3, 3, 1.0)
        observe(model, 3, 4, 1.0)
    found = []
    for _ in range(2):
        observe(model, 3, 4, 0.01, rows)
        found.append(math.exp(model.predict(PLACES, 0).log_ratio[3, 4]) < 0.02)
    assert found.index(True) + 1 == believed_at
    assert math.exp(model.predict(PLACES, 0).log_ratio[3, 3]) == pytest.approx(1.0, abs=0.05)


def test_rows_that_differ_say_less_than_rows_that_agree() -> None:
    found = []
    for scatter in (0.0, 4.0):
        model = CostModel(STEPS, len(SIZES), 128, with_profile=True)
        model.observe({(3, 3, 0): Observation(8, math.log(1.5), 3.0, 0.0, 0.0, scatter)}, 8)
        found.append(model.predict(PLACES, 0))
    agree, differ = found
    assert agree.log_ratio[3, 3] > 1.1 * differ.log_ratio[3, 3]
    assert agree.variance[3, 3] < differ.variance[3, 3]


def test_longer_contexts_cost_more_in_every_mode_once_one_of_them_showed_it() -> None:
    model = CostModel(STEPS, len(SIZES), 128, with_profile=False)
    for _ in range(4):
        observe(model, 4, 3, 6.5, context=16 * 300)
        observe(model, 4, 0, 5.7, context=16 * 300)
        observe(model, 4, 3, 8.6, context=16 * 5_000)
    short, long = (
        model.predict([Place(4.0, context_knot(16 * each), 0.0)] * len(SIZES), context_class(each)).log_ratio[4]
        for each in (300, 5_000)
    )
    assert math.exp(long[0] - short[0]) == pytest.approx(8.6 / 6.5, rel=0.12)


def test_a_step_a_hundred_times_slower_is_a_cost() -> None:
    model = CostModel(STEPS, len(SIZES), 128, with_profile=True)
    for _ in range(4):
        observe(model, 3, 4, 100.0)
    assert math.exp(model.predict(PLACES, 0).log_ratio[3, 4]) > 50


def test_state_goes_through_plain_values_and_is_refused_if_it_is_of_others(h200: Callable[[int, int], float]) -> None:
    model = CostModel(STEPS, len(SIZES), 128, with_profile=False)
    observe(model, 3, 3, h200(8, 3))
    observe(model, 4, 1, h200(16, 1))
    again = CostModel(STEPS, len(SIZES), 128, with_profile=False)
    again.set_state(model.state())
    assert (again.predict(PLACES, 0).log_ratio == model.predict(PLACES, 0).log_ratio).all()
    with pytest.raises(ValueError, match="no band 3 with mode 3"):
        CostModel((0, 1), 2, 8, with_profile=False).set_state(model.state())
    with pytest.raises(ValueError, match="do not belong to 1 cells"):
        again.set_state({**model.state(), "cells": model.state()["cells"][:1]})


def test_the_oldest_cell_makes_room() -> None:
    model = CostModel(STEPS, len(SIZES), 128, with_profile=True)
    for kind in range(MOST_CELLS + 10):
        model.observe({(0, 0, kind): Observation(5, 0.0, 0.0, 0.0, 0.0)}, 5)
    assert [model.knows((0, 0, kind)) for kind in (0, 9, 10, MOST_CELLS + 9)] == [False, False, True, True]
    assert len(model.state()["cells"]) == MOST_CELLS
    assert np.isfinite(model.predict(PLACES, MOST_CELLS).log_ratio).all()


def test_another_context_starts_from_what_the_nearest_one_showed() -> None:
    model = CostModel(STEPS, len(SIZES), 128, with_profile=True)
    for _ in range(10):
        observe(model, 3, 3, 1.0)
        observe(model, 3, 4, 1.2)
    near, far = (model.predict(PLACES, kind) for kind in (1, 8))
    assert near.log_ratio[3, 4] - near.log_ratio[3, 3] == pytest.approx(math.log(1.2), abs=0.03)
    assert near.difference_variance(3, 3)[4] < far.difference_variance(3, 3)[4]


def test_native_plain_is_believed_a_little_faster_than_warm_until_it_ran() -> None:
    model = CostModel((0, *STEPS), len(SIZES), 128, with_profile=False, native=0)
    observe(model, 3, 1, 5.0)
    outlook = model.predict(PLACES, 0).log_ratio[3]
    assert 0.9 < math.exp(outlook[0] - outlook[1]) < 0.98
    for _ in range(4):
        observe(model, 3, 0, 5.5)
    outlook = model.predict(PLACES, 0).log_ratio[3]
    assert math.exp(outlook[0] - outlook[1]) > 1.05
