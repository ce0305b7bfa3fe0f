"""When the plugin's own guard finds a lease harmful, and when it does not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import fresh_cases
from support.guarded import verdicts_on
from trimtab.replay.environment import Environment
from trimtab.replay.simulation.case_file import read_case
from trimtab.replay.simulation.day import DayEnvironment
from trimtab_sglang.guard import FORGET_NS, KNOWN_ROWS, Guard, Harm
from trimtab_sglang.lease import PLAIN_NATIVE, PLAIN_WARM, Mode, speculate
from trimtab_sglang.rows import GAP, GRAPH, SWEEP, WARM_UP, Row

CASES = Path(__file__).resolve().parents[1] / "data" / "cases"
MS = 1_000_000
PLAIN_MS = 10.0
S = 1000 * MS


class Engine:
    """Steps one after the other, and what the guard makes of them."""

    def __init__(self) -> None:
        self.guard = Guard()
        self.now_ns = 0

    def run(
        self, mode: Mode, step_ms: float, accepted: float = 0.0, seconds: float = 3.0, **fields: Any
    ) -> Harm | None:
        """Steps of one kind for so long, or until the guard finds harm. `accepted` drafts a request and step."""
        end_ns = self.now_ns + round(seconds * S)
        harm = None
        while self.now_ns < end_ns and harm is None:
            harm = self.step(mode, step_ms, accepted, **fields)
        return harm

    def step(self, mode: Mode, step_ms: float, accepted: float = 0.0, **fields: Any) -> Harm | None:
        """One step of four requests."""
        self.now_ns += round(step_ms * MS)
        size = fields.pop("batch_size", 4)
        told: dict[str, Any] = {
            "launch_id": 1, "step": 1, "result_ns": self.now_ns, "mode": mode, "lease_version": 1, "table_entry": 0,
            "batch_size": size, "padded_batch_size": size, "offered": (), "accepted": (), "fresh_requests": size,
            "emitted_tokens": round(size * (1 + accepted)), "step_ns": round(step_ms * MS),
            "wall_gap_ns": round(step_ms * MS), "prefill_tokens": 0, "context_tokens_sum": 400,
            "context_tokens_max": 100, "retracted_requests": 0, "accepted_worst_decile": 0.0, "flags": GRAPH,
            "stale_offered": (), "stale_accepted": (), "stale_requests": 0, "catch_up_ns": -1, "missed_tokens": 0,
            "caught_up_tokens": 0, **fields,
        }  # fmt: skip
        return self.guard.watch(Row(**told))

    def know_plain(self, **fields: Any) -> Engine:
        """Plain steps under the engine's own policy, enough to know their pace."""
        for _ in range(KNOWN_ROWS):
            assert self.step(PLAIN_WARM, PLAIN_MS, lease_version=0, **fields) is None
        return self


# -- harm ----------------------------------------------------------------------------------------


def test_a_lease_under_nine_tenths_of_plain_for_two_seconds_is_harmful() -> None:
    engine = Engine().know_plain()
    began_ns = engine.now_ns
    harm = engine.run(speculate(5), 20.0, accepted=0.5)
    assert harm is not None
    assert str(harm) == "0.75 of the tokens of plain decoding over 2.1 s"
    assert 2 * S <= engine.now_ns - began_ns < 2.2 * S


@pytest.mark.parametrize(("accepted", "harmful"), [(0.75, True), (1.0, False), (3.0, False)])
def test_what_counts_is_tokens_in_time_and_not_acceptance(accepted: float, harmful: bool) -> None:
    engine = Engine().know_plain()
    assert (engine.run(speculate(5), 20.0, accepted, seconds=10) is not None) == harmful


def test_a_step_that_is_a_hundred_times_slower_counts_and_so_does_every_one_after_it() -> None:
    engine = Engine().know_plain()
    assert engine.run(speculate(3), 11.0, accepted=2.0) is None
    assert engine.run(speculate(3), 1100.0, accepted=2.0, seconds=10) is not None


def test_a_single_wedged_step_is_not_enough() -> None:
    engine = Engine().know_plain()
    for _ in range(3):
        assert engine.run(speculate(3), 11.0, accepted=2.0, seconds=3) is None
        assert engine.step(speculate(3), 2500.0, accepted=2.0) is None


def test_where_plain_was_never_measured_the_mode_with_the_fewest_drafts_stands_in_for_it() -> None:
    engine = Engine()
    engine.run(speculate(1), 11.0, accepted=0.5, seconds=1, lease_version=0)
    assert engine.run(speculate(7), 30.0, accepted=1.0) is not None
    assert Engine().run(speculate(7), 30.0, accepted=0.0, seconds=20) is None


# -- no harm -------------------------------------------------------------------------------------


def test_long_gaps_behind_prefill_never_count() -> None:
    engine = Engine().know_plain()
    for _ in range(400):
        assert engine.step(speculate(3), 400.0, accepted=0.0, flags=GRAPH | GAP, step_ns=-1) is None
        assert engine.step(speculate(3), 11.0, accepted=2.0) is None


@pytest.mark.parametrize(
    "fields",
    [{"flags": GRAPH | WARM_UP}, {"flags": GRAPH | SWEEP}, {"lease_version": 0}, {"fresh_requests": 0}],
    ids=str,
)
def test_warm_up_sweeps_and_what_no_lease_chose_are_not_judged(fields: dict[str, Any]) -> None:
    engine = Engine().know_plain()
    assert engine.run(speculate(7), 60.0, seconds=20, **fields) is None


