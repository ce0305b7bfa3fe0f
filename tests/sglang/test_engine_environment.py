"""The environment of the engine: what both environments must agree on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine_server import HERE

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(120)]


def run(python: Path | str, script: str) -> Any:
    """What a script of this folder prints as JSON on its last line."""
    done = subprocess.run([python, HERE / script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_ema_rule_decides_as_sglangs_own_class_on_the_same_histories(engine_python: Path) -> None:
    outcome = run(engine_python, "ema_against_sglang.py")
    assert outcome["same_default_table"]
    assert outcome["differences"] == []


def test_generated_code_means_the_same_under_both_protobuf_majors(engine_python: Path) -> None:
    here, there = run(sys.executable, "protobuf_round_trip.py"), run(engine_python, "protobuf_round_trip.py")
    assert {outcome["protobuf"].split(".")[0] for outcome in (here, there)} == {"6", "7"}
    assert here["digests"] == there["digests"]


def test_the_self_check_prints_what_is_hooked_and_what_would_be_refused(engine_python: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TRIMTAB_", "SGLANG_"))}
    done = subprocess.run(
        [engine_python, "-m", "trimtab_sglang.host"], env=environment, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "SGLang 0.5.23" in done.stdout
    for place in ("AdaptiveSpeculativeParams", "Scheduler.process_input_requests", "process_batch_result_decode"):
        assert place in done.stdout
    assert "refused" in done.stdout
