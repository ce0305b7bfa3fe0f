from __future__ import annotations

import pytest

from trimtab.domain import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, Mode, speculate
from trimtab.policies.profile import ProfilePoint, profile_of

POINTS = [
    ProfilePoint(8, {PLAIN_WARM: 10.0, PLAIN_NATIVE: 8.0, speculate(1): 12.0, speculate(5): 20.0}),
    ProfilePoint(32, {PLAIN_WARM: 20.0, PLAIN_NATIVE: 16.0, speculate(1): 28.0, speculate(5): 60.0}, 1_024),
    ProfilePoint(32, {PLAIN_WARM: 30.0, PLAIN_NATIVE: 26.0, speculate(1): 40.0, speculate(5): 80.0}),
]


@pytest.mark.parametrize(
    ("mode", "batch_size", "context_tokens", "ms"),
    [
        (PLAIN_WARM, 8, None, 10.0),
        (PLAIN_WARM, 3, 5_000, 10.0),
        (PLAIN_WARM, 9, None, 20.0),
        (PLAIN_WARM, 500, 1_024, 20.0),
        (PLAIN_WARM, 32, 1_025, 30.0),
        (PLAIN_NATIVE, 8, None, 8.0),
        (PLAIN_COLD, 8, None, 10.0),
        (speculate(5), 20, 90_000, 80.0),
        (speculate(3), 8, None, 16.0),
        (speculate(7), 8, None, 24.0),
    ],
)
def test_a_batch_costs_what_the_next_listed_size_and_context_cost(
    mode: Mode, batch_size: int, context_tokens: int | None, ms: float
) -> None:
    assert profile_of(reversed(POINTS)).step_ms(mode, batch_size, context_tokens) == pytest.approx(ms)


def test_a_profile_of_one_mode_has_one_time() -> None:
    profile = profile_of([ProfilePoint(8, {speculate(3): 10.0})])
    assert profile.step_ms(speculate(1), 8) == profile.step_ms(PLAIN_WARM, 8) == 10.0


@pytest.mark.parametrize("points", [[], [ProfilePoint(8, {})], [ProfilePoint(8, {PLAIN_WARM: 0.0})]])
def test_a_profile_without_times_is_refused(points: list[ProfilePoint]) -> None:
    with pytest.raises(ValueError, match="profile needs"):
        profile_of(points)
