"""Small things that keep the plugin a good guest: lines that are not repeated, a controller that is not let talk on."""

from __future__ import annotations

import logging

import pytest

from trimtab_sglang.pace import BURST, MESSAGES_PER_S, Pace
from trimtab_sglang.quiet import MAX_LINES, QuietLog


class Clock:
    """Time under a test's hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(clock: Clock, caplog: pytest.LogCaptureFixture) -> QuietLog:
    caplog.set_level(logging.INFO)
    return QuietLog(logging.getLogger("trimtab"), clock)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{record.levelname}: {record.getMessage()}" for record in caplog.records]


def test_a_line_is_said_once_a_minute_and_then_with_how_often_it_was_held_back(
    log: QuietLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(60):
        log.info("connected to %s", "a")
        clock.now_s += 1
    assert said(caplog) == ["INFO: connected to a"]
    log.info("connected to %s", "a")
    assert said(caplog)[1:] == ["INFO: connected to a (and 59 times in the last 60 s)"]
    clock.now_s += 60
    log.info("connected to %s", "a")
    assert said(caplog)[2:] == ["INFO: connected to a"]


def test_other_lines_are_said_meanwhile(log: QuietLog, caplog: pytest.LogCaptureFixture) -> None:
    log.info("connected to %s", "a")
    log.warning("no controller at %s: %s", "a", "100% refused")
    log.info("connected to %s", "b")
    assert said(caplog) == ["INFO: connected to a", "WARNING: no controller at a: 100% refused", "INFO: connected to b"]


def test_what_was_said_is_not_remembered_without_bound(log: QuietLog, caplog: pytest.LogCaptureFixture) -> None:
    for i in range(3 * MAX_LINES):
        log.info("line %d", i)
        assert len(log._said) <= MAX_LINES
    assert len(said(caplog)) == 3 * MAX_LINES


def test_a_controller_that_talks_at_its_usual_pace_never_waits(clock: Clock) -> None:
    pace = Pace(clock)
    for _ in range(200):
        clock.now_s += 0.1
        assert pace.debt_s() == 0


def test_a_flood_is_read_at_a_fixed_pace(clock: Clock) -> None:
    pace = Pace(clock)
    began_s, read = clock.now_s, 400
    for _ in range(read):
        clock.now_s += pace.debt_s()
    assert clock.now_s - began_s == pytest.approx((read - BURST) / MESSAGES_PER_S, abs=0.1)


def test_a_flood_strains_from_when_half_a_burst_is_used_up_and_a_pause_ends_that(clock: Clock) -> None:
    pace = Pace(clock)
    for _ in range(int(BURST)):
        clock.now_s += pace.debt_s()
    assert pace.strained_s == 0, "a burst is no flood"
    while pace.strained_s <= 1.0:
        clock.now_s += pace.debt_s()
    assert clock.now_s - 100.0 == pytest.approx(1.0, abs=0.1)
    clock.now_s += BURST / MESSAGES_PER_S
    pace.debt_s()
    assert pace.strained_s == 0


def test_messages_at_the_pace_never_strain(clock: Clock) -> None:
    pace = Pace(clock)
    for _ in range(400):
        clock.now_s += 1 / MESSAGES_PER_S
        pace.debt_s()
        assert pace.strained_s == 0
