"""`trimtab profile` as a person and as a program runs it, and profiles in a real daemon."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.command_line import TRIMTAB, Outcome, trimtab
from support.daemon_process import DaemonProcess, run_trimtabd
from support.scripted_engine import ScriptedEngine
from trimtab.domain import speculate
from trimtab.profile_file import read_profile
from trimtabpb.v1 import control_pb2 as pb

TRACES = Path(__file__).parents[1] / "data" / "traces"
ONE, OTHER = (str(TRACES / f"llama8b_fa3_{name}.csv.gz") for name in ("ctx64", "per_request"))
TABLE = Path(__file__).parents[2] / "controller" / "trimtab" / "data" / "step_time_h200.csv"
NOWHERE = "unix:/nowhere/trimtabd.sock"
SPECULATION = pb.Speculation(
    algorithm="EAGLE", topk=1, adaptive=True, initial_steps=3, model="/models/8b", draft_model="/models/8b-eagle",
    attention_backend="fa3", dtype="bfloat16", kv_cache_dtype="auto", weight_version="v1", device_name="NVIDIA H200",
)  # fmt: skip
ABOUT: dict[str, Any] = {
    "speculation": SPECULATION,
    "software": pb.Software(sglang_version="0.5.23"),
    "topology": pb.Topology(tp_size=1),
}


def profile(*arguments: object, target: str = NOWHERE) -> Outcome:
    return trimtab(target, "profile", *map(str, arguments))


def fitted(folder: Path, *arguments: object) -> Path:
    """A profile file of a real log."""
    path = folder / "8b.json"
    done = profile("fit", ONE, "-o", path, "--prompt-tokens", 64, *arguments)
    assert (done.exit_code, done.err) == (0, ""), done
    return path


def test_fit_learns_from_a_real_log_and_says_how_well(tmp_path: Path) -> None:
    path = tmp_path / "8b.json"
    done = profile(
        "fit", ONE, "-o", path, "--prompt-tokens", 64, "--key", "model=8B", "--key", "device_name=NVIDIA H200"
    )
    assert (done.exit_code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == f"{path}: 9 batch sizes and 6 modes from 4,865 of 5,220 rows"
    assert lines[1] == "left out: 342 beside_switch, 12 gap, 1 untimed"
    assert lines[2].startswith("context: 0.0322 us a token of the batch, beyond ")
    assert lines[5].split() == ["BATCH", "MODE", "ROWS", "MEDIAN", "MS", "ERROR", "HELD", "OUT"]
    assert len(lines) == 6 + 52
    found = read_profile(path)
    assert found.key.stated() == {"model": "8B", "device_name": "NVIDIA H200"}
    assert found.profile.step_ms(speculate(3), 128, 64) == pytest.approx(15.5, rel=0.05)


def test_fit_as_data_has_an_error_for_every_cell(tmp_path: Path) -> None:
    path = tmp_path / "8b.json"
    found = profile("fit", ONE, OTHER, "-o", path, "--prompt-tokens", 64, "--json").data
    assert found.keys() >= {"file", "key", "rows", "used_rows", "left_out", "context", "cells"}
    assert found["rows"] == 5220 + 4860 == found["used_rows"] + sum(found["left_out"].values())
    assert found["worst_held_out_error"] <= 0.06
    assert all(abs(cell["error"]) <= 0.06 for cell in found["cells"])
    kept = json.loads(path.read_text())["provenance"]
    assert kept["sources"] == ["llama8b_fa3_ctx64.csv.gz", "llama8b_fa3_per_request.csv.gz"]
    assert kept["cells"] == found["cells"]


def test_check_holds_a_profile_against_another_start_of_the_engine(tmp_path: Path) -> None:
    path = fitted(tmp_path)
    cells = profile("check", path, OTHER, "--prompt-tokens", 64, "--json").data["cells"]
    assert max(abs(cell["error"]) for cell in cells if cell["mode"] != "plain_cold") <= 0.02
    for_people = profile("check", path, OTHER, "--prompt-tokens", 64).out.splitlines()
    assert for_people[0].startswith("error: +6.2% at the most (batch 32, plain_cold), 14 batch sizes")
    assert len(for_people) == 2 + 14


def test_fit_takes_one_model_and_backend_of_the_measured_table(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    found = profile("fit", TABLE, "-o", path, "--model", "8B", "--attention-backend", "triton", "--json").data
    assert found["key"] == {"model": "8B", "attention_backend": "triton"}
    assert found["worst_held_out_error"] is None
    assert read_profile(path).profile.step_ms(speculate(7), 128) > 40


def test_moe_lets_more_steps_be_faster(tmp_path: Path) -> None:
    rows = [{"batch_size": 4, "mode": mode, "step_ms": ms} for mode, ms in
            (("plain_warm", 9.0), ("speculate(1)", 6.0), ("speculate(3)", 7.0)) for _ in range(50)]  # fmt: skip
    trace, path = tmp_path / "rows.jsonl", tmp_path / "p.json"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cells = profile("fit", trace, "-o", path, "--moe", "--json").data["cells"]
    assert {cell["error"] for cell in cells} == {0.0}
    cells = profile("fit", trace, "-o", path, "--json").data["cells"]
    assert [cell["error"] for cell in cells] == pytest.approx([-0.1967, 0.205, 0.0329], abs=0.001)


def test_what_fit_writes_simulate_reads(tmp_path: Path) -> None:
    case = TRACES.parent / "cases" / "c01_flap_at_pivot.jsonl"
    done = trimtab(NOWHERE, "simulate", str(case), "--profile", str(fitted(tmp_path)), "--policy", "goodput", "--json")
    assert done.data[0]["efficiency"] > 0.8


COMPLAINTS: dict[str, tuple[list[str], str]] = {
    "too little": (["fit", "{rows}", "-o", "{out}"], "too little to learn from: 3 usable rows"),
    "no output": (["fit", ONE], "Missing option '-o'"),
    "no trace": (["fit", "/nowhere.csv", "-o", "{out}"], "/nowhere.csv: cannot be read: No such file or directory"),
    "no such field": (["fit", ONE, "-o", "{out}", "--key", "gpu=H200"], "unknown field `gpu`; the fields of a key are"),
    "no pair": (["fit", ONE, "-o", "{out}", "--key", "H200"], "--key 'H200' must be key=value"),
    "no sizes": (["fit", ONE, "-o", "{out}", "--graph-sizes", "1,two"], "must be batch sizes with commas between"),
    "no folder": (["fit", ONE, "-o", "/nowhere/p.json"], "/nowhere/p.json: cannot be written"),
    "no daemon": (["fit", ONE, "-o", "{out}", "--like", "llama-a"], "no controller answers"),
    "no profile": (["check", "{rows}", ONE], "is not a profile"),
}


@pytest.mark.parametrize(("arguments", "words"), COMPLAINTS.values(), ids=COMPLAINTS)
def test_what_cannot_be_done_is_one_line_and_leaves_no_file(tmp_path: Path, arguments: list[str], words: str) -> None:
    rows, out = tmp_path / "rows.csv", tmp_path / "out.json"
    rows.write_text("batch_size,mode,step_ms\n" + "4,plain_warm,5\n" * 3)
    done = profile(*(argument.format(rows=rows, out=out) for argument in arguments))
    assert words in done.complaint
    assert not out.exists()


def test_without_a_command_there_is_help() -> None:
    done = profile()
    assert done.exit_code == 0
    assert "fit" in done.out
    assert "check" in done.out


def test_a_person_at_a_terminal_sees_a_bar(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    command = [str(TRIMTAB), "profile", "fit", ONE, "-o", str(tmp_path / "p.json")]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, timeout=60, check=False)
    os.close(theirs)
    assert done.returncode == 0
    assert b"Reading" in os.read(ours, 1 << 16)
    os.close(ours)


# -- in the daemon -----------------------------------------------------------------------------------


def settings_with(folder: Path, *files: Path) -> Path:
    path = folder / "trimtabd.toml"
    path.write_text("".join(f'[[profile]]\nfile = "{file.name}"\n' for file in files))
    return path


@contextmanager
def with_engine(*arguments: str) -> Iterator[DaemonProcess]:
    """A daemon with these arguments, and an engine that follows it."""
    with DaemonProcess(*arguments) as daemon, ScriptedEngine(daemon.target, "llama-a", **ABOUT) as engine:
        engine.start()
        engine.next_lease()
        yield daemon


def shown(daemon: DaemonProcess) -> Any:
    return trimtab(daemon.target, "show", "llama-a", "--json").data


def test_a_profile_with_an_engines_key_is_used_for_it(tmp_path: Path) -> None:
    with with_engine() as daemon:
        path = tmp_path / "like.json"
        done = profile("fit", ONE, "-o", path, "--like", "llama-a", target=daemon.target)
        assert done.exit_code == 0
        assert "the key lacks" not in done.out
    assert read_profile(path).key.stated() == {
        "model": "/models/8b", "weight_version": "v1", "draft_model": "/models/8b-eagle", "device_name": "NVIDIA H200",
        "attention_backend": "fa3", "dtype": "bfloat16", "kv_cache_dtype": "auto", "tp_size": 1,
        "sglang_version": "0.5",
    }  # fmt: skip
    with with_engine("--config", str(settings_with(tmp_path, path)), "--policy", "goodput") as daemon:
        assert daemon.logged("profile_used")["profile"] == "like.json"
        view = shown(daemon)
        assert (view["profile"], view["profile_ignored"]) == ("like.json", None)
        assert view["speculation"]["device_name"] == "NVIDIA H200"
        (first, *_) = view["bands"]
        by_mode = {candidate["mode"]["steps"]: candidate["step_ms"] for candidate in first["candidates"]}
        assert by_mode[3] == pytest.approx(5.93, rel=0.02)


def test_a_mismatch_is_ignored_and_shown(tmp_path: Path) -> None:
    path = fitted(tmp_path, "--key", "model=/models/8b", "--key", "device_name=NVIDIA H100")
    why = "8b.json: device_name is 'NVIDIA H100' there, 'NVIDIA H200' here"
    with with_engine("--config", str(settings_with(tmp_path, path))) as daemon:
        logged = daemon.logged("profile_ignored")
        assert (logged["why"], logged["level"]) == (why, "warning")
        assert shown(daemon)["profile_ignored"] == why
        page = trimtab(daemon.target, "show", "llama-a").out
        assert f"none: {why}" in " ".join(page.split())


def test_the_daemon_refuses_a_profile_that_would_hold_for_every_engine(tmp_path: Path) -> None:
    config = settings_with(tmp_path, fitted(tmp_path))
    for arguments in (("--check-config", str(config)), ("--config", str(config))):
        done = run_trimtabd(*arguments)
        assert done.returncode == 2
        assert "profile[0].key.model: is missing: the profile would be taken for every engine" in done.stderr
    good = settings_with(tmp_path, fitted(tmp_path, "--key", "model=8B", "--key", "device_name=NVIDIA H200"))
    done = run_trimtabd("--check-config", str(good))
    assert done.returncode == 0
    assert done.stdout.startswith(f"{good}: ok\n")
