"""`trimtab trace` as a person and as a program runs it, on real logs and on the journal of a real daemon."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.command_line import TRIMTAB, Outcome, trimtab
from support.daemon_process import DaemonProcess
from support.scripted_engine import ScriptedEngine, decode_row
from support.trace_files import STEP_LOGS, TRACES, rows_of, table_of
from trimtab.domain import PLAIN_WARM, speculate
from trimtab.replay.journals import summary as journal_summary
from trimtab.replay.traces import exporting as trace_export
from trimtab.replay.traces import importing as trace_import
from trimtab.replay.traces import summary as trace_summary
from trimtab.replay.traces.schema import TraceEngine
from trimtab.wire import mode_from_wire

NOWHERE = "unix:/nowhere/trimtabd.sock"
README = (Path(__file__).parents[2] / "README.md").read_text()
LOGS = [str(TRACES / f"{name}.csv.gz") for name in STEP_LOGS]
SERVER_LOG = str(TRACES / "sglang_0.5.23_adaptive.log.gz")


def trace(*arguments: object, target: str = NOWHERE, **environment: str) -> Outcome:
    return trimtab(target, "trace", *map(str, arguments), **environment)


# -- import --------------------------------------------------------------------------------------------


def test_import_makes_one_trace_of_many_files_and_says_what_became_of_each(tmp_path: Path) -> None:
    out = tmp_path / "all.parquet"
    done = trace("import", *LOGS, SERVER_LOG, "-o", out)
    assert (done.exit_code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == f"{out}: {sum(STEP_LOGS.values()) + 248:,} rows, 241 left out"
    assert lines[1].split() == ["FILE", "SOURCE", "ROWS", "IMPORTED", "ENGINES"]
    assert lines[2].split()[1:4] == ["step_log", "3,080", "3,080"]
    assert lines[8].split()[1:4] == ["sglang_log", "489", "248"]
    assert re.fullmatch(rf"left out of {SERVER_LOG}: 241 mixed_modes, the first in line \d+", lines[9])
    assert len(rows_of(out)) == sum(STEP_LOGS.values()) + 248


def test_import_as_data(tmp_path: Path) -> None:
    found = trace("import", LOGS[0], SERVER_LOG, "-o", tmp_path / "t.parquet", "--engine", "llama", "--json").data
    assert (found["rows"], found["left_out"]) == (3080 + 248, 241)
    first, second = found["files"]
    assert (first["source"], first["rows"], first["imported"], first["left_out"]) == ("step_log", 3080, 3080, {})
    assert (first["engines"], second["engines"]) == (["llama run 0"], ["llama run 1"])
    assert second["left_out"]["mixed_modes"]["rows"] == 241


def test_a_person_at_a_terminal_sees_a_bar_of_bytes(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    command = [str(TRIMTAB), "trace", "import", *LOGS, "-o", str(tmp_path / "t.parquet")]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, timeout=60, check=False)
    os.close(theirs)
    assert done.returncode == 0
    shown = os.read(ours, 1 << 16)
    os.close(ours)
    assert b"Reading" in shown
    assert b"kB" in shown


def contents() -> dict[str, tuple[bytes, str]]:
    zipped = (TRACES / "llama8b_fa3_ctx64.csv.gz").read_bytes()
    log = b"t_s,num_steps,batch_size,accepted_drafts\n0.0,3,4,5\n"
    return {
        "truncated.csv.gz": (zipped[:9000], ": is cut off: the gzipped file has no end; get the whole file"),
        "reordered.csv": (log + b"0.2,3,4,5\n0.1,3,4,5\n", ":4: time goes backwards: the rows are not in their order"),
        "half.csv": (log + b"0.2,3", ":3: is cut off: the last line has no line break"),
        "half.jsonl": (b'{"mode": "plain_warm", "batch_size": 4, "step_ms": 1}\n{"mo', ":2: is no step row"),
        "foreign.txt": (b"Dear all,\nplease find attached\n", ": is none of: a step log"),
        "half.parquet": (b"PAR1" + b"x" * 500, ": is not a whole Parquet file"),
        "gone.csv": (b"", ": is empty"),
    }


@pytest.mark.parametrize("name", contents())
def test_a_file_that_cannot_be_used_is_one_line_and_leaves_everything_as_it_was(tmp_path: Path, name: str) -> None:
    content, problem = contents()[name]
    (tmp_path / name).write_bytes(content)
    out = tmp_path / "out.parquet"
    assert trace("import", LOGS[1], "-o", out).exit_code == 0
    before = out.read_bytes()
    done = trace("import", LOGS[0], tmp_path / name, "-o", out)
    assert problem in done.complaint
    assert name in done.complaint
    assert out.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == sorted([name, "out.parquet"])


def test_a_disk_that_is_full_is_one_line_and_leaves_everything_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    out.write_bytes(b"what was there")
    command = f'ulimit -f 20; exec "{TRIMTAB}" trace import {" ".join(LOGS)} -o {out}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"trimtab: {out}: cannot be written: ")
    assert done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == ["out.parquet"]
    assert out.read_bytes() == b"what was there"


def test_without_a_command_there_is_help() -> None:
    done = trace()
    assert done.exit_code == 0
    assert all(command in done.out for command in ("import", "info", "export"))


# -- info ----------------------------------------------------------------------------------------------


def test_info_of_a_log_for_a_person_and_for_a_program() -> None:
    lines = trace("info", LOGS[3]).out.splitlines()
    assert lines[0] == f"{LOGS[3]}: step_log, 5,220 rows of 5,220 decode steps"
    assert lines[1] == "rows with counts by depth 0.0%, with a step time 99.8%, with a propensity 0.0%"
    assert lines[4].split() == ["ENGINE", "RUN", "ROWS", "TIME", "TOKENS", "MISSING", "STEPS", "GAPS", "GAP", "TIME"]
    assert lines[5].split()[:4] == ["llama8b_fa3_ctx64", "0", "5,220", "54s"]
    found = trace("info", LOGS[3], "--json").data
    assert (found["rows"], found["source"], len(found["modes"])) == (5220, "step_log", 6)
    assert found["batch_size"] == {"smallest": 1, "median": 16, "largest": 243, "distinct": 9}


def test_info_of_something_else_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    assert "is none of: a step log" in trace("info", tmp_path / "notes.txt").complaint
    (tmp_path / "other.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    assert "other.db" in trace("info", tmp_path / "other.db").complaint


def structs() -> list[Any]:
    modules = (trace_import, trace_summary, trace_export, journal_summary)
    found = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
    }
    return sorted({*found, TraceEngine}, key=lambda struct: struct.__name__)


@pytest.mark.parametrize("struct", structs(), ids=lambda struct: str(struct.__name__))
def test_every_key_of_the_json_output_is_in_the_readme(struct: Any) -> None:
    section = README.split("\n## Traces\n", 1)[1].split("\n## ", 1)[0]
    assert {key for key in struct.__struct_fields__ if f"`{key}`" not in section} == set()


# -- export, from a real daemon --------------------------------------------------------------------------


def reported(engine: ScriptedEngine, steps: int) -> int:
    """Let the engine follow a lease and report so many steps under it; the lease's version."""
    lease = engine.next_lease()
    engine.follow(lease)
    mode = mode_from_wire("lease.mode", lease.table[0].mode)
    first = engine.step + 1
    engine.step += steps
    engine.report([
        decode_row(step, mode, batch_size=1, lease_version=lease.version, table_entry=0)
        for step in range(first, first + steps)
    ])  # fmt: skip
    return int(lease.version)


