"""What `trace info` knows of a trace: by engine, by mode, by position, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.long_trace import write_trace
from support.step_rows import depth_counts, step_row
from support.trace_files import TRACES, write_rows
from trimtab.domain import PLAIN_WARM, StepFlag, speculate
from trimtab.replay.traces.importing import import_traces
from trimtab.replay.traces.summary import BatchSummary, DepthSummary, ModeSummary, summarize


def test_a_trace_is_summed_up_by_mode_and_position(tmp_path: Path) -> None:
    rows = [
        step_row(speculate(2), 4, depths=depth_counts([0, 1, 2, 2], 2), result_ns=1_000_000_000, step=1),
        step_row(speculate(2), 2, depths=depth_counts([2, 2], 2), result_ns=1_010_000_000, step=2),
        step_row(
            PLAIN_WARM, 2, result_ns=3_000_000_000, step=6, step_ns=None, wall_gap_ns=1_990_000_000, flags=StepFlag.GAP
        ),
    ]
    found = summarize(write_rows(tmp_path / "t.parquet", rows, probabilities=[0.5, None, None]))
    assert (found.rows, found.steps, found.source) == (3, 3, "journal")
    assert found.acceptance == (DepthSummary(1, 6, 5, 5 / 6), DepthSummary(2, 5, 4, 0.8))
    assert found.batch_size == BatchSummary(2, 2, 4, 2)
    plain, two = found.modes
    assert plain == ModeSummary("plain_warm", 1, 1, 0.0, None)
    assert (two.mode, two.rows, two.accepted) == ("speculate(2)", 2, 9 / 6)
    assert two.step_ms == pytest.approx(8.0, rel=0.01)
    assert (found.counts_share, found.propensity_share) == (1.0, 1 / 3)
    assert found.timed_share == pytest.approx(2 / 3)


def test_what_is_missing_is_said_in_steps_and_in_time(tmp_path: Path) -> None:
    rows = [
        step_row(result_ns=10**9 * at, step=step, wall_gap_ns=10**9, flags=flags)
        for at, step, flags in ((1, 5, 0), (2, 6, StepFlag.GAP), (3, 9, 0), (4, 9, StepFlag.GAP), (9, 13, 0))
    ]
    (engine,) = summarize(write_rows(tmp_path / "t.parquet", rows)).engines
    assert (engine.missing_steps, engine.gap_rows, engine.gap_s, engine.span_s) == (5, 2, 2.0, 8.0)
    assert (engine.rows, engine.steps, engine.tokens) == (5, 5, 50)


def test_a_log_without_counters_says_so(tmp_path: Path) -> None:
    found = summarize(TRACES / "llama8b_fa3_ctx64.csv.gz")
    (engine,) = found.engines
    assert (found.source, found.rows, found.counts_share, found.propensity_share) == ("step_log", 5220, 0.0, 0.0)
    assert engine.missing_steps is None
    assert engine.span_s == pytest.approx(54.413245)
    assert found.acceptance == ()


def test_rows_that_stand_for_many_steps_count_as_many(tmp_path: Path) -> None:
    found = summarize(TRACES / "sglang_0.5.23_fixed.log.gz")
    assert (found.source, found.rows, found.steps) == ("sglang_log", 197, 1970)
    assert found.modes[0].accepted is not None
    assert 0 < found.modes[0].accepted < 3


def test_several_engines_are_told_apart(tmp_path: Path) -> None:
    paths = [TRACES / f"llama8b_fa3_{name}.csv.gz" for name in ("ctx64", "bs225")]
    import_traces([*paths, TRACES / "sglang_0.5.23_none.log.gz"], tmp_path / "t.parquet")
    found = summarize(tmp_path / "t.parquet")
    assert found.source == "sglang_log+step_log"
    assert [engine.rows for engine in found.engines] == [5220, 1720, 705]
    assert sum(mode.rows for mode in found.modes) == found.rows
    assert found.span_s == pytest.approx(sum(engine.span_s for engine in found.engines))


def test_the_generator_of_long_traces_makes_what_it_promises(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    write_trace(tmp_path / "t.parquet", 150_000, seed=3)
    found = summarize(tmp_path / "t.parquet", lambda done, total: told.append((done, total)))
    assert (found.rows, found.counts_share, found.propensity_share) == (150_000, 1.0, 1.0)
    assert found.engines[0].missing_steps == 0
    assert len(found.modes) == 6
    assert found.batch_size is not None
    assert found.batch_size.largest > 200
    assert told[-1] == (150_000, 150_000)
    write_trace(tmp_path / "same.parquet", 150_000, seed=3)
    assert (tmp_path / "same.parquet").read_bytes() == (tmp_path / "t.parquet").read_bytes()
