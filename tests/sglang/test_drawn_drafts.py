"""The acceptance that the GPU benchmark draws: by request and position, the same for every contender."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).with_name("drawn_drafts.py")


@pytest.fixture(scope="module")
def findings(engine_python: Path) -> dict[str, Any]:
    done = subprocess.run([engine_python, SCRIPT], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("phase", "wanted"), [(0, [0.9, 0.54, 0.162]), (1, [0.2, 0.04, 0.008])])
def test_drafts_are_accepted_as_often_as_the_phase_says(
    findings: dict[str, Any], phase: int, wanted: list[float]
) -> None:
    assert findings["rates"][phase] == pytest.approx(wanted, abs=0.02)


def test_what_becomes_of_a_draft_depends_on_the_request_and_the_position_alone(findings: dict[str, Any]) -> None:
    assert findings["same_in_other_slots"]
    assert findings["requests_differ"]


def test_fewer_drafts_see_a_prefix_of_what_more_drafts_see(findings: dict[str, Any]) -> None:
    assert findings["fewer_drafts_see_a_prefix"]


def test_a_step_without_drafts_accepts_none(findings: dict[str, Any]) -> None:
    assert set(findings["no_drafts"]) == {0}
