"""How long do off-policy estimates take: on arrays, and from a trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from support.bandit_worlds import MODES, WORLDS, play
from support.exploring_log import record
from support.fresh_cases import mixed_load
from trimtab.replay.off_policy.estimate import estimate
from trimtab.replay.off_policy.estimators import estimate_choices
from trimtab.replay.simulation.trial import parse_policy
from trimtab.replay.traces.recording import read_trace

pytestmark = pytest.mark.bench

TRACE_ROWS = 20_000


def test_all_four_estimators_on_2000_blocks(benchmark: BenchmarkFixture) -> None:
    choices = play(WORLDS["drifting"], (1,)).choices
    found = benchmark(lambda: estimate_choices(choices, MODES)[1])
    assert len(found) == 4


@pytest.mark.parametrize("policy", ["fixed:3", "goodput"])
def test_a_trace_of_20000_rows(benchmark: BenchmarkFixture, tmp_path: Path, policy: str) -> None:
    path = record(tmp_path / "t.parquet", mixed_load(3, TRACE_ROWS), "epsilon-greedy:epsilon=0.8,dwell_steps=8")
    with read_trace(path) as trace:
        (found,) = benchmark(lambda: estimate(trace, [parse_policy(policy)], ["dr"]))
    assert found.rows == TRACE_ROWS
