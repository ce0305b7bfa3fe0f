"""Traces on disk: what is written comes back, and a file that is not whole or in order is refused with the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.step_rows import MadeUpEngine, depth_counts, step_row
from support.trace_files import rows_of, step_rows_of, write_rows
from trimtab.domain import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, DepthCounts, StepFlag, StepRow, speculate
from trimtab.errors import DataError
from trimtab.replay.traces.recording import read_trace
from trimtab.replay.traces.schema import SCHEMA, TraceEngine
from trimtab.replay.traces.writer import TraceWriter

MODES = (PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, *map(speculate, (1, 3, 7)))
numbers = st.integers(0, 1 << 20)
maybe = st.none() | numbers


@st.composite
def depths(draw: Any) -> DepthCounts:
    offered = draw(st.lists(st.integers(0, 500), max_size=7))
    return DepthCounts(tuple(offered), tuple(draw(st.integers(0, n)) for n in offered))


NULLABLE = (
    "padded_batch_size", "global_batch_size", "step_ns", "wall_gap_ns", "context_tokens_sum", "context_tokens_max",
    "kv_used_tokens", "running_requests", "waiting_requests", "retracted_requests", "greedy_requests",
    "grammar_requests", "lora_requests", "catch_up_ns",
)  # fmt: skip
NUMBERS = ("launch_id", "batch_size", "emitted_tokens", "fresh_requests", "stale_requests", "prefill_tokens", "rank")


@st.composite
def any_rows(draw: Any) -> list[StepRow]:
    """Rows that follow each other, whatever else is in them."""
    rows, now, step = [], draw(st.integers(0, 1 << 60)), 0
    for _ in range(draw(st.integers(1, 6))):
        now, step = now + draw(st.integers(0, 1 << 40)), step + draw(st.integers(0, 3))
        fields = {name: draw(numbers) for name in NUMBERS} | {name: draw(maybe) for name in NULLABLE}
        row = StepRow(
            **fields,
            step=step,
            result_ns=now,
            mode=draw(st.sampled_from(MODES)),
            fresh=draw(depths()),
            stale=draw(depths()),
            lease_version=draw(st.integers(0, 1 << 62)),
            table_entry=draw(st.none() | st.integers(0, 63)),
            dp_rank=draw(st.integers(0, 64)),
            accepted_worst_decile=draw(st.none() | st.floats(0, 64, width=32)),
            flags=StepFlag(draw(st.integers(0, sum(StepFlag)))),
        )
        rows.append(row)
    return rows


@settings(max_examples=60)
@given(rows=any_rows())
def test_step_rows_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, rows: list[StepRow]) -> None:
    path = write_rows(tmp_path_factory.mktemp("t") / "rows.parquet", rows)
    assert step_rows_of(path) == rows


@settings(max_examples=40)
@given(rows=any_rows(), most=st.integers(1, 4))
def test_arrays_say_what_the_rows_say(tmp_path_factory: pytest.TempPathFactory, rows: list[StepRow], most: int) -> None:
    path = write_rows(tmp_path_factory.mktemp("t") / "rows.parquet", rows)
    with read_trace(path) as trace:
        found = [(columns, i) for columns in trace.batches(rows=most) for i in range(len(columns))]
        assert len(found) == len(rows) == trace.rows
        for row, (columns, i) in zip(rows, found, strict=True):
            assert trace.modes[columns.ints("mode")[i]] == row.mode
            assert columns.ints("step_ns")[i] == (-1 if row.step_ns is None else row.step_ns)
            assert columns.ints("accepted_tokens")[i] == row.accepted_tokens
            assert np.isnan(columns.floats("table_entry")[i]) == (row.table_entry is None)
            for counts, of_row in ((columns.fresh, row.fresh), (columns.stale, row.stale)):
                assert counts is not None
                assert counts.depths[i] == len(of_row.offered)
                assert counts.offered[i].sum() == sum(of_row.offered)
                assert tuple(counts.accepted[i][: len(of_row.accepted)]) == of_row.accepted


def test_counts_stand_in_one_column_for_each_draft_of_the_deepest_mode(tmp_path: Path) -> None:
    rows = [
        step_row(speculate(5), 2, depths=depth_counts([0, 3], 5), result_ns=1),
        step_row(PLAIN_WARM, 2, result_ns=2),
    ]
    with read_trace(write_rows(tmp_path / "t.parquet", rows)) as trace:
        (columns,) = trace.batches(["fresh_offered"])
    assert columns.fresh is not None
    assert columns.fresh.offered.tolist() == [[2, 1, 1, 1, 0], [0] * 5]
    assert columns.fresh.accepted.tolist() == [[1, 1, 1, 0, 0], [0] * 5]
    assert columns.fresh.depths.tolist() == [5, 0]
    assert columns.has_counts.all()


def test_rows_of_which_only_the_sum_is_known_have_no_counts(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.parquet", "step_log") as writer:
        writer.begin(TraceEngine("a", 0))
        writer.write(
            {"result_ns": [1, 2], "mode": ["speculate(3)"] * 2, "batch_size": [4, 4], "accepted_tokens": [6, 7]}
        )
    with read_trace(tmp_path / "t.parquet") as trace:
        (columns,) = trace.batches()
    assert not columns.has_counts.any()
    assert columns.ints("accepted_tokens").tolist() == [6, 7]
    assert columns.steps.tolist() == [1, 1]
    assert np.isnan(columns.floats("probability")).all()


def test_runs_of_engines_are_segments_and_never_come_mixed(tmp_path: Path) -> None:
    engine = MadeUpEngine(3)
    reports = [engine.report(lambda size: speculate(3), rows) for rows in (70, 50, 130)]
    path = tmp_path / "t.parquet"
    with TraceWriter(path, "journal") as writer:
        for about, rows in zip((TraceEngine("a", 0), TraceEngine("a", 1), TraceEngine("b", 0)), reports, strict=True):
            writer.begin(about)
            writer.write_rows(rows[:30])
            writer.write_rows(rows[30:])
    with read_trace(path) as trace:
        assert [(s.engine, s.run, s.first_row, s.rows) for s in trace.segments()] == [
            ("a", 0, 0, 70), ("a", 1, 70, 50), ("b", 0, 120, 130),
        ]  # fmt: skip
        found = [(c.segment.engine, c.segment.run, c.first_row, len(c)) for c in trace.batches(rows=100)]
    assert found == [("a", 0, 0, 70), ("a", 1, 70, 30), ("a", 1, 100, 20), ("b", 0, 120, 80), ("b", 0, 200, 50)]


def test_what_is_known_of_an_engine_stays_with_its_run(tmp_path: Path) -> None:
    about = TraceEngine(
        "a", 2, modes=("plain_warm", "speculate(3)"), graph_batch_sizes=(1, 2, 4), max_running_requests=64,
        initial_steps=3, block_verification=False, start_mode="speculate(3)", cost_key={"model": "8B", "tp_size": 2},
        kv_capacity_tokens=1000,
    )  # fmt: skip
    with TraceWriter(tmp_path / "t.parquet", "journal") as writer:
        writer.begin(about)
        writer.write_rows([step_row()])
    with read_trace(tmp_path / "t.parquet") as trace:
        (found,) = trace.info.engines
        assert (found.rows, found.modes, found.cost_key) == (1, about.modes, about.cost_key)
        assert (trace.info.source, trace.info.format) == ("journal", 1)


def test_progress_is_told_in_rows(tmp_path: Path) -> None:
    told: list[int] = []
    path = write_rows(tmp_path / "t.parquet", MadeUpEngine(1).report(lambda size: PLAIN_WARM, 250))
    with read_trace(path, told.append) as trace:
        list(trace.batches(["mode"], rows=100))
    assert told == [100, 200, 250]


# -- what is refused ---------------------------------------------------------------------------------


def reading_fails(path: Path) -> str:
    with pytest.raises(DataError) as caught, read_trace(path) as trace:
        list(trace.batches())
    return str(caught.value)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "whole.parquet", MadeUpEngine(5).report(lambda size: speculate(3), 400))


@pytest.mark.parametrize("kept", [5, 0.3, 0.9, -1])
def test_a_truncated_trace_is_no_whole_file(whole: Path, kept: float) -> None:
    content = whole.read_bytes()
    whole.write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    assert reading_fails(whole).startswith(f"{whole}: is not a whole Parquet file")


def test_a_page_that_changed_on_disk_is_noticed(whole: Path) -> None:
    content = bytearray(whole.read_bytes())
    for at in range(200, len(content) // 2, 97):
        content[at] ^= 0x55
    whole.write_bytes(content)
    assert reading_fails(whole).startswith(f"{whole}: row 1: cannot be read: ")


def rewritten(path: Path, change: Any, **metadata: str) -> Path:
    """The trace with its table changed and its metadata kept."""
    kept = pq.read_metadata(path).metadata
    table = change(pq.read_table(path))
    described = {**kept, **{key.encode(): value.encode() for key, value in metadata.items()}}
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({k: v for k, v in described.items() if k.startswith(b"trimtab")})
    return path


def reversed_rows(table: Any) -> Any:
    return table.take(list(range(table.num_rows - 1, -1, -1)))


def another_engine(table: Any) -> Any:
    names = pa.array(["a"] * 300 + ["b"] * 100).dictionary_encode()
    return table.set_column(0, SCHEMA.field("engine"), names)


def as_text(table: Any) -> Any:
    return table.set_column(2, "launch_id", table.column("launch_id").cast(pa.string()))


REWRITTEN: dict[str, tuple[Any, str]] = {
    "reordered": (reversed_rows, ": row 2: time goes backwards: the rows are not in their order"),
    "of another engine": (another_engine, ": row 301: is not of a run 0: the rows are not in order"),
    "shortened": (lambda table: table.slice(0, 399), ": lists 400 rows and has 399: something else changed it"),
    "without a column": (lambda table: table.drop_columns(["flags"]), ": has no column flags"),
    "with another type": (as_text, ": column launch_id is string, not int64"),
}


@pytest.mark.parametrize(("change", "problem"), REWRITTEN.values(), ids=REWRITTEN)
def test_a_trace_that_something_else_wrote_anew_is_refused(whole: Path, change: Any, problem: str) -> None:
    assert reading_fails(rewritten(whole, change)) == f"{whole}{problem}"


def test_a_newer_format_is_named(whole: Path) -> None:
    newer = rewritten(whole, lambda table: table, trimtab_trace='{"format": 2}')
    assert reading_fails(newer) == f"{whole}: is a trace of format 2; this version reads 1"


def test_parquet_of_something_else_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    assert reading_fails(path) == f"{path}: is Parquet but no trace; `trimtab trace import` makes one of it"


# -- writing -----------------------------------------------------------------------------------------


def write_in_pieces(path: Path, *pieces: Any) -> None:
    """One run of an engine: step rows, or columns."""
    with TraceWriter(path, "journal") as writer:
        writer.begin(TraceEngine("a", 0))
        for piece in pieces:
            writer.write_rows([piece]) if isinstance(piece, StepRow) else writer.write(piece)


def test_rows_out_of_order_are_not_written_and_what_was_there_stays(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "t.parquet", [step_row(result_ns=7)])
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"row 2: time goes backwards"):
        write_rows(path, [step_row(result_ns=5), step_row(result_ns=4)])
    with pytest.raises(DataError, match=r"row 2: time goes backwards"):
        write_in_pieces(path, step_row(result_ns=5), step_row(result_ns=4))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["t.parquet"]


def test_an_exception_on_the_way_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        write_in_pieces(tmp_path / "t.parquet", step_row(), {"mode": ["plain_warm"]})
    assert not list(tmp_path.iterdir())


def test_a_run_cannot_come_twice(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.parquet", "journal") as writer:
        writer.begin(TraceEngine("a", 0))
        with pytest.raises(DataError, match="a run 0 comes twice"):
            writer.begin(TraceEngine("a", 0))


def test_a_row_without_what_every_row_has_is_not_written(tmp_path: Path) -> None:
    lacking = {"result_ns": [1], "mode": ["plain_warm"], "batch_size": pa.array([None], pa.int32())}
    with pytest.raises(DataError, match="a row has no batch_size"):
        write_in_pieces(tmp_path / "t.parquet", lacking)


def test_where_nothing_can_be_written_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "t.parquet"
    with pytest.raises(DataError, match="cannot be written") as caught:
        write_rows(path, [step_row()])
    assert caught.value.place == str(path)


def test_probabilities_and_the_length_of_draws_are_kept_beside_the_rows(tmp_path: Path) -> None:
    rows = [step_row(result_ns=i) for i in range(3)]
    path = write_rows(tmp_path / "t.parquet", rows, probabilities=[0.9, None, 0.1], dwell_steps=[16, None, 0])
    assert [row["probability"] for row in rows_of(path)] == [0.9, None, 0.1]
    assert [row["exploration_dwell_steps"] for row in rows_of(path)] == [16, None, 0]
