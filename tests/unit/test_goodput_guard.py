from __future__ import annotations

import pytest

from trimtab.policies.guard import Guard


def reports(guard: Guard, ratio: float, n: int, ms: float = 250.0) -> int | None:
    """Reports in a drafting mode at this share of plain's goodput; the number of the one that closed the guard."""
    for i in range(1, n + 1):
        guard.add(ms, ratio * 100.0, 100.0)
        if guard.closed:
            return i
    return None


@pytest.mark.parametrize(("ratio", "closes_at"), [(1.5, None), (0.95, None), (0.85, 6), (0.3, 6)])
def test_it_closes_when_drafting_stays_under_the_plain_estimate(ratio: float, closes_at: int | None) -> None:
    assert reports(Guard(), ratio, 40) == closes_at


def test_one_bad_report_among_good_ones_is_forgiven() -> None:
    guard = Guard()
    assert reports(guard, 1.2, 8) is None
    assert reports(guard, 0.3, 1) is None
    assert reports(guard, 1.2, 8) is None


def test_a_few_steps_of_a_large_batch_do_not_outweigh_a_second_of_a_small_one() -> None:
    guard = Guard()
    guard.add(200.0, 3_000.0, 6_000.0)
    for _ in range(8):
        guard.add(250.0, 120.0, 100.0)
    assert not guard.closed


def test_what_drafting_did_before_a_long_time_in_plain_is_forgotten() -> None:
    guard = Guard()
    guard.add(900.0, 10.0, 100.0)
    guard.fade(10_000.0)
    assert reports(guard, 0.95, 8) is None


def test_it_opens_again_and_stays_closed_twice_as_long_the_next_time() -> None:
    guard, held = Guard(), []
    for _ in range(3):
        reports(guard, 0.5, 40)
        closed_ms = 0
        while guard.closed:
            guard.wait(100.0)
            closed_ms += 100
        held.append(closed_ms)
    assert held == [5_000, 10_000, 20_000]


def test_while_closed_nothing_counts() -> None:
    guard = Guard()
    reports(guard, 0.5, 40)
    before = guard.state()
    guard.add(250.0, 0.0, 100.0)
    assert guard.state() == before
