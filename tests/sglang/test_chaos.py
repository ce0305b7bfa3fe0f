"""A minute of chaos around a real engine's controller; `make chaos` is ten."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos import ChaosRun, Outcome
from controller_process import short_folder

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(400)]

EVERYDAY_S, LONG_S = 60.0, 600.0
SEED = 1


def chaos(models: Path, seconds: float) -> Outcome:
    with short_folder() as folder:
        run = ChaosRun(models, folder, SEED)
        return run.disturbed(seconds, run.expected(), run.stock_gap_s())


def check(outcome: Outcome) -> None:
    print(outcome.report())
    assert outcome.problems() == []
    assert len({episode.kind for episode in outcome.episodes}) >= 5
    assert outcome.answers > 50
    assert outcome.led_share > 0.2


def test_whatever_happens_to_the_controller_no_request_fails_stalls_or_changes(models: Path) -> None:
    check(chaos(models, EVERYDAY_S))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_same_for_ten_minutes(models: Path) -> None:
    check(chaos(models, LONG_S))
