"""When is a change a change, and when is a fall worth an alarm?"""

from __future__ import annotations

import random

import pytest

from trimtab.policies.change import ChangeTest, Counts, DriftAlarm

SECOND_NS = 10**9


def draw(rng: random.Random, chance: float, requests: int) -> Counts:
    accepted = sum(rng.random() < chance for _ in range(requests))
    return Counts((float(requests),), (float(accepted),))


@pytest.mark.parametrize(
    ("before", "after", "requests", "within"),
    [(0.12, 0.93, 40, 1), (0.93, 0.12, 40, 1), (0.8, 0.5, 100, 2), (0.8, 0.6, 100, 4), (0.7, 0.3, 13, 4)],
)
def test_a_change_is_found_within_a_few_reports(before: float, after: float, requests: int, within: int) -> None:
    rng, test = random.Random(5), ChangeTest()
    assert all(test.add(draw(rng, before, requests)) is None for _ in range(40))
    found = next(i for i in range(1, 100) if test.add(draw(rng, after, requests)) is not None)
    assert found <= within


def test_what_came_since_the_change_is_handed_on_by_position() -> None:
    test = ChangeTest()
    for _ in range(10):
        test.add(Counts((100.0, 90.0), (90.0, 81.0)))
    since = test.add(Counts((100.0, 20.0, 4.0), (20.0, 4.0, 1.0)))
    assert since == Counts((100.0, 20.0, 4.0), (20.0, 4.0, 1.0))
    assert test.add(Counts((100.0, 20.0), (20.0, 4.0))) is None


@pytest.mark.parametrize("requests", [13, 100, 5_000])
def test_steady_acceptance_raises_no_false_alarm(requests: int) -> None:
    rng, test = random.Random(requests), ChangeTest()
    assert sum(test.add(draw(rng, 0.7, requests)) is not None for _ in range(400)) == 0


def test_bursts_at_batch_size_one_are_noise() -> None:
    rng, test = random.Random(11), ChangeTest()
    changes = 0
    for _ in range(150):
        accepted = sum(rng.random() < chance for chance in rng.choices([0.9, 0.71], k=1) * 6 + [0.8] * 7)
        changes += test.add(Counts((13.0,), (float(accepted),))) is not None
    assert changes == 0


def test_a_small_change_is_none_however_many_requests_say_so() -> None:
    test = ChangeTest()
    for rate in [0.70] * 10 + [0.75] * 10:
        assert test.add(Counts((1e6,), (rate * 1e6,))) is None


def hours(alarm: DriftAlarm, rates: list[float], hours_each: float = 1.0, began_h: float = 0.0) -> list[bool]:
    """One report a minute of 500 requests; whether the alarm is raised after each rate."""
    raised = []
    for i, rate in enumerate(rates):
        minutes = int(hours_each * 60)
        for minute in range(minutes):
            now_s = (began_h + i * hours_each) * 3_600 + minute * 60
            alarm.add(500.0, rate * 500.0, int(now_s) * SECOND_NS)
        raised.append(alarm.raised)
    return raised


@pytest.mark.parametrize(
    ("rates", "raised"),
    [
        ([0.72, 0.72, 0.72, 0.72], [False, False, False, False]),
        ([0.72, 0.70, 0.68, 0.66], [False, False, True, True]),
        ([0.72, 0.66, 0.72, 0.72], [False, True, False, False]),
        ([0.72, 0.80, 0.80, 0.80], [False, False, False, False]),
    ],
)
def test_a_slow_fall_below_the_engines_own_start_raises_the_alarm(rates: list[float], raised: list[bool]) -> None:
    assert hours(DriftAlarm(), rates) == raised


def test_a_change_at_once_moves_the_level_to_compare_with() -> None:
    alarm = DriftAlarm()
    hours(alarm, [0.72])
    alarm.changed(0.40)
    assert hours(alarm, [0.40, 0.40, 0.36], began_h=1.0) == [False, False, True]


def test_a_thin_report_alone_raises_nothing() -> None:
    alarm = DriftAlarm()
    hours(alarm, [0.72])
    alarm.add(1.0, 0.0, 10 * 3_600 * SECOND_NS)
    assert not alarm.raised


def test_state_goes_through_plain_values() -> None:
    test, alarm = ChangeTest(), DriftAlarm()
    test.add(Counts((4.0, 2.0), (2.0, 1.0)))
    hours(alarm, [0.72, 0.6])
    other_test, other_alarm = ChangeTest(), DriftAlarm()
    other_test.set_state(test.state())
    other_alarm.set_state(alarm.state())
    assert (other_test.state(), other_alarm.state()) == (test.state(), alarm.state())
    assert other_alarm.raised
