"""The model of cost and acceptance: luck is fixed before anybody chooses, cost is what was measured."""

from __future__ import annotations

import csv
from collections import defaultdict
from importlib import resources
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.domain import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, Mode, speculate
from trimtab.errors import DataError
from trimtab.replay.environment import MAX_DEPTH, Acceptance, CostTable, load_of, padded_size
from trimtab.replay.step_times import iron, isotonic, read_step_times

RUN_HISTS = st.lists(st.integers(0, 40), min_size=MAX_DEPTH + 1, max_size=MAX_DEPTH + 1).filter(any)
MEASURED = [("8B", "fa3"), ("8B", "triton"), ("32B", "fa3")]


@given(RUN_HISTS)
def test_a_histogram_of_runs_survives_the_way_through_a_load(run_hist: list[int]) -> None:
    load = load_of(run_hist)
    assert load.batch_size == sum(run_hist)
    assert load.run_hist == tuple(run_hist)
    assert sorted(load.runs) == list(load.runs)
    assert len(load.runs) == load.batch_size


@given(RUN_HISTS, st.integers(0, MAX_DEPTH), st.integers(0, MAX_DEPTH))
def test_fewer_steps_are_the_truncation_of_more_steps(run_hist: list[int], one: int, other: int) -> None:
    load, (few, many) = load_of(run_hist), sorted((one, other))
    assert load.counts(few).offered == load.counts(many).offered[:few]
    assert load.counts(few).accepted == load.counts(many).accepted[:few]


@given(RUN_HISTS, st.integers(0, MAX_DEPTH + 4))
def test_each_request_accepts_its_run_up_to_the_steps_and_emits_one_token_more(run_hist: list[int], steps: int) -> None:
    load = load_of(run_hist)
    counts = load.counts(steps)
    assert len(counts.offered) == len(counts.accepted) == steps
    assert sum(counts.accepted) == sum(min(run, steps) for run in load.runs)
    assert load.emitted(steps) == load.batch_size + sum(counts.accepted)
    assert all(offered >= accepted for offered, accepted in zip(counts.offered, counts.accepted, strict=True))
    assert counts.offered[1:] == counts.accepted[:-1]


def test_the_luck_of_a_step_depends_on_seed_and_step_alone() -> None:
    first, again, other = Acceptance(7), Acceptance(7), Acceptance(8)
    forwards = [first.run_hist([0.8] * MAX_DEPTH, 64, step) for step in range(50)]
    backwards = [again.run_hist([0.8] * MAX_DEPTH, 64, step) for step in reversed(range(50))]
    assert forwards == backwards[::-1]
    assert forwards != [other.run_hist([0.8] * MAX_DEPTH, 64, step) for step in range(50)]
    assert len(set(forwards)) > 40


def test_a_request_that_joins_leaves_the_luck_of_the_others_alone() -> None:
    luck = Acceptance(1)
    alone = np.array(luck.run_hist([0.6] * MAX_DEPTH, 30, 5))
    together = np.array(luck.run_hist([0.6] * MAX_DEPTH, 31, 5))
    assert (together - alone).min() >= 0


@pytest.mark.parametrize("conditional", [(0.9,) * 8, (0.3,) * 8, (0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 0.9, 0.9)])
def test_drafts_are_accepted_with_their_conditional_probabilities(conditional: tuple[float, ...]) -> None:
    luck = Acceptance(3)
    reach = np.sum([load_of(luck.run_hist(conditional, 200, step)).reach for step in range(500)], axis=0)
    for depth, probability in enumerate(conditional):
        if reach[depth] > 2000:
            assert reach[depth + 1] / reach[depth] == pytest.approx(probability, abs=0.04)


def test_certain_drafts_are_always_accepted_and_impossible_ones_never() -> None:
    luck = Acceptance(0)
    assert luck.run_hist([1.0] * MAX_DEPTH, 9, 0) == (*[0] * MAX_DEPTH, 9)
    assert luck.run_hist([0.0] * MAX_DEPTH, 9, 0) == (9, *[0] * MAX_DEPTH)


def short_prompt_medians(model: str, backend: str) -> dict[tuple[Mode, int], float]:
    names = {"warm_plain": PLAIN_WARM, "cold_plain": PLAIN_COLD, "engine_without_speculation": PLAIN_NATIVE}
    text = resources.files("trimtab.data").joinpath("step_time_h200.csv").read_text()
    cells = defaultdict(list)
    for row in csv.DictReader(text.splitlines()):
        if (row["model"], row["attention_backend"], row["prompt_tokens"]) == (model, backend, "64"):
            mode = names.get(row["mode"]) or speculate(int(row["num_steps"]))
            cells[mode, int(row["batch_size"])].append(float(row["step_ms_p50"]))
    return {cell: median(values) for cell, values in cells.items() if cell[1] != 225}