def test_a_controller_that_has_mended_it_is_left_alone() -> None:
    engine = Engine().know_plain()
    assert engine.run(speculate(5), 20.0, seconds=1.5) is None
    assert engine.run(PLAIN_WARM, PLAIN_MS, seconds=5) is None


def test_a_pause_without_a_lease_begins_the_two_seconds_anew() -> None:
    engine = Engine().know_plain()
    for _ in range(5):
        assert engine.run(speculate(5), 20.0, seconds=1.5) is None
        assert engine.step(speculate(5), 20.0, lease_version=0) is None


def test_short_bad_stretches_among_good_ones_are_not_enough() -> None:
    engine = Engine().know_plain()
    for _ in range(20):
        assert engine.run(speculate(3), 14.0, accepted=0.0, seconds=0.6) is None
        assert engine.run(speculate(3), 14.0, accepted=2.5, seconds=1.0) is None


# -- the estimate --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "judged", "step_ms", "harmful"),
    [
        # A larger batch takes at least as long, a smaller one in proportion at most.
        ({"batch_size": 8}, {"batch_size": 4}, 12.0, True),
        ({"batch_size": 2}, {"batch_size": 4}, 20.0, False),
        ({"batch_size": 2}, {"batch_size": 4}, 23.0, True),
        # So does more context.
        ({"context_tokens_sum": 400}, {"context_tokens_sum": 1600}, 40.0, False),
        ({"context_tokens_sum": 400}, {"context_tokens_sum": 1600}, 45.0, True),
        ({"context_tokens_sum": -1}, {"context_tokens_sum": 1600}, 12.0, True),
        # An eager step says nothing of one from a graph.
        ({"flags": 0}, {"flags": GRAPH}, 40.0, False),
        ({"flags": 0}, {"flags": 0}, 40.0, True),
    ],
    ids=str,
)
def test_plain_at_another_batch_size_or_context_is_an_upper_bound(
    known: dict[str, Any], judged: dict[str, Any], step_ms: float, harmful: bool
) -> None:
    engine = Engine().know_plain(**known)
    assert (engine.run(speculate(5), step_ms, seconds=10, **judged) is not None) == harmful


def test_of_several_kinds_of_plain_the_cheapest_counts() -> None:
    engine = Engine().know_plain()
    for _ in range(KNOWN_ROWS):
        engine.step(PLAIN_NATIVE, PLAIN_MS / 2, lease_version=0)
    assert engine.run(speculate(3), 11.0, accepted=1.0) is None
    assert engine.run(speculate(3), 11.0, accepted=0.5) is not None


def test_a_pace_is_known_after_some_rows_and_forgotten_after_a_while_and_after_a_reset() -> None:
    engine = Engine()
    for _ in range(KNOWN_ROWS - 1):
        engine.step(PLAIN_WARM, PLAIN_MS, lease_version=0)
    assert engine.run(speculate(5), 40.0) is None
    engine.step(PLAIN_WARM, PLAIN_MS, lease_version=0)
    assert engine.run(speculate(5), 40.0) is not None

    engine.now_ns += FORGET_NS
    assert engine.run(speculate(5), 40.0) is None
    engine.know_plain().guard.forget()
    assert engine.run(speculate(5), 40.0) is None


def test_a_pace_follows_an_engine_that_gets_slower() -> None:
    engine = Engine().know_plain()
    for _ in range(50):
        engine.step(PLAIN_WARM, 2 * PLAIN_MS, lease_version=0)
    assert engine.run(speculate(5), 21.0, accepted=0.0) is None


def test_jitter_of_a_fifth_on_every_step_is_no_harm() -> None:
    drawn, engine = random.Random(3), Engine()
    for _ in range(200):
        engine.step(PLAIN_WARM, PLAIN_MS * drawn.uniform(0.8, 1.2), lease_version=0)
    for _ in range(20_000):
        size = drawn.choice((1, 2, 3, 4))
        step_ms = 1.1 * PLAIN_MS * drawn.uniform(0.8, 1.2)
        assert engine.step(speculate(3), step_ms, accepted=drawn.choice((0, 0, 1)), batch_size=size) is None


# -- mixed loads ---------------------------------------------------------------------------------


def mixed_loads() -> Iterator[Environment]:
    yield from (read_case(path) for path in sorted(CASES.glob("[cm]0[1234]_*.jsonl")) if "c03" not in path.name)
    kinds = (fresh_cases.mixed_load, fresh_cases.by_context, fresh_cases.recovery, fresh_cases.any_switch_cost)
    yield from (kind(seed) for kind in kinds for seed in (1, 2))
    yield DayEnvironment(seconds=30, seed=1)


@pytest.mark.parametrize("environment", list(mixed_loads()), ids=lambda environment: environment.name)
def test_under_the_default_policy_no_mixed_load_looks_harmful(environment: Environment) -> None:
    assert verdicts_on(environment, "goodput") == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 23))
def test_under_the_default_policy_no_fresh_load_looks_harmful(seed: int) -> None:
    kinds = (fresh_cases.mixed_load, fresh_cases.by_context, fresh_cases.recovery, fresh_cases.any_switch_cost)
    assert [verdicts_on(kind(seed), "goodput") for kind in kinds] == [[]] * len(kinds)


def test_a_policy_that_explores_where_switches_are_dear_is_found_out() -> None:
    assert verdicts_on(fresh_cases.dear_switches(2), "thompson")
