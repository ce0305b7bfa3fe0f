"""The benchmark of the GPU machines in its smallest form, on the CPU engine: one cell, two contenders."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpu_tables
from engine_server import ENGINE_PYTHON

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "tests" / "gpu" / "bench.py"
CLIENTS = 2
LOAD = """
seed = 8
[acceptance]
high = [0.9]
[requests]
prompt_tokens = [8, 16]
output_tokens = [24, 48]
[closed]
clients = [2]
window_s = 2.0
passes = 1
[open]
rates = [0.5]
seconds = 2.0
drain_s = 1.0
burst = 2.0
burst_s = 0.5
between_s = 1.0
acceptance_s = 1.0
max_clients = 4
[open.requests]
prompt_tokens = [8, 16]
output_tokens = [6, 12]
[calibration]
acceptance = "high"
window_s = 0.5
saturation_steps = 3
saturation_s = 1.0
[price]
acceptance = "high"
steps = 3
clients = [1]
prompt_tokens = 8
window_s = 0.5
pairs = 2
"""


def bench(out: Path, *more: str) -> str:
    """Run it to its end; what it says."""
    command = [str(ENGINE_PYTHON), str(BENCH), "--sizes", "cpu", "--backend", "intel_amx", "--out", str(out)]
    command += ["--load", str(out / "load.toml"), "--controller-python", sys.executable, "--parts", "closed"]
    command += ["--contenders", "fixed:3,sglang-adaptive", "--seconds", "180", "--start-s", "1", *more]
    done = subprocess.run(command, cwd=out, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def out(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of one run."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "load.toml").write_text(LOAD)
    bench(folder)
    return folder


@pytest.fixture(scope="module")
def windows(out: Path) -> dict[str, dict[str, Any]]:
    """By contender."""
    (path,) = out.glob("results-*.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return {record["contender"]: record for record in records if record["kind"] == "closed"}


def test_a_pinned_mode_runs_alone_and_accepts_what_is_drawn_for_it(windows: dict[str, dict[str, Any]]) -> None:
    fixed = windows["fixed:3"]
    assert set(fixed["ms_by_mode"]) - {"prefill"} == {"speculate(3)"}
    assert fixed["failed"] == 0
    assert fixed["steps"] > 5
    # 1 + 0.9 + 0.81 + 0.729 tokens a verify and request, less what the end of a request cuts off, and the first tokens.
    per_step = fixed["tokens"] / fixed["steps"] / fixed["batch"]
    assert 2.6 < per_step < 4.2


def test_sglangs_own_rule_runs_while_no_controller_does(windows: dict[str, dict[str, Any]]) -> None:
    own = windows["sglang-adaptive"]
    assert own["tokens"] > 0
    # Its default table has these for a batch of two.
    steps = {mode for mode in own["ms_by_mode"] if mode != "prefill"}
    assert steps <= {"speculate(1)", "speculate(3)", "speculate(5)", "speculate(7)"}


def test_what_is_done_is_not_done_again(out: Path) -> None:
    assert bench(out).splitlines()[1:] == ["all is measured"]
    assert len(list(out.glob("results-*.jsonl"))) == 1


def test_the_results_make_a_table(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_tables.main([str(out)]) == 0
    printed = capsys.readouterr().out
    assert "### tiny on CPU, intel_amx" in printed
    assert "| high | 2 | fixed:3:" in printed