def settings(folder: Path, steps: int) -> tuple[str, str]:
    """Arguments of a daemon that always decides for so many steps."""
    path = folder / "trimtabd.toml"
    path.write_text(f'[policy]\nname = "fixed"\nparameters = {{ steps = {steps} }}\n')
    return "--config", str(path)


def exported(daemon: DaemonProcess, out: Path, rows: int, *arguments: object) -> Any:
    """The report of an export, as soon as the journal has so many rows."""
    deadline = time.monotonic() + 10
    while True:
        done = trace("export", daemon.state, "-o", out, *arguments, "--json")
        if done.exit_code == 0 and done.data["rows"] >= rows:
            return done.data
        assert time.monotonic() < deadline, done
        time.sleep(0.1)


def test_the_journal_of_a_running_daemon_becomes_a_trace(tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    with (
        DaemonProcess(*settings(tmp_path, 1)) as daemon,
        ScriptedEngine(daemon.target, "llama-a") as one,
        ScriptedEngine(daemon.target, "llama-b") as other,
    ):
        for engine in (one, other):
            engine.start()
            version = reported(engine, 40)
        report = exported(daemon, out, 80)
        assert report["engines"] == {"llama-a run 0": 40, "llama-b run 0": 40}
        assert (report["left_out"], report["unknown_lease"]) == ({}, 0)
        rows = rows_of(out)
        assert {row["mode"] for row in rows} == {str(speculate(1))}
        assert {row["lease_version"] for row in rows} == {version}
        assert {row["probability"] for row in rows} == {1.0}
        only = exported(daemon, out, 40, "--engine", "llama-b", "--since", "1h")
        assert only["engines"] == {"llama-b run 0": 40}
        shown = trace("info", daemon.state).out
    assert re.search(r"^ENGINE +ENTRIES +REPORTS +LEASES$", shown, re.MULTILINE)
    assert re.search(r"^llama-a +\d+ +1 +\d+$", shown, re.MULTILINE)
    assert "no entry is missing" in shown


def test_a_small_export_can_be_csv_and_info_of_a_journal_be_data(tmp_path: Path) -> None:
    with DaemonProcess(*settings(tmp_path, 0)) as daemon, ScriptedEngine(daemon.target, "llama-a") as engine:
        engine.start()
        reported(engine, 30)
        exported(daemon, tmp_path / "t.parquet", 30)
        people = trace("export", daemon.state / "journal.db", "-o", tmp_path / "t.csv")
        info = trace("info", daemon.state / "journal.db", "--json").data
        for arguments, problem in EXPORT_COMPLAINTS.items():
            assert problem in trace("export", daemon.state, "-o", tmp_path / "no.parquet", *arguments).complaint
    assert people.out == f"{tmp_path / 't.csv'}: 30 rows of llama-a run 0\n"
    trace("import", tmp_path / "t.csv", "-o", tmp_path / "again.parquet")
    assert table_of(tmp_path / "again.parquet").equals(table_of(tmp_path / "t.parquet"))
    assert {row["mode"] for row in rows_of(tmp_path / "again.parquet")} == {str(PLAIN_WARM)}
    assert [run["state"] for run in info["runs"]] == ["open"]
    assert info["gaps"] == []
    assert info["engines"][0]["kinds"]["report"] == 1
    assert not (tmp_path / "no.parquet").exists()


EXPORT_COMPLAINTS = {
    ("--until", "1h"): "has no step rows that were asked for",
    ("--engine", "z"): "has no engine 'z'; there are: llama-a",
    ("--since", "noon"): "--since 'noon' is no time: write it as 2026-11-30T14:00 (UTC), or as 2h for two hours ago",
}
