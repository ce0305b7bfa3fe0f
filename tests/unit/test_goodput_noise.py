"""On a real host step times are noisy, the host is slow for a while, and now and then it stands still."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

import pytest

from support.fresh_cases import by_context, mixed_load, recovery
from support.noisy_driver import NoisyDriver
from trimtab.policies.registry import policy_factory
from trimtab.replay.simulation.cases import CaseEnvironment
from trimtab.replay.simulation.drivers import play
from trimtab.replay.simulation.efficiency import Judge

CASES = 8


def efficiency(case: CaseEnvironment, noise_seed: int, level: float) -> float:
    driver = NoisyDriver(case, "goodput", policy_factory("goodput"), level=level, noise_seed=noise_seed)
    return Judge(case).judge(play(case, driver), "goodput").efficiency


@pytest.mark.parametrize(
    ("make", "mean_efficiency", "least_efficiency"),
    [(mixed_load, 0.98, 0.95), (by_context, 0.98, 0.96), (recovery, 0.94, 0.9)],
)
def test_noise_and_stalls_cost_next_to_nothing(
    make: Callable[[int], CaseEnvironment], mean_efficiency: float, least_efficiency: float
) -> None:
    found = [efficiency(make(7_000 + seed), seed, 1.5) for seed in range(CASES)]
    assert mean(found) >= mean_efficiency
    assert min(found) >= least_efficiency
