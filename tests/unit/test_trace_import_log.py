"""Step logs as traces: every row of the real ones, the times between results, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from support.trace_files import STEP_LOGS, TRACES, rows_of, table_of
from trimtab.domain import StepFlag
from trimtab.errors import DataError
from trimtab.replay.profiles.sample_files import read_samples
from trimtab.replay.profiles.wanted import Wanted
from trimtab.replay.traces.importing import ImportReport, LeftOutRows, import_traces
from trimtab.replay.traces.recording import read_trace

HEADER = "t_s,num_steps,batch_size,accepted_drafts\n"
WHOLE = HEADER + "0.0,3,4,5\n0.005,3,4,7\n0.01,3,4,6\n"


def imported(folder: Path, text: str | bytes, name: str = "steps.csv") -> ImportReport:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return import_traces([path], folder / "out.parquet")


@pytest.mark.parametrize(("name", "rows"), STEP_LOGS.items())
def test_the_real_logs_import_without_loss(tmp_path: Path, name: str, rows: int) -> None:
    path = TRACES / f"{name}.csv.gz"
    with gzip.open(path) as file:
        assert rows == sum(1 for _ in file) - 1
    report = import_traces([path], tmp_path / "out.parquet")
    (file_report,) = report.files
    assert (report.rows, report.left_out, file_report.rows, file_report.left_out) == (rows, 0, rows, {})
    with read_trace(tmp_path / "out.parquet") as trace:
        assert trace.rows == rows
        assert [(s.engine, s.run) for s in trace.segments()] == [(name, 0)]


@pytest.mark.parametrize("name", STEP_LOGS)
def test_a_trace_of_a_log_has_the_same_costs_as_the_log(tmp_path: Path, name: str) -> None:
    path, wanted = TRACES / f"{name}.csv.gz", Wanted(prompt_tokens=64, graph_sizes=(1, 8, 64, 256))
    import_traces([path], tmp_path / "out.parquet")
    log, trace = read_samples(path, wanted), read_samples(tmp_path / "out.parquet", wanted)
    assert (log.rows, log.left_out) == (trace.rows, trace.left_out)
    assert log.samples.modes == trace.samples.modes
    for column in ("mode", "batch_size", "requests", "steps"):
        assert np.array_equal(getattr(log.samples, column), getattr(trace.samples, column))
    for column in ("step_ms", "context_sum"):
        assert np.allclose(getattr(log.samples, column), getattr(trace.samples, column), rtol=1e-5)


def test_a_row_says_what_ran_what_came_out_and_how_long_it_took(tmp_path: Path) -> None:
    imported(tmp_path, HEADER + "1.5,-1,4,0\n1.5052,0,4,0\n1.5103,3,4,7\n")
    rows = rows_of(tmp_path / "out.parquet")
    assert [row["mode"] for row in rows] == ["plain_cold", "plain_warm", "speculate(3)"]
    assert [row["result_ns"] for row in rows] == [1_500_000_000, 1_505_200_000, 1_510_300_000]
    assert [row["step_ns"] for row in rows] == [None, 5_200_000, 5_100_000]
    assert [row["wall_gap_ns"] for row in rows] == [None, 5_200_000, 5_100_000]
    assert [(row["batch_size"], row["accepted_tokens"], row["emitted_tokens"]) for row in rows] == [
        (4, 0, 4), (4, 0, 4), (4, 7, 11),
    ]  # fmt: skip
    assert [row["flags"] for row in rows] == [StepFlag.GAP, StepFlag.SWITCHED, StepFlag.SWITCHED]
    assert rows[0]["fresh_offered"] is rows[0]["probability"] is rows[0]["steps"] is None


def test_a_pause_and_a_batch_that_grew_are_gaps_and_no_cost(tmp_path: Path) -> None:
    steady = [f"{0.005 * i:.3f},3,4,5" for i in range(20)]
    text = HEADER + "\n".join([*steady, "0.300,3,4,5", "0.310,3,8,9", "0.316,3,8,9"]) + "\n"
    imported(tmp_path, text)
    *before, pause, grew, after = rows_of(tmp_path / "out.parquet")
    assert [row["step_ns"] for row in before[1:]] == pytest.approx([5_000_000] * 19, abs=2)
    assert (pause["step_ns"], pause["wall_gap_ns"], pause["flags"]) == (None, 205_000_000, StepFlag.GAP)
    assert (grew["step_ns"], grew["wall_gap_ns"], grew["flags"]) == (None, 10_000_000, StepFlag.GAP)
    assert (after["step_ns"], after["flags"]) == (6_000_000, 0)


def test_rows_that_cannot_be_are_left_out_counted_and_named(tmp_path: Path) -> None:
    bad = [
        "0.01,3,4,13",
        "0.02,0,4,1",
        "0.03,3,4,-1",
        "0.04,-2,4,0",
        "0.05,3,0,0",
        "0.06,65,4,0",
        "0.07,3,,2",
        "nan,3,4,2",
        "",
    ]
    report = imported(tmp_path, HEADER + "\n".join(["0.0,3,4,5", *bad, "0.08,3,4,5"]) + "\n")
    assert report.files[0].left_out == {
        "accepted_drafts_range": LeftOutRows(3, 3),
        "batch_size_range": LeftOutRows(1, 7),
        "incomplete": LeftOutRows(3, 9),
        "num_steps_range": LeftOutRows(2, 6),
    }
    assert (report.files[0].rows, report.rows, report.left_out) == (11, 2, 9)
    first, last = rows_of(tmp_path / "out.parquet")
    assert (first["result_ns"], last["result_ns"]) == (0, 80_000_000)
    assert last["wall_gap_ns"] == 20_000_000, "the row before it was no row of an engine, but its time is known"


def test_columns_beyond_the_four_are_ignored_and_said(tmp_path: Path) -> None:
    report = imported(tmp_path, "node,t_s,num_steps,batch_size,accepted_drafts\nx,0.0,3,4,5\n")
    assert (report.rows, report.files[0].ignored_columns) == (1, ("node",))


@pytest.mark.parametrize(
    "text",
    [
        WHOLE.replace("\n", "\r\n"), WHOLE + "\n\n", WHOLE.replace("t_s,", '"t_s",'), WHOLE.replace(",", ", "),
        "\ufeff" + WHOLE,
    ],
)  # fmt: skip
def test_the_habits_of_other_programs_do_not_matter(tmp_path: Path, text: str) -> None:
    assert imported(tmp_path, text).rows == 3
    assert imported(tmp_path, gzip.compress(text.encode()), "steps.csv.gz").rows == 3


def test_files_that_were_zipped_in_pieces_are_one_log(tmp_path: Path) -> None:
    first, rest = WHOLE[:60].encode(), WHOLE[60:].encode()
    assert imported(tmp_path, gzip.compress(first) + gzip.compress(rest) + b"\0" * 100).rows == 3


def test_logs_of_any_length_are_read_in_pieces(tmp_path: Path) -> None:
    rows = 300_000
    text = HEADER + "".join(f"{i / 200},3,{1 + i // 100_000},2\n" for i in range(rows))
    assert imported(tmp_path, text).rows == rows
    table = table_of(tmp_path / "out.parquet")
    assert table.column("result_ns").to_numpy().tolist() == [i * 5_000_000 for i in range(rows)]
    assert table.column("step_ns").null_count == 3, "the first row, and two where the batch grew"


# -- what is refused ---------------------------------------------------------------------------------


BAD = {
    "empty": ("", ": is empty"),
    "a header alone": (HEADER, ": has no rows"),
    "half a last line": (WHOLE + "0.015,3", ":5: is cut off: the last line has no line break"),
    "a cut number": (WHOLE[:-2], ":4: is cut off: the last line has no line break"),
    "a short line": (HEADER + "0.0,3,4,5\n0.1,3\n0.2,3,4,5\n", ":3: has 2 fields, not 4"),
    "a long line": (HEADER + "0.0,3,4,5,6\n", ":2: has 5 fields, not 4"),
    "a word": (HEADER + "0.0,3,4,5\n0.1,3,four,5\n", ":3: batch_size is no whole number: 'four'"),
    "a fraction": (HEADER + "0.0,3,4,5.5\n", ":2: accepted_drafts is no whole number: '5.5'"),
    "no number": (HEADER + "soon,3,4,5\n", ":2: t_s is no number: 'soon'"),
    "reordered": (HEADER + "0.0,3,4,5\n0.2,3,4,5\n0.1,3,4,5\n", ":4: time goes backwards: the rows are not in their"),
    "nothing usable": (HEADER + "0.0,3,0,0\n", ": has no row that can be a decode step: 1 batch_size_range"),
    "foreign": ("a,b\n1,2\n", ": is none of: a step log (CSV with t_s"),
    "binary": (b"\x7fELF\0\0\1", ": is none of: a step log (CSV with t_s"),
    "one endless line": (b"x" * (17 << 20), ":1: goes on for 16 MB: this is no file of lines"),
    "a database": (b"SQLite format 3\0" + b"x" * 99, ": is a database; of a journal `trimtab trace export`"),
    "a table of medians": ("mode,batch_size,step_ms_p50\n", ": is a table of medians, not of steps"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "problem"), BAD.values(), ids=BAD)
def test_a_file_that_cannot_be_used_is_one_error_and_changes_nothing(
    tmp_path: Path, content: str | bytes, problem: str
) -> None:
    (tmp_path / "out.parquet").write_text("what was there")
    with pytest.raises(DataError) as caught:
        imported(tmp_path, content)
    assert str(caught.value).startswith(f"{tmp_path / 'steps.csv'}{problem}")
    assert (tmp_path / "out.parquet").read_text() == "what was there"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.parquet", "steps.csv"]


def test_a_zipped_file_that_is_cut_off_or_corrupt_names_the_line(tmp_path: Path) -> None:
    whole = (TRACES / "llama8b_fa3_ctx64.csv.gz").read_bytes()
    with pytest.raises(DataError, match=r":\d+: is cut off: the gzipped file has no end") as caught:
        imported(tmp_path, whole[:9000])
    assert 1000 < int(str(caught.value).split(":")[1]) < 3000
    with pytest.raises(DataError, match=r":\d+: cannot be read: Error -3 while decompressing data"):
        imported(tmp_path, whole[:9000] + b"\xff" * 4000 + whole[13000:])
    assert not (tmp_path / "out.parquet").exists()


def test_one_bad_file_among_several_leaves_no_trace(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(WHOLE[:-3])
    with pytest.raises(DataError, match=r"bad\.csv:4: is cut off"):
        import_traces([TRACES / "llama8b_fa3_bs225.csv.gz", bad], tmp_path / "out.parquet")
    assert [file.name for file in tmp_path.iterdir()] == ["bad.csv"]


# -- several files -----------------------------------------------------------------------------------


def test_several_logs_are_several_engines_or_runs_of_one(tmp_path: Path) -> None:
    paths = [TRACES / f"llama8b_fa3_{name}.csv.gz" for name in ("ctx64", "bs225")]
    import_traces(paths, tmp_path / "engines.parquet")
    import_traces(paths, tmp_path / "runs.parquet", engine="llama-8b")
    with read_trace(tmp_path / "engines.parquet") as engines, read_trace(tmp_path / "runs.parquet") as runs:
        names = ["llama8b_fa3_ctx64", "llama8b_fa3_bs225"]
        assert [(s.engine, s.run, s.rows) for s in engines.segments()] == [(names[0], 0, 5220), (names[1], 0, 1720)]
        assert [(s.engine, s.run, s.rows) for s in runs.segments()] == [("llama-8b", 0, 5220), ("llama-8b", 1, 1720)]


def test_progress_is_told_in_bytes_of_all_files(tmp_path: Path) -> None:
    paths = [TRACES / f"llama8b_fa3_{name}.csv.gz" for name in ("ctx64", "bs225")]
    told: list[int] = []
    import_traces(paths, tmp_path / "out.parquet", progress=told.append)
    assert told == sorted(told)
    assert told[-1] == sum(path.stat().st_size for path in paths)


def test_a_log_can_be_read_as_the_trace_that_it_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with read_trace(TRACES / "llama8b_fa3_ctx64.csv.gz") as trace:
        assert (trace.rows, trace.info.source) == (5220, "step_log")
        assert len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError, match="is none of"):
        read_trace(Path(__file__))
    assert not list(tmp_path.iterdir())
