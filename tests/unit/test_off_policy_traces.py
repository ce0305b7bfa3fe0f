"""From a trace to estimates: a simulated engine logs while it explores, other policies really run on its states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from support.exploring_log import RecordingDriver, record
from support.fresh_cases import mixed_load
from support.step_rows import MadeUpEngine
from support.trace_files import STEP_LOGS, TRACES, write_rows
from trimtab.domain import modes_of, speculate
from trimtab.errors import PolicyError
from trimtab.replay.off_policy.estimate import EstimateResult, OffPolicySettings, estimate
from trimtab.replay.off_policy.estimators import ESTIMATORS
from trimtab.replay.simulation.cases import CaseEnvironment
from trimtab.replay.simulation.drivers import Course, play
from trimtab.replay.simulation.trial import parse_policy, try_policy
from trimtab.replay.statistics.interval import Interval
from trimtab.replay.traces.recording import read_trace
from trimtab.replay.traces.schema import TraceEngine
from trimtab.replay.traces.writer import TraceWriter

EXPLORING = "epsilon-greedy:epsilon=0.8,dwell_steps=8"


def free_switches(seed: int, steps: int) -> CaseEnvironment:
    """A case in which a step's time depends on the step alone, so that policies meet the same states."""
    case = mixed_load(seed, steps, (500, 1_500))
    return CaseEnvironment(case.name, case.modes, case.start, case.cost_rows, case.loads, 0.0)


CASE = free_switches(3, 10_000)
STANDING = ("fixed:3", "fixed:1", "table:1:5;8:3;32:1")
Found = dict[tuple[str, str], EstimateResult]


