"""`trimtab demo` for people and for programs, and its engine beside a daemon like any other."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Outcome, trimtab
from support.daemon_process import DaemonProcess
from trimtab.replay.simulation.day import DAY_MODES

NOBODY = "unix:/nowhere/trimtabd.sock"
FIXED = [f"fixed-{mode.steps}" for mode in DAY_MODES]


@pytest.fixture(scope="module")
def standings() -> list[dict[str, Any]]:
    # The demo starts a daemon of its own: where the operator's is does not matter.
    found: list[dict[str, Any]] = trimtab(NOBODY, "demo", "--seconds", "3", "--json").data
    return found


@pytest.fixture(scope="module")
def shown() -> Outcome:
    return trimtab(NOBODY, "demo", "--seconds", "1")


def test_for_programs_it_prints_what_everyone_made_of_the_same_day(standings: list[dict[str, Any]]) -> None:
    assert [row["policy"] for row in standings] == ["trimtab", "sglang-ema", *FIXED]
    assert all(row["tokens_per_s"] > 1000 and row["steps"] > 1000 for row in standings)
    by_policy = {row["policy"]: row for row in standings}
    assert by_policy["trimtab"]["switches"] > 0
    # The day begins in the engine's initial steps.
    assert {name: by_policy[name]["switches"] for name in FIXED} == {name: int(name != "fixed-3") for name in FIXED}


def test_what_trimtab_makes_is_near_the_best_fixed_mode_or_above(standings: list[dict[str, Any]]) -> None:
    by_policy = {row["policy"]: row["tokens_per_s"] for row in standings}
    assert by_policy["trimtab"] > 0.95 * max(by_policy[name] for name in FIXED)


def test_for_people_it_ends_with_the_table_of_the_same_figures(shown: Outcome, standings: list[dict[str, Any]]) -> None:
    assert (shown.exit_code, shown.err.strip()) == (0, "")
    table = shown.out.splitlines()[-len(standings) - 1 :]
    assert table[0].split() == ["POLICY", "TOKENS/S", "OF", "BEST", "FIXED", "SWITCHES"]
    best = max(row["tokens_per_s"] for row in standings if row["policy"] in FIXED)
    assert [line.split() for line in table[1:]] == [
        [row["policy"], f"{row['tokens_per_s']:,.0f}", f"{row['tokens_per_s'] / best:.3f}", str(row["switches"])]
        for row in sorted(standings, key=lambda row: -row["tokens_per_s"])
    ]


def test_for_people_it_shows_the_engine_while_the_day_lasts(shown: Outcome) -> None:
    live, _, _ = shown.out.partition("The same day under every policy")
    assert "trimtab demo: a day of load, 1 s to go" in live
    assert "demo-engine" in live


def test_it_leaves_no_process_behind(shown: Outcome) -> None:
    orphans = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            sockets = [word for word in path.read_text().split("\0") if "/trimtab-demo-" in word]
            orphans += [word for word in sockets if not Path(word).parent.exists()]
    assert not orphans


@pytest.mark.parametrize("seconds", ["0.5", "long"])
def test_a_length_that_cannot_be_used_is_one_line_and_exit_2(seconds: str) -> None:
    assert "--seconds" in trimtab(NOBODY, "demo", "--seconds", seconds).complaint


# -- its engine ----------------------------------------------------------------------------------


@contextmanager
def engine_process(target: str, seconds: float, **environment: str) -> Iterator[subprocess.Popen[str]]:
    told = {"TRIMTAB_CONTROLLER": target, "TRIMTAB_ENGINE_ID": "embedded-1", **environment}
    command = [sys.executable, "-m", "trimtab.demo.embedded_engine", "--seconds", str(seconds)]
    process = subprocess.Popen(command, env={**os.environ, **told}, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def listed(daemon: DaemonProcess, within_s: float = 15.0) -> dict[str, Any]:
    """The engine as `trimtab engines --json` lists it, once it runs under a lease."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        engines = trimtab(daemon.target, "engines", "--json").data
        if engines and engines[0]["decided_by"] == "lease" and engines[0]["goodput_tps"]:
            found: dict[str, Any] = engines[0]
            return found
    raise AssertionError(f"no engine under a lease within {within_s} s")


def test_the_embedded_engine_is_listed_like_any_other_and_says_goodbye_at_the_end_of_its_day() -> None:
    with DaemonProcess() as daemon, engine_process(daemon.target, 4, TRIMTAB_LABELS="pool=demo") as process:
        engine = listed(daemon)
        assert process.wait(20) == 0
        assert daemon.logged("engine_disconnected")["reason"] == "goodbye: engine stops"
        assert "Traceback" not in daemon.text()
    assert (engine["engine_id"], engine["state"], engine["acts"]) == ("embedded-1", "connected", True)
    assert (engine["labels"], engine["model"]) == ({"pool": "demo"}, "Llama shape, 8B")
    assert engine["mode"]["steps"] in {mode.steps for mode in DAY_MODES}
    assert engine["lease"]["acknowledged"]
    assert engine["goodput_tps"] > 100
    assert engine["running_requests"] > 0


def test_an_embedded_engine_without_a_controller_plays_its_day() -> None:
    with engine_process(NOBODY, 1) as process:
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert err.count("\n") == 1
    assert err.startswith(f"trimtab has no controller at {NOBODY}: UNAVAILABLE")


def test_an_embedded_engine_with_a_setting_that_cannot_be_used_says_so_and_ends() -> None:
    with engine_process(NOBODY, 1, TRIMTAB_MODE="on") as process:
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (2, "TRIMTAB_MODE is 'on'; it takes off, observe or act\n")


def test_an_embedded_engine_that_is_off_says_nothing() -> None:
    with engine_process(NOBODY, 1, TRIMTAB_MODE="off") as process:
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")


def test_an_interrupted_engine_ends() -> None:
    with DaemonProcess() as daemon, engine_process(daemon.target, 60) as process:
        listed(daemon)
        process.send_signal(signal.SIGTERM)
        process.wait(5)
        assert daemon.logged("engine_disconnected")
