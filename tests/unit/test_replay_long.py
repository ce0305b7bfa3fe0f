"""Replay at length: intervals over many worlds that nobody could look at, and ten million steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.commit_seed import commit_seed
from support.long_replay import replay_cost
from support.long_trace import write_trace
from support.token_world import MODES, Run, TokenWorld, Wandering, fixed, random_load, write_run
from trimtab.replay.counterfactual.replay import replay
from trimtab.replay.simulation.trial import parse_policy
from trimtab.replay.statistics.interval import Interval
from trimtab.replay.traces.recording import read_trace

pytestmark = pytest.mark.long

WORLDS = 40
STEPS = (0, 1, 3, 7)


def covers(interval: Interval, truth: float) -> bool:
    return interval.low <= truth <= interval.high


@pytest.mark.timeout(1800)
def test_intervals_cover_what_a_mode_makes_of_load_like_that_of_the_trace(tmp_path: Path) -> None:
    """Every world is a draw of one process of load: the truth is what all of them make together, with other luck."""
    runs: dict[int, list[Run]] = {steps: [] for steps in STEPS}
    recorded: list[Run] = []
    found: dict[int, list[tuple[Interval, Interval]]] = {steps: [] for steps in STEPS}
    for i in range(WORLDS):
        seed = commit_seed() + i
        world = TokenWorld(random_load(seed, stretches=40, largest=32, tokens=4_000), seed)
        recorded.append(world.run(Wandering(MODES, seed), luck=seed))
        with read_trace(write_run(tmp_path / "t.parquet", world, recorded[-1].rows)) as trace:
            verdicts = replay(trace, [parse_policy(f"fixed:{steps}") for steps in STEPS]).verdicts[1:]
        for steps, verdict in zip(STEPS, verdicts, strict=True):
            runs[steps].append(fixed(world, steps, luck=seed + 1_000_000))
            found[steps].append((Interval(verdict.tokens_per_s, verdict.low, verdict.high), verdict.against_recorded))
    shares, own = [], []
    for steps in STEPS:
        rate, gain = together(runs[steps]), together(runs[steps]) / together(recorded)
        shares.append(
            (np.mean([covers(r, rate) for r, _ in found[steps]]), np.mean([covers(g, gain) for _, g in found[steps]]))
        )
        for (r, g), run, ran in zip(found[steps], runs[steps], recorded, strict=True):
            own.append((covers(r, run.tokens_per_s), covers(g, run.tokens_per_s / ran.tokens_per_s)))
    print(f"\ncoverage of the process by mode, rate and gain: {np.round(shares, 3).tolist()}")
    print(f"coverage of each world's own truth, rate and gain: {np.round(np.mean(own, axis=0), 3).tolist()}")
    assert np.mean(shares, axis=0).min() >= 0.88
    assert np.mean(own, axis=0).min() >= 0.95


def together(runs: list[Run]) -> float:
    return sum(run.tokens for run in runs) / sum(run.seconds for run in runs)


@pytest.mark.timeout(3600)
def test_ten_million_steps_take_a_gigabyte_at_most_and_ten_times_as_long_as_one_million(tmp_path: Path) -> None:
    costs = {}
    for millions in (1, 3, 10):
        path = tmp_path / "t.parquet"
        write_trace(path, millions * 1_000_000)
        costs[millions] = replay_cost(path, "fixed:3")
        cost = costs[millions]
        print(f"\n{millions} million: {cost.cpu_s:.1f} s, {cost.rows_per_s:,.0f} rows/s, {cost.peak_mb:,.0f} MB")
    assert costs[10].peak_mb <= 1024
    assert costs[10].cpu_s <= 1.3 * 10 * costs[1].cpu_s
    assert costs[10].rows_per_s >= 200_000


@pytest.mark.timeout(3600)
def test_goodput_on_a_million_steps_costs_as_much_a_step_as_on_a_tenth_of_them(tmp_path: Path) -> None:
    short, long = (replay_cost(_trace(tmp_path, rows), "goodput") for rows in (100_000, 1_000_000))
    print(f"\ngoodput: {short.steps_per_s:,.0f} and {long.steps_per_s:,.0f} steps/s, {long.peak_mb:,.0f} MB")
    assert long.steps_per_s >= 0.7 * short.steps_per_s
    assert long.peak_mb <= 1024


def _trace(folder: Path, rows: int) -> Path:
    path = folder / f"{rows}.parquet"
    write_trace(path, rows)
    return path
