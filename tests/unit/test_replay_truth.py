"""Replay against the truth: a world that can really be run in the other mode, on the same load with other luck."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from support.token_world import (
    MODES,
    Run,
    TokenWorld,
    Wandering,
    fixed,
    random_load,
    under_policy,
    write_run,
)
from trimtab.replay.counterfactual.replay import ReplaySettings, replay
from trimtab.replay.counterfactual.result import ReplayVerdict
from trimtab.replay.simulation.drivers import Driver
from trimtab.replay.simulation.trial import parse_policy
from trimtab.replay.traces.recording import read_trace

SEEDS = (11, 12, 13)


@cache
def world(seed: int) -> TokenWorld:
    return TokenWorld(random_load(seed, stretches=16, largest=32, tokens=9_000), seed, switch_ms=0.3)


@cache
def recorded(seed: int) -> Run:
    """A run in which every mode was tried."""
    return world(seed).run(Wandering(MODES, seed), luck=seed)


@cache
def truth(seed: int, steps: int) -> Run:
    return fixed(world(seed), steps, luck=seed + 1_000)


def replayed(path: Path, seed: int, run: Run, *policies: str) -> list[ReplayVerdict]:
    write_run(path, world(seed), run.rows)
    with read_trace(path) as trace:
        found = replay(trace, [parse_policy(policy) for policy in policies], ReplaySettings(seed=seed))
    return list(found.verdicts[1:])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("steps", [0, 1, 3, 7])
def test_a_fixed_mode_would_have_made_what_it_really_makes(tmp_path: Path, seed: int, steps: int) -> None:
    (verdict,) = replayed(tmp_path / "t.parquet", seed, recorded(seed), f"fixed:{steps}")
    real = truth(seed, steps)
    assert verdict.tokens_per_s == pytest.approx(real.tokens_per_s, rel=0.025)
    assert verdict.low < real.tokens_per_s < verdict.high
    gain = real.tokens_per_s / recorded(seed).tokens_per_s
    assert verdict.against_recorded.low < gain < verdict.against_recorded.high
    assert verdict.steps == pytest.approx(len(real.rows), rel=0.03)


@pytest.mark.parametrize("policy", ["goodput", "ucb", "sglang-ema"])
def test_a_policy_would_have_made_what_it_really_makes(tmp_path: Path, policy: str) -> None:
    ratios = []
    for seed in SEEDS[:2]:
        (verdict,) = replayed(tmp_path / "t.parquet", seed, recorded(seed), policy)
        driver: Driver = under_policy(world(seed), policy, seed)
        real = world(seed).run(driver, luck=seed + 2_000)
        ratios.append(verdict.tokens_per_s / real.tokens_per_s)
        assert verdict.low < real.tokens_per_s < verdict.high
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.03)


def test_what_was_never_tried_is_told_with_the_doubt_that_it_deserves(tmp_path: Path) -> None:
    seed = SEEDS[0]
    shallow = world(seed).run(Wandering(MODES[:4], seed), luck=seed)
    seven, three = replayed(tmp_path / "t.parquet", seed, shallow, "fixed:7", "fixed:3")
    real = truth(seed, 7)
    assert seven.against_recorded.low < real.tokens_per_s / shallow.tokens_per_s < seven.against_recorded.high

    def width(verdict: ReplayVerdict) -> float:
        return verdict.against_recorded.high / verdict.against_recorded.low

    assert width(seven) > 1.25 > width(three)
    assert seven.notes == (
        "what a step costs in speculate(7) was never measured",
        "acceptance beyond 3 drafts was never seen, as speculate(7) needs it",
    )


def test_where_only_sums_are_known_the_figures_stand_with_more_doubt(tmp_path: Path) -> None:
    seed = SEEDS[0]
    run, path = recorded(seed), tmp_path / "t.csv"
    lines = ["t_s,num_steps,batch_size,accepted_drafts"]
    for row in run.rows:
        accepted = sum(row.fresh.accepted)
        lines.append(f"{row.result_ns / 1e9:.6f},{row.mode.steps},{row.batch_size},{accepted}")
    path.write_text("\n".join(lines) + "\n")
    with read_trace(path) as trace:
        verdict = replay(trace, [parse_policy("fixed:3")], ReplaySettings(seed=seed)).verdicts[1]
    assert verdict.truncated_share == 0
    assert verdict.observed_share + verdict.modelled_share == pytest.approx(1.0)
    assert verdict.tokens_per_s == pytest.approx(truth(seed, 3).tokens_per_s, rel=0.05)
    assert verdict.low < truth(seed, 3).tokens_per_s < verdict.high


def test_shares_of_tokens_say_where_the_figures_come_from(tmp_path: Path) -> None:
    seed = SEEDS[0]
    for verdict in replayed(tmp_path / "t.parquet", seed, recorded(seed), "fixed:0", "fixed:3", "fixed:7"):
        assert verdict.observed_share + verdict.truncated_share + verdict.modelled_share == pytest.approx(1.0)
        steps = int(verdict.policy.partition(":")[2])
        tokens = [(row.mode.steps, row.emitted_tokens) for row in recorded(seed).rows]
        total = sum(emitted for _, emitted in tokens)
        assert verdict.observed_share == pytest.approx(sum(e for k, e in tokens if k == steps) / total)
        assert verdict.truncated_share == pytest.approx(sum(e for k, e in tokens if k > steps) / total)
