"""How long does `goodput` think? For 8 bands and 8 modes, and step by step in simulation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.step_rows import MadeUpEngine
from trimtab.domain import Mode, modes_of
from trimtab.policies.bands import band_edges
from trimtab.policies.contract import Decision, PolicyContext
from trimtab.policies.registry import policy_factory
from trimtab.replay.simulation.case_file import read_case
from trimtab.replay.simulation.drivers import SessionDriver, play

pytestmark = pytest.mark.bench

CASES = Path(__file__).parents[1] / "data" / "cases"
GRAPH_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 200)
CONTEXT = PolicyContext(modes_of(range(8)), band_edges(GRAPH_BATCH_SIZES), GRAPH_BATCH_SIZES, initial_steps=3)
WARM_UP, DECISIONS = 200, 2_000
MEDIAN_MS, P99_MS = 0.3, 1.0
STEPS_A_SECOND = 10_000


def test_a_full_decision_for_8_bands_and_8_modes() -> None:
    """From a report of one step to the finished decision; what more steps take to read is measured beside it."""
    assert (len(CONTEXT.bands), len(CONTEXT.modes)) == (8, 8)
    policy, engine = policy_factory("goodput")(CONTEXT), MadeUpEngine(3, largest_batch=200)
    decision, decision_ms, report_ms = policy.choose(), [], []
    for i in range(WARM_UP + DECISIONS):
        follow = _follow(decision)
        report, last = engine.report(follow, steps=26), engine.report(follow, steps=1)
        began = time.perf_counter()
        policy.learn(report)
        between = time.perf_counter()
        policy.learn(last)
        decision = policy.choose()
        ended = time.perf_counter()
        if i >= WARM_UP:
            decision_ms.append((ended - between) * 1e3)
            report_ms.append((between - began) * 1e3)
    median, p99 = statistics.median(decision_ms), statistics.quantiles(decision_ms, n=100)[98]
    row_us = (statistics.median(report_ms) - median) / 25 * 1e3
    print(
        f"\ngoodput, 8 bands, 8 modes: a decision takes {median:.3f} ms (median), {p99:.3f} ms (p99), "
        f"every further row about {max(0.0, row_us):.1f} us"
    )
    assert median <= MEDIAN_MS
    assert p99 <= P99_MS


@pytest.mark.parametrize("name", ["m01_h200_8b_mixed_load", "c04_recover_from_plain"])
def test_simulation_step_by_step(name: str) -> None:
    case = read_case(CASES / f"{name}.jsonl")
    rates = []
    for _ in range(5):
        driver = SessionDriver(case, "goodput", policy_factory("goodput"))
        began = time.perf_counter()
        steps = len(play(case, driver).modes)
        rates.append(steps / (time.perf_counter() - began))
    print(f"\ngoodput, {name}: {statistics.median(rates):,.0f} steps a second of simulation")
    assert statistics.median(rates) >= STEPS_A_SECOND


def _follow(decision: Decision) -> Callable[[int], Mode]:
    return lambda size: next(e.mode for e in reversed(decision.table) if e.min_batch_size <= size)
