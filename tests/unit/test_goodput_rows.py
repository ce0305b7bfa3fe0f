"""What a report's rows may teach, and what they may not."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.step_rows import depth_counts, step_row
from trimtab.domain import PLAIN_COLD, PLAIN_WARM, DepthCounts, StepFlag, StepRow, modes_of, speculate
from trimtab.policies.acceptance import Acceptance
from trimtab.policies.profile import ProfilePoint, profile_of
from trimtab.policies.row_reader import ReportSums, RowReader, context_class

CASES = Path(__file__).parents[1] / "data" / "cases"
MODES = modes_of([0, 1, 3])
PLAIN, ONE, THREE = range(3)


def read(rows: Sequence[StepRow], bands: Sequence[int] = (1, 9)) -> ReportSums:
    return RowReader(MODES, bands, None).read(rows)


def row(steps: int = 3, ms: float = 10.0, runs: Sequence[int] = (3, 1, 0, 2), **fields: Any) -> StepRow:
    batch_size = len(runs)
    depths = depth_counts(list(runs), steps)
    return step_row(speculate(steps), batch_size, depths=depths, **{"step_ns": round(ms * 1e6), **fields})


def test_acceptance_is_counted_by_position_over_all_modes() -> None:
    sums = read([row(3), row(1, runs=(0, 5, 0, 0))])
    counts = sums.shared_counts(3)
    assert counts is not None
    assert counts.offered == (8.0, 3.0, 2.0)
    assert counts.accepted == (4.0, 2.0, 1.0)


def test_a_step_whose_time_is_no_cost_still_teaches_acceptance() -> None:
    sums = read([row(flags=StepFlag.GAP)])
    assert sums.shared_counts(3) is not None
    assert not sums.tallies


@pytest.mark.parametrize(
    "untimed",
    [
        row(flags=StepFlag.GAP),
        row(retracted_requests=1),
        row(grammar_requests=2),
        row(flags=StepFlag.SWITCHED),
        row(flags=StepFlag.NONE),
    ],
    ids=["gap", "retraction", "grammar", "first after a switch", "eager where graphs are in use"],
)
def test_what_is_no_cost_stays_out_of_the_fit(untimed: StepRow) -> None:
    reader = RowReader(MODES, (1, 9), None)
    reader.read([row(flags=StepFlag.GRAPH)] * 2)
    assert not reader.read([untimed]).tallies
    assert reader.read([row(flags=StepFlag.GRAPH)] * 2).tallies


def test_without_graphs_every_timed_step_is_a_cost() -> None:
    (tally,) = read([row(ms=10.0), row(ms=12.0), row(ms=14.0)]).tallies.values()
    assert tally.rows == 2
    assert math.exp(tally.observation().log_ratio) == pytest.approx(13.0)


def test_costs_are_kept_by_band_mode_and_context() -> None:
    rows = [row(), row(), row(runs=[1] * 16), row(context_tokens_sum=4 * 5_000), row(1), row(1)]
    assert set(read(rows).tallies) == {
        (0, THREE, 0),
        (1, THREE, 0),
        (0, THREE, context_class(5_000)),
        (0, ONE, 0),
    }


def test_times_are_taken_relative_to_the_profile() -> None:
    profile = profile_of([ProfilePoint(64, dict.fromkeys(MODES, 5.0))])
    (tally,) = RowReader(MODES, (1,), profile).read([row(ms=10.0)] * 3).tallies.values()
    assert math.exp(tally.observation().log_ratio) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("times", "prices"),
    [
        ([(3, 10.0), (3, 10.0), (1, 18.0), (1, 8.0), (1, 8.0)], [10.0]),
        ([(3, 10.0), (1, 18.0), (3, 10.0), (3, 10.0)], [0.0]),
        ([(3, 10.0), (3, 310.0), (3, 10.0)], []),
    ],
)
def test_the_price_of_a_switch_is_what_its_first_step_takes_longer(
    times: list[tuple[int, float]], prices: list[float]
) -> None:
    assert read([row(steps, ms) for steps, ms in times]).switch_ms == pytest.approx(prices)


def test_the_band_is_the_one_whose_entry_the_engine_follows() -> None:
    assert read([row(runs=[1] * 9)] * 2).last_band == 1
    assert read([row(runs=[1] * 9, lease_version=3, table_entry=0)] * 2).last_band == 0
    assert read([row(runs=[1] * 9, lease_version=3, table_entry=7)] * 2).last_band == 1


def test_time_with_prefill_in_it_is_busy_time_up_to_a_second() -> None:
    gap = row(flags=StepFlag.GAP, step_ns=None, prefill_tokens=500, wall_gap_ns=40_000_000)
    assert read([row(), row(), gap]).decode_share == pytest.approx(30 / 60)
    long_idle = row(flags=StepFlag.GAP, step_ns=None, prefill_tokens=5, wall_gap_ns=10**12)
    assert read([row(), long_idle]).decode_share == pytest.approx(20 / 1_010)
    assert read([row(), row(flags=StepFlag.GAP, step_ns=None, wall_gap_ns=10**12)]).decode_share == 1.0


def test_modes_that_are_not_offered_tell_of_the_load_only() -> None:
    sums = read([step_row(PLAIN_COLD, 12), step_row(speculate(7), 12)])
    assert sums.last_band == 1
    assert not sums.tallies
    assert not sums.counts


# -- c03: the draft cache of running requests has holes after plain ------------------------------


def case_rows() -> list[tuple[StepRow, bool]]:
    """The observations of the case as rows, and whether the drafter had caught up."""
    found = []
    for line in (CASES / "c03_stale_draft_kv.jsonl").read_text().splitlines():
        seen = json.loads(line)
        if seen["kind"] != "obs":
            continue
        steps = seen["k"]
        fresh = [r["acc"] for r in seen["reqs"] if r["draft_gap"] == 0]
        stale = [r["acc"] for r in seen["reqs"] if r["draft_gap"] > 0]
        counts = [depth_counts(runs, steps) if steps else DepthCounts() for runs in (fresh, stale)]
        made = step_row(
            speculate(steps) if steps else PLAIN_COLD,
            len(fresh) + len(stale),
            step_ns=round(seen["ms"] * 1e6),
            depths=counts[0],
            fresh_requests=len(fresh),
            stale=counts[1],
            stale_requests=len(stale),
        )
        found.append((made, seen.get("variant") == "caught_up"))
    return found


def test_c03_no_sample_with_a_gap_in_its_draft_cache_is_learnt_from() -> None:
    sums = read([made for made, _ in case_rows()])
    fresh = sum(made.fresh_requests for made, _ in case_rows() if made.mode.steps)
    counts = sums.shared_counts(3)
    assert counts is not None
    assert counts.offered[0] == fresh
    assert sums.stale_requests > 0


def test_c03_acceptance_is_that_of_the_fresh_requests_and_drafting_on_a_stale_cache_is_worth_nothing() -> None:
    acceptance, reader = Acceptance([0, 1, 3]), RowReader(MODES, (1,), None)
    rows = case_rows()
    fresh_only = [made for made, _ in rows if made.stale_requests == 0 and made.mode.steps]
    acceptance.learn(reader.read(fresh_only))
    before, _ = acceptance.curve()
    acceptance.learn(reader.read([made for made, _ in rows if made.stale_requests == made.batch_size]))
    stale, _ = acceptance.curve()
    assert stale[2] == 0.0
    acceptance.learn(reader.read(fresh_only[:1]))
    again, _ = acceptance.curve()
    assert again[2] == pytest.approx(before[2], rel=0.25)


def test_stale_requests_do_not_count_against_drafting_where_the_drafter_catches_up() -> None:
    acceptance, reader = Acceptance([0, 1, 3]), RowReader(MODES, (1,), None)
    acceptance.learn(reader.read([row()] * 10))
    plain = step_row(PLAIN_WARM, 4, fresh_requests=0, stale_requests=4)
    acceptance.learn(reader.read([plain] * 5))
    assert acceptance.curve()[0][2] == 0.0
    acceptance.learn(reader.read([step_row(PLAIN_WARM, 4, fresh_requests=0, stale_requests=4, catch_up_ns=0)]))
    assert acceptance.curve()[0][2] > 1.0


def test_with_block_verification_each_number_of_drafts_has_its_own_acceptance() -> None:
    acceptance, reader = Acceptance([0, 1, 3], by_mode=True), RowReader(MODES, (1,), None)
    acceptance.learn(reader.read([row(1, runs=[1] * 9 + [0])] * 20))
    assert acceptance.curve()[0] == pytest.approx([0.0, 0.9, 0.9 + 0.81 + 0.729], abs=0.05)
    acceptance.learn(reader.read([row(3, runs=[1] * 6 + [0] * 4)] * 20))
    assert acceptance.curve()[0] == pytest.approx([0.0, 0.9, 0.6], abs=0.08)


def test_a_stall_counts_as_twice_the_step_before_and_slow_steps_in_full() -> None:
    rows = [row(ms=ms) for ms in (10.0, 10.0, 10.0, 500.0, 10.0)]
    assert read(rows).settled[0].ms == pytest.approx(10 + 10 + 20 + 10)
    slow = [row(ms=ms) for ms in (10.0, 10.0, 500.0, 500.0, 500.0)]
    assert read(slow).settled[0].ms == pytest.approx(10 + 20 + 500 + 500)
