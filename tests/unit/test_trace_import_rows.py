"""Step rows from CSV, JSON lines and Parquet as traces: nothing is lost on the way there and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.step_rows import MadeUpEngine, depth_counts, step_row
from support.trace_files import rows_of, table_of, write_rows
from trimtab.domain import PLAIN_WARM, StepFlag, speculate
from trimtab.errors import DataError
from trimtab.replay.traces.csv_writer import write_csv
from trimtab.replay.traces.importing import ImportReport, LeftOutRows, import_traces
from trimtab.replay.traces.recording import read_trace
from trimtab.replay.traces.schema import COLUMNS, COUNTS, FRACTIONS, INTEGERS, TraceEngine
from trimtab.replay.traces.writer import TraceWriter

INT32 = (1 << 31) - 1
# What a nullable column may hold in a file.
SMALL = {"table_entry": 63, "rank": 65_536, "dp_rank": 65_536, "steps": 1 << 20}
LONG = frozenset({
    "launch_id", "step_ns", "wall_gap_ns", "prefill_tokens", "context_tokens_sum", "context_tokens_max",
    "kv_used_tokens", "catch_up_ns", "lease_version",
})  # fmt: skip


def imported(folder: Path, text: str, name: str = "rows.csv", **options: Any) -> ImportReport:
    (folder / name).write_text(text)
    return import_traces([folder / name], folder / "out.parquet", **options)


def as_json_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n" for row in rows)


@st.composite
def any_rows(draw: Any) -> list[dict[str, Any]]:
    """Rows of a trace with anything that may stand in them."""
    rows, now, step = [], draw(st.integers(0, 1 << 61)), 0
    for _ in range(draw(st.integers(1, 5))):
        now, step = now + draw(st.integers(0, 1 << 40)), step + draw(st.integers(0, 3))
        row: dict[str, Any] = {
            name: draw(st.none() | st.integers(0, SMALL.get(name, 1 << (36 if name in LONG else 18))))
            for name in INTEGERS
        }
        for which in ("fresh", "stale"):
            offered = draw(st.none() | st.lists(st.integers(0, 9), max_size=4))
            row[f"{which}_offered"] = offered
            row[f"{which}_accepted"] = None if offered is None else [draw(st.integers(0, n)) for n in offered]
        known = row["fresh_accepted"] is not None and row["stale_accepted"] is not None
        if row["fresh_offered"] is not None and row["accepted_tokens"] is None:
            row["accepted_tokens"] = draw(st.integers(0, 99))
        if known:
            row["accepted_tokens"] = sum(row["fresh_accepted"]) + sum(row["stale_accepted"])
        rows.append({
            **row, "run": 0, "result_ns": now, "batch_size": draw(st.integers(0, 1 << 20)), "step": step,
            "prefill_tokens": draw(st.integers(0, 1 << 20)), "flags": draw(st.none() | st.integers(0, 63)),
            "mode": draw(st.sampled_from(["plain_cold", "plain_native", "speculate(12)"])),
            "probability": draw(st.none() | st.floats(0, 1)),
            "accepted_worst_decile": draw(st.none() | st.floats(0, 64)),
        })  # fmt: skip
    return rows


def written(folder: Path, rows: list[dict[str, Any]], engine: str) -> Path:
    with TraceWriter(folder / "made.parquet", "journal") as writer:
        writer.begin(TraceEngine(engine, 0))
        writer.write({
            name: pa.array([row[name] for row in rows], pa.list_(pa.int32()) if name in COUNTS else None)
            for name in (*INTEGERS, *COUNTS, *FRACTIONS, "mode") if name != "run"
            and (name in COUNTS or any(row[name] is not None for row in rows))
        })  # fmt: skip
    return folder / "made.parquet"


@settings(max_examples=60)
@given(rows=any_rows(), engine=st.sampled_from(["a", 'with "quotes", and commas', "größer/1"]))
def test_what_is_exported_as_csv_comes_back_equal(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], engine: str
) -> None:
    folder = tmp_path_factory.mktemp("t")
    trace = written(folder, rows, engine)
    write_csv(trace, folder / "rows.csv")
    report = import_traces([folder / "rows.csv"], folder / "out.parquet")
    assert (report.rows, report.left_out, report.files[0].ignored_columns) == (len(rows), 0, ())
    assert table_of(folder / "out.parquet").equals(table_of(trace))


@settings(max_examples=30)
@given(rows=any_rows())
def test_the_same_as_json_lines(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> None:
    folder = tmp_path_factory.mktemp("t")
    trace = written(folder, rows, "a")
    imported(folder, as_json_lines(rows_of(trace)), "rows.jsonl")
    assert table_of(folder / "out.parquet").equals(table_of(trace))


def test_a_trace_of_several_runs_comes_back_from_csv_as_several_runs(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t.parquet", "journal") as writer:
        for engine, run in (("a", 0), ("a", 1), ("b", 0)):
            writer.begin(TraceEngine(engine, run))
            writer.write_rows(MadeUpEngine(run).report(lambda size: speculate(3), 40))
    write_csv(tmp_path / "t.parquet", tmp_path / "t.csv")
    import_traces([tmp_path / "t.csv"], tmp_path / "out.parquet")
    assert table_of(tmp_path / "out.parquet").equals(table_of(tmp_path / "t.parquet"))
    with read_trace(tmp_path / "out.parquet") as trace:
        assert [(s.engine, s.run, s.rows) for s in trace.segments()] == [("a", 0, 40), ("a", 1, 40), ("b", 0, 40)]


def test_lists_stand_in_csv_as_they_do_in_json(tmp_path: Path) -> None:
    row = step_row(speculate(3), depths=depth_counts([0, 1, 3, 3], 3))
    write_csv(write_rows(tmp_path / "t.parquet", [row]), tmp_path / "t.csv")
    header, line = (tmp_path / "t.csv").read_text().splitlines()
    assert header == ",".join(COLUMNS)
    assert '"[4, 3, 2]","[3, 2, 2]","[]","[]"' in line


# -- what may be missing -------------------------------------------------------------------------------


def test_a_mode_a_batch_and_a_time_are_enough(tmp_path: Path) -> None:
    text = "mode,batch_size,step_ms\nspeculate(3),4,5.5\nplain_warm,4,5\n"
    imported(tmp_path, text, "engine-a.csv")
    first, second = rows_of(tmp_path / "out.parquet")
    assert (first["engine"], first["run"], first["mode"], first["step_ns"]) == (
        "engine-a",
        0,
        "speculate(3)",
        5_500_000,
    )
    assert (first["result_ns"], second["result_ns"]) == (0, 5_000_000)
    assert first["accepted_tokens"] is first["flags"] is None
    imported(tmp_path, text, engine="b")
    assert rows_of(tmp_path / "out.parquet")[0]["engine"] == "b"


def test_times_go_on_from_row_to_row_over_gaps(tmp_path: Path) -> None:
    lines = [{"mode": "plain_warm", "batch_size": 1, "step_ns": 5, "wall_gap_ns": gap} for gap in (0, 7, -1, 50)]
    imported(tmp_path, as_json_lines([{**line, "mode": {"kind": "speculate", "steps": 2}} for line in lines]))
    rows = rows_of(tmp_path / "out.parquet")
    assert [row["result_ns"] for row in rows] == [0, 7, 12, 62]
    assert rows[0]["mode"] == "speculate(2)"
    assert [row["wall_gap_ns"] for row in rows] == [0, 7, None, 50], "-1 stands for nothing"


def test_accepted_drafts_are_summed_up_where_only_counts_are_there(tmp_path: Path) -> None:
    text = (
        'mode,batch_size,result_ns,fresh_offered,fresh_accepted\nspeculate(2),4,1,"[4,3]","[3, 1]"\nplain_warm,4,2,,\n'
    )
    imported(tmp_path, text)
    first, second = rows_of(tmp_path / "out.parquet")
    assert (first["accepted_tokens"], first["fresh_offered"], second["accepted_tokens"]) == (4, [4, 3], None)


def test_columns_that_a_trace_has_no_place_for_are_said(tmp_path: Path) -> None:
    report = imported(tmp_path, "node,mode,batch_size,step_ms,shift\nx,plain_warm,4,5,early\n")
    assert report.files[0].ignored_columns == ("node", "shift")


# -- Parquet -------------------------------------------------------------------------------------------


def test_traces_are_merged_with_what_they_say_of_their_engines(tmp_path: Path) -> None:
    rows = MadeUpEngine(1).report(lambda size: speculate(3), 50)
    for name, modes in (("one", ("plain_warm",)), ("two", ("speculate(3)",))):
        with TraceWriter(tmp_path / f"{name}.parquet", "journal") as writer:
            writer.begin(TraceEngine("a", 0, modes=modes))
            writer.write_rows(rows)
    report = import_traces([tmp_path / "one.parquet", tmp_path / "two.parquet"], tmp_path / "one.parquet")
    assert [file.source for file in report.files] == ["journal", "journal"]
    with read_trace(tmp_path / "one.parquet") as trace:
        assert [(e.engine, e.run, e.rows, e.modes) for e in trace.info.engines] == [
            ("a", 0, 50, ("plain_warm",)), ("a", 1, 50, ("speculate(3)",)),
        ]  # fmt: skip
        assert trace.info.source == "journal"


def test_columns_of_a_trace_that_another_program_wrote_as_parquet_become_one(tmp_path: Path) -> None:
    trace = write_rows(tmp_path / "t.parquet", MadeUpEngine(1).report(lambda size: speculate(3), 50))
    table = table_of(trace).select(["mode", "batch_size", "result_ns", "fresh_offered", "fresh_accepted", "step_ns"])
    wider = table.set_column(1, "batch_size", table.column("batch_size").cast(pa.int64()))
    pq.write_table(wider.append_column("note", pa.array(["x"] * 50)), tmp_path / "other.parquet")
    report = import_traces([tmp_path / "other.parquet"], tmp_path / "out.parquet")
    assert (report.files[0].source, report.files[0].ignored_columns) == ("step_rows", ("note",))
    assert table_of(tmp_path / "out.parquet").select(table.column_names).equals(table)


# -- what is left out and what is refused --------------------------------------------------------------


def line(**changes: object) -> dict[str, object]:
    return {"mode": "speculate(2)", "batch_size": 4, "result_ns": 1, "step": 1, **changes}


FAULTS: dict[str, dict[str, object]] = {
    "batch_size_range": {"batch_size": -4},
    "step_ns_range": {"step_ns": -5},
    "probability_range": {"probability": 1.5},
    "table_entry_range": {"table_entry": 64},
    "lease_version_range": {"lease_version": 1 << 62 | 1},
    "counts_disagree": {"fresh_offered": [4] * 65, "fresh_accepted": [4] * 65},
    "counts_disagree ": {"fresh_offered": [4, 3], "fresh_accepted": [3]},
}


@pytest.mark.parametrize(("reason", "fault"), FAULTS.items(), ids=FAULTS)
def test_a_row_that_cannot_be_is_left_out_counted_and_named(
    tmp_path: Path, reason: str, fault: dict[str, object]
) -> None:
    rows = [line(), line(**fault), line(**fault), line()]
    report = imported(tmp_path, as_json_lines(rows), "rows.jsonl")
    assert report.files[0].left_out == {reason.strip(): LeftOutRows(2, 2)}
    assert (report.files[0].rows, report.rows) == (4, 2)


def test_counts_that_contradict_the_sum_are_left_out(tmp_path: Path) -> None:
    counts = {"fresh_offered": [4], "fresh_accepted": [3], "stale_offered": [], "stale_accepted": []}
    rows = [line(**counts, accepted_tokens=3), line(**counts, accepted_tokens=4)]
    report = imported(tmp_path, as_json_lines(rows), "rows.jsonl")
    assert report.files[0].left_out == {"counts_disagree": LeftOutRows(1, 2)}


def test_an_empty_field_that_every_row_needs_costs_its_row(tmp_path: Path) -> None:
    report = imported(tmp_path, "mode,batch_size,result_ns\nplain_warm,4,1\n,4,2\nplain_warm,,3\nplain_warm,4,\n")
    assert report.files[0].left_out == {
        "mode_missing": LeftOutRows(1, 3),
        "batch_size_missing": LeftOutRows(1, 4),
        "result_ns_missing": LeftOutRows(1, 5),
    }


def test_modes_are_written_as_everywhere(tmp_path: Path) -> None:
    imported(tmp_path, "mode,batch_size,step_ms\nspeculate(03),4,1\nspeculate(3),4,1\n")
    assert {row["mode"] for row in rows_of(tmp_path / "out.parquet")} == {"speculate(3)"}


BAD_CSV = {
    "too many drafts": ("speculate(65),4,1\n", ":2: mode 'speculate(65)' has more than 64 drafts a step"),
    "a cut line": ("plain_warm,4,1\nplain_w", ":3: is cut off: the last line has no line break"),
    "too few fields": ("plain_warm,4,1\nplain_warm,4\n", ":3: has 2 fields, not 3"),
    "reordered": ("plain_warm,4,2\nplain_warm,4,1\n", ":3: time goes backwards: the rows are not in their order"),
    "a word": ("plain_warm,4,soon\n", ":2: result_ns is no whole number: 'soon'"),
    "an unknown mode": ("plain_warm,4,1\nfast,4,2\n", ":3: unknown mode 'fast'; there are: plain_warm, plain_cold"),
}


@pytest.mark.parametrize(("rows", "problem"), BAD_CSV.values(), ids=BAD_CSV)
def test_a_csv_file_that_cannot_be_used_is_one_error_with_the_line(tmp_path: Path, rows: str, problem: str) -> None:
    with pytest.raises(DataError) as caught:
        imported(tmp_path, "mode,batch_size,result_ns\n" + rows)
    assert str(caught.value).startswith(f"{tmp_path / 'rows.csv'}{problem}")
    assert not (tmp_path / "out.parquet").exists()


def test_times_that_cannot_be_cost_their_row_and_do_not_upset_the_clock(tmp_path: Path) -> None:
    text = "mode,batch_size,step_ms\n" + "".join(f"plain_warm,4,{ms}\n" for ms in (5, "inf", 1e300, "nan", 6))
    report = imported(tmp_path, text)
    assert report.files[0].left_out == {"step_ns_range": LeftOutRows(2, 3)}
    rows = rows_of(tmp_path / "out.parquet")
    assert [(row["result_ns"], row["step_ns"]) for row in rows] == [(0, 5_000_000), (0, None), (6_000_000, 6_000_000)]


BAD_JSON = {
    "a number beyond 64 bits": ('{"mode": "plain_warm", "batch_size": 99999999999999999999}\n', ":1: is no step row"),
    "a cut object": ('{"mode": "plain_warm", "batch_size": 4, "step_ms": 1}\n{"mode": "pl', ":2: is no step row"),
    "no mode": ('{"batch_size": 4}\n', ":1: is no step row: Object missing required field `mode`"),
    "a text": ('{"mode": "plain_warm", "batch_size": "4"}\n', ":1: is no step row: Expected `int`, got `str`"),
    "no times": ('{"mode": "plain_warm", "batch_size": 4}\n', ": says no times: it has none of result_ns"),
}


@pytest.mark.parametrize(("text", "problem"), BAD_JSON.values(), ids=BAD_JSON)
def test_json_lines_that_cannot_be_used_are_one_error_with_the_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(DataError) as caught:
        imported(tmp_path, text, "rows.jsonl")
    assert str(caught.value).startswith(f"{tmp_path / 'rows.jsonl'}{problem}")


def test_rows_that_are_not_in_their_order_are_refused_whatever_tells_it(tmp_path: Path) -> None:
    def problem(*rows: dict[str, object]) -> str:
        with pytest.raises(DataError) as caught:
            imported(tmp_path, as_json_lines(list(rows)), "rows.jsonl")
        return str(caught.value).removeprefix(f"{tmp_path}/rows.jsonl")

    assert problem(line(step=4), line(step=3)) == ":2: the step counter goes backwards: the rows are not in their order"
    assert problem(line(engine="a"), line(engine="b"), line(engine="a")) == (
        ":3: a run 0 comes in two places: the rows are not in their order"
    )


def test_json_rows_say_what_they_belong_to_all_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.replay.traces.import_rows.JSON_BLOCK_ROWS", 2)
    rows = [line(), line(lora_requests=1), line(), line(engine="b")]
    with pytest.raises(DataError, match=r"rows.jsonl:4: has engine, which the rows before have not"):
        imported(tmp_path, as_json_lines(rows), "rows.jsonl")
    report = imported(tmp_path, as_json_lines([*rows[:3], line(result_ns=None), line(kv_used_tokens=7)]), "rows.jsonl")
    assert report.files[0].left_out == {"result_ns_missing": LeftOutRows(1, 4)}
    assert [row["kv_used_tokens"] for row in rows_of(tmp_path / "out.parquet")] == [None, None, None, 7]


def test_a_list_that_is_none_names_its_line(tmp_path: Path) -> None:
    text = "mode,batch_size,result_ns,fresh_offered,fresh_accepted\nplain_warm,4,1,[],[]\nplain_warm,4,2,[4;3],[]\n"
    with pytest.raises(DataError, match=r"rows.csv:3: fresh_offered is no list of counts: '\[4;3\]'"):
        imported(tmp_path, text)


def test_parquet_without_what_every_row_needs_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"mode": ["plain_warm"], "size": [1]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match=r"other\.parquet: has no column batch_size"):
        import_traces([tmp_path / "other.parquet"], tmp_path / "out.parquet")
    pq.write_table(pa.table({"mode": ["plain_warm"], "batch_size": ["four"]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match=r"other\.parquet: row 1: cannot be read"):
        import_traces([tmp_path / "other.parquet"], tmp_path / "out.parquet")


def test_more_rows_than_a_csv_file_may_have_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = write_rows(
        tmp_path / "t.parquet", [step_row(PLAIN_WARM, result_ns=i, flags=StepFlag.GRAPH) for i in range(9)]
    )
    monkeypatch.setattr("trimtab.replay.traces.csv_writer.MAX_CSV_ROWS", 8)
    with pytest.raises(DataError, match="would have 9 rows, at most 8: write Parquet instead"):
        write_csv(trace, tmp_path / "t.csv")
    assert [file.name for file in tmp_path.iterdir()] == ["t.parquet"]
