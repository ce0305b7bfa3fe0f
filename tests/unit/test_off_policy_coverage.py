"""How often do the 95% intervals hold the truth, in worlds in which it is known?

Every run is a log of its own. Runs count in which the log supports the candidate: at least 100 effective blocks.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain

import pytest
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from support.bandit_worlds import MODES, WORLDS, play
from support.commit_seed import commit_seed
from trimtab.replay.off_policy.estimators import estimate_choices
from trimtab.replay.off_policy.support import LEAST_EFFECTIVE

FIGURES = ("tokens_per_step", "step_ms", "tokens_per_s")
# Whether each interval held the truth, by estimator and figure; nothing where the estimate was refused.
Held = dict[tuple[str, str], bool]
# In each world.
LONG_RUNS = 1_500


def one_run(world: str, seed: int, number: int) -> Held:
    known = play(WORLDS[world], (seed, number))
    with threadpool_limits(1):
        support, estimates = estimate_choices(known.choices, MODES, seed=number)
    held: Held = {}
    for estimate in estimates:
        if estimate.refused is None:
            assert estimate.estimator == "dm" or support.effective_blocks >= LEAST_EFFECTIVE
            for figure in FIGURES:
                interval = getattr(estimate, figure)
                held[estimate.estimator, figure] = interval.low <= getattr(known, figure) <= interval.high
    return held


def coverage(runs: Iterable[Held]) -> dict[tuple[str, str], float]:
    """Share of the intervals that held the truth; at least half of the runs must have spoken."""
    counted: dict[tuple[str, str], list[bool]] = defaultdict(list)
    total = 0
    for held in runs:
        total += 1
        for key, value in held.items():
            counted[key].append(value)
    assert all(len(values) > total / 2 for values in counted.values())
    return {key: sum(values) / len(values) for key, values in counted.items()}


def without_model(shares: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """What does not stand or fall with the model."""
    return {key: share for key, share in shares.items() if key[0] != "dm"}


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    found = coverage(one_run("drawing_candidate", 1, number) for number in range(150))
    assert len(found) == 12
    for share in found.values():
        assert 0.90 <= share <= 0.99


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_over_thousands_of_runs_intervals_hold_the_truth_in_93_to_97_of_100(capsys: pytest.CaptureFixture[str]) -> None:
    runs: dict[str, list[Held]] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for world in WORLDS:
            runs[world] = list(pool.map(partial(one_run, world, commit_seed()), range(LONG_RUNS), chunksize=10))
    by_world = {world: coverage(of_world) for world, of_world in runs.items()}
    with capsys.disabled():
        for world, found in by_world.items():
            print(f"\n{world}: intervals of {LONG_RUNS:,} runs that held the truth")
            for (estimator, figure), share in found.items():
                print(f"  {estimator:<6} {figure:<16} {share:.1%}")
    for key, share in without_model(coverage(chain.from_iterable(runs.values()))).items():
        assert 0.93 <= share <= 0.97, key
    # A single figure in a single world is known to half a percent.
    for world, found in by_world.items():
        for key, share in without_model(found).items():
            assert 0.92 <= share <= 0.98, (world, key)
