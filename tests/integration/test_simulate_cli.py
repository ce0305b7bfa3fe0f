"""`trimtab simulate` as a person and as a program runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CASES = Path(__file__).parents[1] / "data" / "cases"
FLAP, RECOVER = (CASES / f"{name}.jsonl" for name in ("c01_flap_at_pivot", "c04_recover_from_plain"))
TRIMTAB = Path(sys.executable).with_name("trimtab")


def trimtab(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(TRIMTAB), "simulate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def as_data(*arguments: object) -> list[dict[str, Any]]:
    done = trimtab(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_the_data_has_one_object_for_each_case_and_policy() -> None:
    found = as_data(FLAP, RECOVER, "--policy", "sglang-ema", "--policy", "fixed:3", "--profile", "case")
    assert [(one["case"], one["policy"]) for one in found] == [
        ("c01_flap_at_pivot", "sglang-ema"),
        ("c01_flap_at_pivot", "fixed:3"),
        ("c04_recover_from_plain", "sglang-ema"),
        ("c04_recover_from_plain", "fixed:3"),
    ]
    figures = {
        "tokens_per_s", "efficiency", "best_fixed_efficiency", "switches_per_1000_steps", "min_dwell_steps", "phases",
    }  # fmt: skip
    assert all(figures <= one.keys() for one in found)
    flap, _, recover, fixed = found
    assert flap["switches_per_1000_steps"] == pytest.approx(63 / 1.5)
    assert recover["efficiency"] == pytest.approx(0.859, abs=0.001)
    assert fixed["efficiency"] == pytest.approx(fixed["best_fixed_efficiency"])
    assert [phase["k"] for phase in fixed["phases"]] == [{"3": 300}] * 4
    assert {one["profile"] for one in found} == {"case"}


def test_the_default_policy_at_another_interval_gives_the_same_data_every_time() -> None:
    once, again = (as_data(RECOVER, "--interval-ms", 100, "--seed", 5) for _ in range(2))
    assert once == again
    assert once != as_data(RECOVER, "--interval-ms", 1000, "--seed", 5)


def test_people_get_a_table_and_the_steps_of_each_phase() -> None:
    done = trimtab(RECOVER, "--policy", "fixed:0", "--policy", "sglang-ema")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == [
        "CASE",
        "POLICY",
        "TOKENS/S",
        "EFFICIENCY",
        "BEST",
        "FIXED",
        "SWITCHES/1000",
        "MIN",
        "DWELL",
    ]
    assert lines[2].split() == ["c04_recover_from_plain", "sglang-ema", "678", "0.859", "0.745", "(k=3)", "100.0", "5"]
    assert "c04_recover_from_plain: share of steps by k, and efficiency, in each phase" in lines
    assert lines[-4].split()[:5] == ["0", "300", "0", "1.00", "0:100%"]


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "what.png"
    assert trimtab(FLAP, RECOVER, "--policy", "sglang-ema", "--plot", path).returncode == 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([FLAP, "--policy", "greedy"], "unknown policy 'greedy'; there are: "),
        ([FLAP, "--policy", "fixed:7"], "c01_flap_at_pivot: steps 7 is not among the engine's candidates"),
        ([FLAP, "--profile", "nowhere.json"], "nowhere.json: cannot be read: No such file or directory"),
        (["nowhere.jsonl"], "nowhere.jsonl: cannot be read: No such file or directory"),
        ([FLAP, "--interval-ms", "0"], "--interval-ms"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_status_2(arguments: list[object], message: str) -> None:
    done = trimtab(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_picture_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    done = trimtab(FLAP, "--plot", tmp_path / "nowhere" / "what.png")
    assert (done.returncode, done.stdout) == (2, "")
    assert "what.png: cannot be written" in done.stderr.splitlines()[-1]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text("\n".join([*FLAP.read_text().splitlines()[:5], "{oops"]) + "\n")
    done = trimtab(path)
    assert done.returncode == 2
    assert f"{path}:6: is not a line of a case" in done.stderr
