"""SGLang's own logs as traces: those that real servers wrote, and each thing that a line can say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.trace_files import TRACES, rows_of
from trimtab.domain import StepFlag
from trimtab.errors import DataError
from trimtab.replay.traces.importing import ImportReport, LeftOutRows, import_traces
from trimtab.replay.traces.recording import read_trace

ARGUMENTS = "speculative_algorithm='EAGLE', speculative_num_steps=3, speculative_adaptive=False"
START = f"[2026-11-30 02:00:00] server_args=ServerArgs(model_path='/m/8b', {ARGUMENTS}, decode_log_interval=10)"


def decode(second: float, running: int, accept_len: float | None = 2.5, per_s: float = 1000.0, ranks: str = "") -> str:
    """A line about decode steps."""
    stamp = (
        f"[2026-11-30 02:00:{second:06.3f}{ranks}]" if second % 1 else f"[2026-11-30 02:00:{int(second):02d}{ranks}]"
    )
    accepted = "" if accept_len is None else f"accept len: {accept_len:.2f}, accept rate: 0.50, "
    return (
        f"{stamp} Decode batch, #running-req: {running}, #token: 812, token usage: 0.05, {accepted}"
        f"cuda graph: True, gen throughput (token/s): {per_s:.2f}, #queue-req: 2"
    )


def prefill(second: int, tokens: int = 64) -> str:
    return f"[2026-11-30 02:00:{second:02d}] Prefill batch, #new-seq: 1, #new-token: {tokens}, #running-req: 3"


def switch(second: int, before: int, after: int) -> str:
    return (
        f"[2026-11-30 02:00:{second:02d}] Switch adaptive runtime state: steps {before} -> {after}, draft_tokens 1 -> 2"
    )


def imported(folder: Path, *lines: str, end: str = "\n", **options: Any) -> ImportReport:
    (folder / "server.log").write_text("\n".join(lines) + end)
    return import_traces([folder / "server.log"], folder / "out.parquet", **options)


# -- what real servers wrote ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.5.16", "0.5.23"])
def test_a_real_server_with_fixed_steps(tmp_path: Path, version: str) -> None:
    report = import_traces([TRACES / f"sglang_{version}_fixed.log.gz"], tmp_path / "out.parquet")
    assert report.rows == report.files[0].rows == {"0.5.16": 132, "0.5.23": 197}[version]
    with read_trace(tmp_path / "out.parquet") as trace:
        (about,) = trace.info.engines
        assert (about.engine, about.initial_steps, about.start_mode) == (f"sglang_{version}_fixed", 3, "speculate(3)")
        assert about.cost_key["model"] == "/models/cycle/target"
        assert (about.kv_capacity_tokens, about.max_running_requests) == (16_384, 16)
        (columns,) = trace.batches()
    assert set(columns.steps) == {10}
    assert set(columns.ints("batch_size")) <= set(range(1, 9))
    span_s = np.ptp(columns.ints("result_ns")) / 1e9
    assert np.nansum(columns.floats("wall_gap_ns")) / 1e9 == pytest.approx(span_s, abs=1.5)
    assert 3 < np.nanmedian(columns.floats("step_ns")) / 1e6 < 30
    per_step = columns.ints("accepted_tokens") / columns.steps / columns.ints("batch_size")
    assert set(np.round(per_step, 1)) >= {0.0, 3.0}, "prompts whose drafts are all wrong, and all right"


@pytest.mark.parametrize("version", ["0.5.16", "0.5.23"])
def test_a_real_server_with_its_own_adaptive_rule(tmp_path: Path, version: str) -> None:
    (file,) = import_traces([TRACES / f"sglang_{version}_adaptive.log.gz"], tmp_path / "out.parquet").files
    assert set(file.left_out) == {"mixed_modes"}
    assert file.imported + file.left_out["mixed_modes"].rows == file.rows == {"0.5.16": 231, "0.5.23": 489}[version]
    with read_trace(tmp_path / "out.parquet") as trace:
        assert trace.info.modes == ("speculate(5)",)
        assert trace.info.engines[0].modes == ("plain_warm", "speculate(1)", "speculate(3)", "speculate(5)")


def test_a_real_server_without_speculation(tmp_path: Path) -> None:
    report = import_traces([TRACES / "sglang_0.5.23_none.log.gz"], tmp_path / "out.parquet")
    rows = rows_of(tmp_path / "out.parquet")
    assert report.rows == len(rows) == 705
    assert {row["mode"] for row in rows} == {"plain_native"}
    assert {row["accepted_tokens"] for row in rows} == {0}


# -- what a line says ----------------------------------------------------------------------------------


def test_a_line_is_an_average_of_the_steps_since_the_one_before(tmp_path: Path) -> None:
    imported(tmp_path, START, decode(1, 4), decode(2.5, 4, accept_len=2.5, per_s=2000))
    first, second = rows_of(tmp_path / "out.parquet")
    assert (second["mode"], second["batch_size"], second["steps"]) == ("speculate(3)", 4, 10)
    assert (second["emitted_tokens"], second["accepted_tokens"]) == (100, 60), "10 steps of 4 requests, 2.5 tokens each"
    assert (second["step_ns"], second["wall_gap_ns"]) == (5_000_000, 50_000_000)
    assert second["result_ns"] - first["result_ns"] == 1_500_000_000
    assert (second["kv_used_tokens"], second["running_requests"], second["waiting_requests"]) == (812, 4, 2)
    assert second["flags"] == StepFlag.GRAPH
    assert (first["step_ns"], first["wall_gap_ns"]) == (None, None), "nobody knows what was before"
    assert first["flags"] == StepFlag.GRAPH | StepFlag.GAP


def test_prefills_and_requests_that_ended_make_it_no_cost(tmp_path: Path) -> None:
    imported(tmp_path, START, decode(1, 4), prefill(2), prefill(2, 100), decode(3, 6), decode(4, 4))
    _, after, fewer = rows_of(tmp_path / "out.parquet")
    assert (after["step_ns"], after["prefill_tokens"], after["batch_size"]) == (None, 164, 6)
    assert after["flags"] & StepFlag.GAP
    assert (fewer["step_ns"], fewer["batch_size"], fewer["running_requests"]) == (None, 5, 4), "half way between"
    assert not fewer["flags"] & StepFlag.GAP


def test_a_switch_is_followed_and_the_line_over_it_left_out(tmp_path: Path) -> None:
    lines = [
        decode(1, 4),
        switch(2, 3, 1),
        decode(3, 4),
        decode(4, 4, 1.5),
        switch(5, 1, 0),
        decode(6, 4),
        decode(7, 4, 1.0),
    ]
    report = imported(tmp_path, START, *lines)
    assert report.files[0].left_out == {"mixed_modes": LeftOutRows(2, 4)}
    rows = rows_of(tmp_path / "out.parquet")
    assert [row["mode"] for row in rows] == ["speculate(3)", "speculate(1)", "plain_warm"]
    assert [bool(row["flags"] & StepFlag.SWITCHED) for row in rows] == [False, True, True]


def test_older_and_stranger_lines_are_read_by_the_names_in_them(tmp_path: Path) -> None:
    old = "(Worker pid=31, ip=10.0.0.1) [2026-11-30 02:00:01 TP0] Decode batch. #running-req: 7, #token: 10, "
    swa = "[2026-11-30 02:00:02,250 TP0 EP0] Decode batch [812], #running-req: 7, #full token: 90, #swa token: 20, "
    rest = "accept len: 3.00, gen throughput (token/s): 2100.0, #queue-req: 0, fwd occupancy: 91.00%"
    imported(
        tmp_path, START, old + rest, "some other line", swa + "accept rate: 0.6, mood: good, npu graph: False, " + rest
    )
    first, second = rows_of(tmp_path / "out.parquet")
    assert (first["kv_used_tokens"], second["kv_used_tokens"]) == (10, 90)
    assert second["result_ns"] - first["result_ns"] == 1_250_000_000
    assert second["step_ns"] == 10_000_000
    assert second["flags"] == 0


def test_ranks_of_data_parallelism_are_engines_of_their_own(tmp_path: Path) -> None:
    ranks = [" DP0 TP0", " DP1 TP4"]
    lines = [decode(second, 4 + rank, ranks=ranks[rank]) for second in (1, 2, 3) for rank in (0, 1)]
    report = imported(tmp_path, START, *lines, engine="llama")
    with read_trace(tmp_path / "out.parquet") as trace:
        assert [(s.engine, s.rows) for s in trace.segments()] == [("llama", 3), ("llama/1", 3)]
    assert (report.rows, report.files[0].rows) == (6, 6)
    assert {row["batch_size"] for row in rows_of(tmp_path / "out.parquet")[3:]} == {5}


def test_a_server_that_was_started_again_is_another_run(tmp_path: Path) -> None:
    again = START.replace("num_steps=3", "num_steps=5")
    imported(tmp_path, START, decode(1, 4), decode(2, 4), again, decode(3, 4, 5.0))
    rows = rows_of(tmp_path / "out.parquet")
    assert [(row["run"], row["mode"]) for row in rows] == [(0, "speculate(3)")] * 2 + [(1, "speculate(5)")]
    assert rows[2]["wall_gap_ns"] is None


def test_a_log_that_lost_its_beginning_needs_to_be_told_the_steps(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"server\.log: does not say how many drafts .*: give --steps"):
        imported(tmp_path, decode(1, 4), decode(2, 4))
    imported(tmp_path, decode(1, 4), decode(2, 4), steps=4)
    rows = rows_of(tmp_path / "out.parquet")
    assert [(row["mode"], row["steps"]) for row in rows] == [("speculate(4)", 40)] * 2


def test_a_switch_tells_the_steps_from_then_on(tmp_path: Path) -> None:
    report = imported(tmp_path, decode(1, 4), switch(2, 1, 3), decode(3, 4), decode(4, 4))
    assert report.files[0].left_out == {"mode_unknown": LeftOutRows(1, 1), "mixed_modes": LeftOutRows(1, 3)}
    assert [row["mode"] for row in rows_of(tmp_path / "out.parquet")] == ["speculate(3)"]


def test_lines_that_say_nothing_usable_are_left_out_and_counted(tmp_path: Path) -> None:
    torn = "[2026-11-30 02:00:02] Decode batch, #running-req: 4, #token: [2026-11-30 02:00:02] INFO: 127.0.0.1"
    pipeline = decode(3, 4, ranks=" PP1")
    report = imported(tmp_path, START, decode(1, 4), torn, pipeline, decode(4, 4, accept_len=4.5), decode(5, 4))
    assert report.files[0].left_out == {
        "unreadable": LeftOutRows(1, 3), "pipeline_rank": LeftOutRows(1, 4), "accept_len_range": LeftOutRows(1, 5),
    }  # fmt: skip
    assert (report.rows, report.files[0].rows) == (2, 5)


def test_a_log_that_is_cut_off_or_out_of_order_is_refused_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"server\.log:3: is cut off: the last line has no line break"):
        imported(tmp_path, START, decode(1, 4), decode(2, 4)[:60], end="")
    with pytest.raises(DataError, match=r"server\.log:3: time goes backwards: the lines are not in their order"):
        imported(tmp_path, START, decode(2, 4), decode(1, 4))
    assert not (tmp_path / "out.parquet").exists()