def estimates(path: Path, *policies: str, estimators: Sequence[str] = tuple(ESTIMATORS)) -> list[EstimateResult]:
    with read_trace(path) as trace:
        return estimate(trace, [parse_policy(policy) for policy in policies], estimators)


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an exploring policy logged on the case."""
    return record(tmp_path_factory.mktemp("log") / "explored.parquet", CASE, EXPLORING, seed=2)


@pytest.fixture(scope="module")
def listed(explored: Path) -> list[EstimateResult]:
    """What is made of it for all policies."""
    return estimates(explored, *STANDING, "goodput", EXPLORING)


@pytest.fixture(scope="module")
def found(listed: list[EstimateResult]) -> Found:
    """The same by policy and estimator."""
    return {(result.policy, result.estimator): result for result in listed}


def really_run(policy: str) -> Course:
    return try_policy(CASE, parse_policy(policy))


def interval(result: EstimateResult) -> Interval:
    assert result.refused is None
    assert result.tokens_per_s is not None
    assert result.low is not None
    assert result.high is not None
    return Interval(result.tokens_per_s, result.low, result.high)


def agrees(found: Interval | None, truth: float) -> bool:
    """Within three standard errors: an interval of 95% is about two wide to either side."""
    assert found is not None
    return abs(math.log(truth / found.value)) < 1.5 * math.log(found.high / found.value)


@pytest.mark.parametrize("policy", STANDING)
def test_they_agree_with_really_running_the_policy_on_the_same_states(found: Found, policy: str) -> None:
    truth = really_run(policy)
    for estimator in ("ips", "snips", "dr"):
        result = found[policy, estimator]
        assert agrees(interval(result), truth.tokens_per_s)
        assert agrees(result.tokens_per_step, sum(truth.tokens) / len(truth.tokens))
        assert agrees(result.step_ms, sum(truth.step_ms) / len(truth.step_ms))


def test_with_a_model_the_interval_is_a_fraction_of_that_without(found: Found) -> None:
    ips, dr = (interval(found["fixed:3", estimator]) for estimator in ("ips", "dr"))
    assert dr.high - dr.low < (ips.high - ips.low) / 2


def test_the_policy_that_logged_is_found_to_earn_what_it_earned(found: Found) -> None:
    result = found[EXPLORING, "ips"]
    assert result.recorded_tokens_per_s == pytest.approx(really_run(EXPLORING).tokens_per_s, rel=0.05)
    assert interval(result).value == pytest.approx(result.recorded_tokens_per_s, rel=0.03)
    assert result.support.mean_weight == pytest.approx(1.0, abs=0.02)


def test_policies_that_learn_are_estimated_by_what_they_would_have_learnt_of_the_log(found: Found) -> None:
    assert agrees(interval(found["goodput", "ips"]), really_run("goodput").tokens_per_s)


def test_results_come_policy_by_policy_and_say_what_they_rest_on(listed: list[EstimateResult]) -> None:
    assert [(f.policy, f.estimator) for f in listed[:5]] == [
        *(("fixed:3", estimator) for estimator in ("ips", "snips", "dm", "dr")), ("fixed:1", "ips"),
    ]  # fmt: skip
    first = listed[0]
    assert (first.trace, first.rows, first.left_out) == ("explored.parquet", 10_000, {})
    assert first.support.steps == 10_000
    assert 1_200 <= first.support.blocks <= 1_251
    assert 100 <= first.support.effective_blocks < first.support.blocks / 3


def test_they_go_through_json(listed: list[EstimateResult]) -> None:
    assert msgspec.json.decode(msgspec.json.encode(listed), type=list[EstimateResult]) == listed


def test_the_same_trace_gives_the_same_figures(explored: Path, found: Found) -> None:
    (again,) = estimates(explored, "fixed:1", estimators=["dr"])
    assert again == found["fixed:1", "dr"]


def test_a_mode_that_the_log_did_not_explore_is_refused_by_its_name(tmp_path: Path) -> None:
    case = free_switches(4, 4_000)
    path = record(tmp_path / "fixed.parquet", case, "fixed:3")
    for found in estimates(path, "fixed:1", estimators=["ips", "snips", "dr"]):
        assert found.tokens_per_s is None
        assert found.refused == (
            "in 100.0% of the steps the candidate wants a mode that the log could not choose there, speculate(1) above "
            "all; at most 0.5% may"
        )


@pytest.mark.parametrize("name", list(STEP_LOGS)[:1])
def test_a_log_without_probabilities_is_refused_at_once(name: str) -> None:
    for found in estimates(TRACES / f"{name}.csv.gz", "goodput", "fixed:3"):
        assert found.refused == (
            "100.0% of the steps do not say with which probability their mode was chosen, at most 5% may; record under "
            "a policy that explores, and export the journal"
        )
        assert (found.low, found.high, found.step_ms, found.recorded_tokens_per_s) == (None,) * 4
        assert (found.rows, found.left_out) == (0, {"no_probability": STEP_LOGS[name]})


def test_a_trace_without_rows_is_refused(tmp_path: Path) -> None:
    (found,) = estimates(write_rows(tmp_path / "empty.parquet", []), "fixed:3", estimators=["ips"])
    assert found.refused


def test_every_engine_has_a_candidate_of_its_own(tmp_path: Path) -> None:
    case = free_switches(5, 7_000)
    path = tmp_path / "two.parquet"
    with TraceWriter(path, "journal") as writer:
        for name, seed in (("a", 1), ("b", 2)):
            driver = RecordingDriver(case, EXPLORING, seed)
            play(case, driver)
            writer.begin(
                TraceEngine(name, 0, modes=tuple(map(str, case.modes)), graph_batch_sizes=case.graph_batch_sizes)
            )
            writer.write_rows(driver.rows, driver.probabilities, driver.dwell_steps)
    (both,) = estimates(path, "fixed:3", estimators=["dr"])
    assert both.rows == 14_000
    assert agrees(interval(both), try_policy(case, parse_policy("fixed:3")).tokens_per_s)


def test_a_policy_that_cannot_work_with_an_engine_says_so(explored: Path) -> None:
    with pytest.raises(PolicyError, match="steps 4 is not among"):
        estimates(explored, "fixed:4")


def test_progress_goes_up_to_all_of_it(explored: Path) -> None:
    told: list[float] = []
    with read_trace(explored) as trace:
        estimate(trace, [parse_policy("fixed:3")], ["ips"], OffPolicySettings(), progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_rows_of_modes_that_were_not_offered_still_have_a_place(tmp_path: Path) -> None:
    rows = MadeUpEngine(2).report(lambda size: speculate(size % 2), 300)
    path = tmp_path / "t.parquet"
    with TraceWriter(path, "journal") as writer:
        writer.begin(TraceEngine("a", 0, modes=tuple(map(str, modes_of([1, 3]))), graph_batch_sizes=(64,)))
        writer.write_rows(rows, [0.5] * 300, [1] * 300)
    (found,) = estimates(path, "fixed:3", estimators=["dm"])
    assert "wants speculate(3) in 100.0% of the steps, which ran in 0 blocks" in str(found.refused)
