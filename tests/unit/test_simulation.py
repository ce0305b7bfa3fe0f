"""Simulated time: the real session and lease machine, at the report interval, under the same luck for everybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from support.small_cases import Script, load_with_runs, small_case
from trimtab.domain import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, Mode, StepFlag, StepRow, speculate
from trimtab.errors import PolicyError
from trimtab.policies.contract import BandDecision, Decision, PolicyContext
from trimtab.policies.registry import policy_factory
from trimtab.replay.simulation.case_file import read_case
from trimtab.replay.simulation.cases import CaseEnvironment, CostRow
from trimtab.replay.simulation.drivers import EmaDriver, FixedDriver, SessionDriver, play
from trimtab.replay.simulation.trial import parse_policy, try_policy

CASES = Path(__file__).parents[1] / "data" / "cases"
FLAP = read_case(CASES / "c01_flap_at_pivot.jsonl")
RECOVER = read_case(CASES / "c04_recover_from_plain.jsonl")


class Alternating:
    """Changes its mind at every report, and remembers every row it was shown."""

    name: ClassVar[str] = "alternating"
    summary: ClassVar[str] = "for tests"

    def __init__(self, context: PolicyContext) -> None:
        self.context = context
        self.batches: list[tuple[StepRow, ...]] = []

    def learn(self, rows: Sequence[StepRow]) -> None:
        self.batches.append(tuple(rows))

    def choose(self) -> Decision:
        mode = self.context.modes[len(self.batches) % len(self.context.modes)]
        return Decision((BandDecision(1, mode, "fixed"),), min_dwell_steps=0)

    def probability_of(self, batch_size: int, mode: Mode) -> float:
        return 1.0

    def forget(self) -> None:
        return

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        return


def alternate(case: CaseEnvironment, interval_ms: float) -> tuple[list[int], Alternating]:
    made: list[Alternating] = []

    def factory(context: PolicyContext) -> Alternating:
        made.append(Alternating(context))
        return made[-1]

    course = play(case, SessionDriver(case, "alternating", factory, interval_ms))
    return [mode.steps for mode in course.modes], made[0]


def steady_case(n_steps: int, ms: float = 100.0, switch_ms: float = 0.0) -> CaseEnvironment:
    return small_case([load_with_runs([0, 2, 8], context_tokens=50)] * n_steps, {0: ms, 3: ms}, switch_ms=switch_ms)


def test_a_switch_is_charged_to_the_step_that_runs_in_another_mode_than_the_one_before() -> None:
    case = small_case([load_with_runs([1, 4])] * 6, {0: 10.0, 3: 20.0}, start=0, switch_ms=5.0)
    script = Script([3, 3, 0, 0, 3, 3])
    course = play(case, script)
    assert course.step_ms == [25.0, 20.0, 15.0, 10.0, 25.0, 20.0]
    assert course.tokens == [6, 6, 2, 2, 6, 6]
    assert course.switches == 3
    assert course.tokens_per_s == pytest.approx(28 / 0.115)
    assert [result.end_ms for result in script.results] == [25.0, 45.0, 60.0, 70.0, 95.0, 115.0]


@pytest.mark.parametrize("steps", [0, 1, 3, 7])
def test_a_fixed_policy_through_the_session_equals_the_fixed_mode_itself(steps: int) -> None:
    through_session = try_policy(RECOVER, parse_policy(f"fixed:{steps}"))
    assert through_session == play(RECOVER, FixedDriver(speculate(steps)))


@pytest.mark.parametrize("name", ["ucb", "sglang-ema", "fixed"])
def test_the_same_policy_on_the_same_case_does_the_same_again(name: str) -> None:
    policy = parse_policy(name)
    assert try_policy(RECOVER, policy) == try_policy(RECOVER, policy)


def test_the_first_lease_is_in_force_from_the_first_step() -> None:
    assert try_policy(RECOVER, parse_policy("fixed:7")).modes[0] == speculate(7)


@pytest.mark.parametrize(
    ("interval_ms", "chosen"),
    [
        # Steps of 100 ms. The report at 250 ms leaves during the third step and is followed from the fourth on; that
        # of 500 ms leaves when the sixth has just begun.
        (250.0, [0, 0, 0, 3, 3, 3, 0, 0, 3, 3]),
        (100.0, [0, 0, 3, 0, 3, 0, 3, 0, 3, 0]),
        (10_000.0, [0] * 10),
    ],
)
def test_a_lease_is_followed_from_the_step_after_its_report(interval_ms: float, chosen: list[int]) -> None:
    steps, _ = alternate(steady_case(10), interval_ms)
    assert steps == chosen


def test_every_step_reaches_the_policy_once_and_in_order() -> None:
    steps, policy = alternate(steady_case(20), 250.0)
    rows = [row for batch in policy.batches for row in batch]
    assert [len(batch) for batch in policy.batches] == [2, 3, 2, 3, 2, 3, 2]
    assert [row.step for row in rows] == list(range(1, 18))
    assert [row.mode.steps for row in rows] == steps[:17]


def test_reports_go_on_while_a_long_step_runs_so_that_its_lease_stays_alive() -> None:
    steps, policy = alternate(steady_case(3, ms=5000.0), 250.0)
    assert len(policy.batches) == 3 * 20 - 1
    assert sum(len(batch) for batch in policy.batches) == 2
    assert steps[0] == 0


def test_a_row_says_what_an_engine_would_have_said() -> None:
    case = steady_case(8, switch_ms=2.5)
    _, policy = alternate(case, 250.0)
    rows = [row for batch in policy.batches for row in batch]
    plain, switched = rows[0], rows[3]
    assert (plain.mode, plain.batch_size, plain.emitted_tokens, plain.fresh_requests) == (PLAIN_WARM, 3, 3, 3)
    assert (plain.fresh.offered, plain.fresh.accepted) == ((), ())
    assert (plain.step_ns, plain.result_ns, plain.flags) == (100_000_000, 100_000_000, StepFlag.GRAPH)
    assert (switched.mode, switched.emitted_tokens) == (speculate(3), 8)
    assert (switched.fresh.offered, switched.fresh.accepted) == ((3, 2, 2), (2, 2, 1))
    assert switched.step_ns == switched.wall_gap_ns == 102_500_000
    assert switched.flags == StepFlag.GRAPH | StepFlag.SWITCHED
    assert (switched.padded_batch_size, switched.global_batch_size) == (64, 3)
    assert (switched.context_tokens_sum, switched.context_tokens_max) == (150, 50)
    assert (switched.lease_version, switched.table_entry) == (2, 0)
    assert (plain.lease_version, plain.table_entry) == (1, 0)


def test_the_session_is_told_the_engine_of_the_case() -> None:
    _, policy = alternate(steady_case(2), 250.0)
    assert policy.context.modes == (PLAIN_WARM, speculate(3))
    assert policy.context.graph_batch_sizes == (64,)
    assert policy.context.incumbent == PLAIN_WARM


def test_renewals_keep_the_version_while_the_decision_stays() -> None:
    driver = SessionDriver(RECOVER, "fixed", policy_factory("fixed", {"steps": 1}))
    play(RECOVER, driver)
    assert driver.machine.last_version == 1
    assert driver.session.refused == {}
    assert driver.session.acknowledged


@pytest.mark.parametrize(("case", "switches"), [(FLAP, 63), (RECOVER, 120)])
def test_sglangs_rule_flips_as_often_as_reported(case: CaseEnvironment, switches: int) -> None:
    assert play(case, EmaDriver(case)).switches == switches
    assert try_policy(case, parse_policy("sglang-ema")).switches == switches


def test_sglangs_rule_looks_at_batches_as_they_are_and_not_as_a_coarse_cost_table_pads_them() -> None:
    loads = [load_with_runs([4] * 33)] * 10
    rows = [CostRow(size, {0: 10.0, 1: 11.0}) for size in (32, 64)]
    case = CaseEnvironment("coarse", (PLAIN_WARM, speculate(1)), speculate(1), rows, loads)
    # From batch 64 up the rule never drafts; 33 requests are below that.
    assert play(case, EmaDriver(case)).modes[0] == speculate(1)


def test_sglangs_rule_runs_warm_plain_whatever_else_is_on_offer() -> None:
    modes = (PLAIN_WARM, PLAIN_COLD, PLAIN_NATIVE)
    case = CaseEnvironment("kinds", modes, PLAIN_WARM, [CostRow(64, {0: 10.0})], [load_with_runs([0] * 64)] * 3)
    assert play(case, EmaDriver(case)).modes == [PLAIN_WARM] * 3


@pytest.mark.parametrize(
    ("text", "name", "first"),
    [
        ("fixed:1", "fixed", speculate(1)),
        ("fixed:steps=1", "fixed", speculate(1)),
        ("fixed:mode=plain_warm", "fixed", PLAIN_WARM),
        ("fixed", "fixed", speculate(3)),
        ("ucb:half_life_s=2,margin=0.1", "ucb", None),
    ],
)
def test_a_policy_is_named_with_its_parameters(text: str, name: str, first: Mode | None) -> None:
    policy = parse_policy(text)
    assert (policy.text, policy.name) == (text, name)
    chosen = try_policy(RECOVER, policy).modes[0]
    assert first is None or chosen == first


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("greedy", "unknown policy 'greedy'; there are: .*fixed"),
        ("greedy:3", "unknown policy 'greedy'"),
        ("fixed:3,4", "policy 'fixed': '4' must be key=value"),
        ("fixed:speed=3", "policy 'fixed' has no parameter 'speed'; it takes: steps, mode"),
        ("sglang-ema:3", "policy 'sglang-ema': takes no parameters"),
        ("fixed:many", "policy 'fixed': Expected `int"),
    ],
)
def test_a_policy_that_does_not_exist_is_said(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        parse_policy(text)


def test_a_policy_that_cannot_work_with_a_case_names_the_case() -> None:
    with pytest.raises(PolicyError, match="c01_flap_at_pivot: steps 7 is not among"):
        try_policy(FLAP, parse_policy("fixed:7"))
