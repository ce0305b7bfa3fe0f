"""What would have been accepted with other numbers of drafts: exact where it can be, and said where it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.replay_traces import Recorder, all_rows, engine, write
from trimtab.domain import speculate
from trimtab.replay.arrays import Floats
from trimtab.replay.trace_model.acceptance import AcceptanceCourse
from trimtab.replay.trace_model.drawn_counts import drawn_reach
from trimtab.replay.trace_model.outcomes import Evidence, Outcomes, outcomes_of
from trimtab.replay.trace_model.rows import ReplayRows
from trimtab.replay.traces.writer import TraceWriter

MODES = tuple(speculate(k) for k in (0, 1, 3, 7))
DEPTH = 7


def course(blocks: int, rate: float | Floats = 0.5, by_sum: float = 0.5) -> AcceptanceCourse:
    shape = (blocks, DEPTH)
    return AcceptanceCourse(
        first_block=np.array([0, blocks]),
        conditional=np.broadcast_to(np.asarray(rate, dtype=float), shape).copy(),
        own_sd=np.zeros(shape),
        lean_sd=np.zeros(shape),
        dispersion=np.ones(DEPTH),
        by_sum=np.full(blocks, by_sum),
    )


def outcomes(rows: ReplayRows, known: AcceptanceCourse | None = None) -> Outcomes:
    places = np.array([MODES.index(mode) for mode in rows.columns.modes])
    return outcomes_of(rows, known or course(int(rows.block[-1]) + 1), MODES, places)


def counted_rows(tmp_path: Path, runs: list[list[int]], steps: int = 3) -> ReplayRows:
    recorder = Recorder()
    for one in runs:
        recorder.step(steps, one)
    (rows,) = all_rows(write(tmp_path / "t.parquet", (engine(), recorder.rows)))
    return rows


def summed_rows(tmp_path: Path, accepted: list[int], size: int = 4) -> ReplayRows:
    n = len(accepted)
    with TraceWriter(tmp_path / "t.parquet", "step_log") as writer:
        writer.begin(engine())
        writer.write(
            {
                "result_ns": np.arange(1, n + 1),
                "mode": ["speculate(3)"] * n,
                "batch_size": np.full(n, size),
                "accepted_tokens": np.array(accepted),
            }
        )
    (rows,) = all_rows(tmp_path / "t.parquet")
    return rows


def test_the_mode_that_ran_needs_exactly_as_many_steps_as_it_took(tmp_path: Path) -> None:
    rows = counted_rows(tmp_path, [[0, 3, 5], [1, 1, 2]] * 40)
    found = outcomes(rows)
    assert (found.ratio[:, MODES.index(speculate(3))] == 1.0).all()
    assert (found.evidence[:, 2] == Evidence.OBSERVED).all()


def test_fewer_drafts_cut_runs_off_and_are_exact(tmp_path: Path) -> None:
    rows = counted_rows(tmp_path, [[0, 3, 2, 1]] * 120)
    (ratio,) = outcomes(rows).ratio[:1]
    # Of four requests with 3 drafts, 6 drafts were accepted; with 1 it would have been 3.
    assert ratio[MODES.index(speculate(0))] == pytest.approx((4 + 6) / 4)
    assert ratio[MODES.index(speculate(1))] == pytest.approx((4 + 6) / (4 + 3))
    evidence = outcomes(rows).evidence[0].tolist()
    assert evidence == [Evidence.TRUNCATED, Evidence.TRUNCATED, Evidence.OBSERVED, Evidence.MODELLED]


def test_more_drafts_go_on_only_for_requests_that_had_everything_accepted(tmp_path: Path) -> None:
    rows = counted_rows(tmp_path, [[3, 3, 3, 0]] * 120)
    found = outcomes(rows, course(3, rate=0.5))
    accepted = 9 / 4 + 3 / 4 * (0.5 + 0.25 + 0.125 + 0.0625)
    assert found.ratio[0, MODES.index(speculate(7))] == pytest.approx((1 + 9 / 4) / (1 + accepted))
    # From plain everybody goes on.
    plain = outcomes(counted_rows(tmp_path, [[5, 5]] * 60, steps=0), course(3, rate=0.5))
    assert plain.ratio[0, MODES.index(speculate(1))] == pytest.approx(1 / 1.5)
    assert plain.evidence[0].tolist() == [Evidence.OBSERVED, *[Evidence.MODELLED] * 3]


def test_the_ratio_is_that_of_means_since_rows_by_themselves_would_flatter_fewer_drafts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    runs = [[int(run)] for run in np.minimum(rng.geometric(0.5, 20_000) - 1, 7)]
    rows = counted_rows(tmp_path, runs)
    found = outcomes(rows, course(int(rows.block[-1]) + 1))
    steps = found.ratio[found.group, MODES.index(speculate(1))]
    # A step of 3 drafts carries 1.875 tokens and one of a single draft 1.5.
    assert steps.mean() == pytest.approx(1.25, abs=0.005)
    one_by_one = (1 + np.minimum(rows.accepted, 3)) / (1 + np.minimum(rows.accepted, 1))
    assert one_by_one.mean() == pytest.approx(1.19, abs=0.01)


def test_a_row_with_only_a_sum_is_modelled_in_every_mode_but_its_own(tmp_path: Path) -> None:
    rows = summed_rows(tmp_path, [3, 4] * 60)
    found = outcomes(rows, course(3, by_sum=0.5))
    assert found.evidence[0].tolist() == [Evidence.MODELLED, Evidence.MODELLED, Evidence.OBSERVED, Evidence.MODELLED]
    with_three, with_one = 0.5 + 0.25 + 0.125, 0.5
    with_seven = 1 - 0.5**7
    tokens = np.array([1.0, 1 + with_one, 1 + with_three, 1 + with_seven])
    assert found.ratio[0] == pytest.approx((1 + with_three) / tokens)


def test_under_block_verification_counts_say_nothing_exact_of_fewer_drafts(tmp_path: Path) -> None:
    rows = counted_rows(tmp_path, [[0, 3, 2, 1]] * 120)
    places = np.array([MODES.index(mode) for mode in rows.columns.modes])
    evidence = outcomes_of(rows, course(int(rows.block[-1]) + 1), MODES, places, exact=False).evidence[0].tolist()
    # With no draft at all there is nothing to verify.
    assert evidence == [Evidence.TRUNCATED, Evidence.MODELLED, Evidence.OBSERVED, Evidence.MODELLED]


def moved(known: AcceptanceCourse, position: int, by: float) -> AcceptanceCourse:
    conditional = known.conditional.copy()
    conditional[:, position] += by
    return replace(known, conditional=conditional)


def test_slopes_say_how_many_steps_more_or_less_another_acceptance_would_mean(tmp_path: Path) -> None:
    rows = counted_rows(tmp_path, [[3, 1], [3, 2]] * 40)
    known = course(2, rate=np.linspace(0.4, 0.8, DEPTH))
    slopes = outcomes(rows, known).slopes
    for position in range(DEPTH):
        up, down = (np.log(outcomes(rows, moved(known, position, by)).ratio) for by in (1e-5, -1e-5))
        assert slopes[:, :, position] == pytest.approx((up - down) / 2e-5, abs=1e-3)
    assert (slopes[:, :, :3] == 0).all()


def test_where_only_sums_are_known_a_slope_along_the_positions_leaves_the_sum_as_it_is(tmp_path: Path) -> None:
    found = outcomes(summed_rows(tmp_path, [3, 4] * 60), course(3, by_sum=0.5))
    by_slope = found.by_slope[0]
    assert by_slope[2] == 0
    # Acceptance that rises with position means less at the first, so fewer tokens with one draft and more with seven.
    assert by_slope[1] > 0 > by_slope[3]


@contextmanager
def same_luck(rows: ReplayRows, known: AcceptanceCourse) -> Iterator[list[list[list[int]]]]:
    yield [drawn_reach(rows, known, seed).tolist() for seed in (1, 1, 2)]


def test_luck_beyond_what_was_counted_depends_on_the_seed_alone(tmp_path: Path) -> None:
    rows = counted_rows(tmp_path, [[3, 3, 3, 1]] * 200)
    with same_luck(rows, course(4)) as (once, again, other):
        assert once == again
        assert once != other
    reach = np.array(once)
    assert (reach[:, :4] == [4, 4, 3, 3]).all()
    assert (np.diff(reach, axis=1) <= 0).all()
    assert reach[:, 4].mean() == pytest.approx(1.5, abs=0.15)


def test_counts_of_a_row_with_only_a_sum_add_up_to_it(tmp_path: Path) -> None:
    accepted = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    rows = summed_rows(tmp_path, accepted)
    reach = drawn_reach(rows, course(1), 0)
    assert reach[:, 1:4].sum(axis=1).tolist() == accepted
    assert (np.diff(reach, axis=1) <= 0).all()
    assert (reach[:, 0] == 4).all()


def test_one_request_with_a_sum_has_exactly_that_run(tmp_path: Path) -> None:
    reach = drawn_reach(summed_rows(tmp_path, [0, 1, 2, 3], size=1), course(1), 0)
    assert reach[:, :4].tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