@pytest.mark.parametrize(("model", "backend"), MEASURED)
def test_the_cost_table_gives_what_was_measured(model: str, backend: str) -> None:
    table = CostTable.measured(model, backend)
    measured = short_prompt_medians(model, backend)
    errors = [abs(table.step_ms(mode, size) / ms - 1) for (mode, size), ms in measured.items()]
    # Engine starts differ by up to 9%; only cells that break the order of their neighbours are moved.
    assert max(errors) < 0.09
    assert np.median(errors) == 0.0 or np.median(errors) < 1e-9


@pytest.mark.parametrize(
    ("mode", "size", "ms"),
    [
        (PLAIN_WARM, 64, 7.411),
        (PLAIN_COLD, 64, 6.0),
        (PLAIN_NATIVE, 64, 5.84),
        (speculate(3), 64, 10.274),
        (speculate(7), 243, 58.356),
        # The median of two engine starts.
        (speculate(1), 128, (11.326 + 10.87) / 2),
    ],
)
def test_a_measured_cell_costs_its_median_over_runs(mode: Mode, size: int, ms: float) -> None:
    assert CostTable.measured().step_ms(mode, size) == pytest.approx(ms)


@pytest.mark.parametrize(("model", "backend"), MEASURED)
def test_more_requests_and_more_steps_never_cost_less(model: str, backend: str) -> None:
    table = CostTable.measured(model, backend)
    ladder = [PLAIN_WARM, *(speculate(steps) for steps in range(1, MAX_DEPTH + 1))]
    ms = np.array([[table.step_ms(mode, size) for mode in ladder] for size in range(1, 300)])
    assert np.diff(ms, axis=0).min() >= -1e-9
    assert np.diff(ms, axis=1).min() >= -1e-9
    for size in range(1, 300):
        assert table.step_ms(PLAIN_COLD, size) <= table.step_ms(PLAIN_WARM, size)


def test_a_batch_costs_what_the_next_captured_size_costs() -> None:
    table = CostTable.measured()
    assert table.step_ms(speculate(3), 65) == table.step_ms(speculate(3), 128) == table.step_ms(speculate(3), 100)
    assert table.step_ms(speculate(3), 486) == pytest.approx(2 * table.step_ms(speculate(3), 243))
    assert [padded_size(table.graph_batch_sizes, size) for size in (1, 3, 128, 129, 300)] == [1, 4, 128, 243, 300]


def test_steps_that_were_not_measured_lie_between_their_neighbours() -> None:
    table = CostTable.measured()
    for size in (1, 16, 128):
        three, four, five = (table.step_ms(speculate(k), size) for k in (3, 4, 5))
        assert four == pytest.approx((three + five) / 2)


def test_context_adds_what_a_run_with_long_prompts_took_more() -> None:
    table = CostTable.measured()
    for size, mode, ms in [(16, speculate(3), 8.657), (16, PLAIN_WARM, 7.469), (4, speculate(1), 6.152)]:
        assert table.step_ms(mode, size, 4000) == pytest.approx(ms, rel=0.05)
    assert table.step_ms(PLAIN_WARM, 16, 64) == table.step_ms(PLAIN_WARM, 16)
    # Nobody measured long prompts with the larger model: context costs nothing there rather than a guess.
    assert CostTable.measured("32B").step_ms(PLAIN_WARM, 16, 4000) == CostTable.measured("32B").step_ms(PLAIN_WARM, 16)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda: CostTable.measured("70B", "fa3"),
            "nothing was measured for 70B fa3; there is: 32B fa3, 8B fa3",
        ),
        (
            lambda: CostTable.measured("32B").step_ms(PLAIN_NATIVE, 1),
            "no cost for plain_native; it has: plain_cold",
        ),
        (lambda: CostTable.measured().step_ms(speculate(9), 1), r"has no cost for speculate\(9\)"),
    ],
)
def test_what_was_not_measured_is_said(ask: object, message: str) -> None:
    assert callable(ask)
    with pytest.raises(DataError, match=message):
        ask()


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=12))
def test_ironing_keeps_the_mean_and_never_falls(values: list[float]) -> None:
    fitted = isotonic(np.array(values))
    assert np.diff(fitted).min(initial=0.0) >= 0
    assert fitted.sum() == pytest.approx(sum(values))
    np.testing.assert_allclose(isotonic(fitted), fitted)


def test_ironing_a_table_leaves_what_is_in_order_alone() -> None:
    np.testing.assert_allclose(isotonic(np.array([1.0, 3.0, 2.0, 4.0])), [1.0, 2.5, 2.5, 4.0])
    ordered = np.array([[1.0, 2.0], [1.5, 3.0]])
    np.testing.assert_allclose(iron(ordered), ordered)
    crossed = iron(np.array([[1.0, 2.0, 5.0], [1.5, 1.2, 3.0]]))
    assert np.diff(crossed, axis=0).min() >= -1e-9
    assert np.diff(crossed, axis=1).min() >= -1e-9


def test_cells_taken_while_requests_queued_are_left_out() -> None:
    assert 225 not in read_step_times("8B", "fa3").batch_sizes
