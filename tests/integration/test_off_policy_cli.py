"""`trimtab replay --estimators` as a person and as a program runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import Outcome, trimtab
from support.exploring_log import record
from support.fresh_cases import mixed_load
from support.trace_files import TRACES
from trimtab.replay.off_policy.estimate import EstimateResult
from trimtab.replay.off_policy.support import Support

README = (Path(__file__).parents[2] / "README.md").read_text()
STEP_LOG = str(TRACES / "llama8b_fa3_ctx64.csv.gz")
NO_PROBABILITY = (
    "100.0% of the steps do not say with which probability their mode was chosen, at most 5% may; record under a "
    "policy that explores, and export the journal"
)


def replay(*arguments: object) -> Outcome:
    return trimtab("unix:/nowhere/trimtabd.sock", "replay", *map(str, arguments))


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "explored.parquet"
    return record(path, mixed_load(3, 9_000, (500, 1_500)), "epsilon-greedy:epsilon=0.8,dwell_steps=8")


def test_a_person_sees_figures_and_why_there_are_none(explored: Path) -> None:
    done = replay(explored, "--policy", "fixed:3", "--policy", "fixed:7", "--estimators", "ips,dr")
    assert (done.exit_code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split()[:3] == ["POLICY", "ESTIMATOR", "TOKENS/S"]
    assert [line.split()[:2] for line in lines[1:5]] == [
        ["fixed:3", "ips"], ["fixed:3", "dr"], ["fixed:7", "ips"], ["fixed:7", "dr"],
    ]  # fmt: skip
    value, low, high = (float(cell.replace(",", "")) for cell in lines[2].split()[2:5])
    assert low < value < high
    assert lines[3].split()[2:5] == ["-", "-", "-"]
    assert lines[6].startswith(f"{explored}: 9,000 rows, ")
    assert lines[7].startswith("fixed:7, ips, dr: what the candidate wants was chosen too rarely: ")


def test_as_data_there_is_an_object_for_every_policy_and_estimator(explored: Path) -> None:
    found = replay(explored, "--policy", "fixed:3", "--estimators", "IPS, snips", "--json").data
    assert [(f["policy"], f["estimator"], f["refused"]) for f in found] == [
        ("fixed:3", "ips", None), ("fixed:3", "snips", None),
    ]  # fmt: skip
    assert found[0]["low"] < found[0]["tokens_per_s"] < found[0]["high"]
    assert set(found[0]) == set(EstimateResult.__struct_fields__)
    assert set(found[0]["support"]) == set(Support.__struct_fields__)


def test_a_log_that_nothing_was_drawn_in_is_refused_as_data() -> None:
    (found,) = replay(STEP_LOG, "--estimators", "dr", "--json").data
    assert (found["policy"], found["tokens_per_s"], found["refused"]) == ("goodput", None, NO_PROBABILITY)


def test_several_traces_are_told_apart(explored: Path) -> None:
    lines = replay(explored, STEP_LOG, "--policy", "fixed:3", "--estimators", "snips").out.splitlines()
    assert lines[0].split()[:2] == ["TRACE", "POLICY"]
    assert [line.split()[0] for line in lines[1:3]] == [str(explored), STEP_LOG]
    assert lines[5] == f"{STEP_LOG}: 0 rows, 5,220 left out (no_probability)"
    assert lines[6] == f"fixed:3, snips: {NO_PROBABILITY}"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--estimators", "dr,best"), "unknown estimator 'best'; there are: ips, snips, dm, dr"),
        (("--estimators", ","), "unknown estimator ','; there are: ips, snips, dm, dr"),
        (
            ("--estimators", "dr", "--switch-ms", "1"),
            "--estimators goes with --policy, --interval-ms, --seed and --json alone",
        ),
        (
            ("--estimators", "dr", "--verify"),
            "--verify goes with --engine and --json alone: it compares what was decided",
        ),
    ],
)
def test_what_does_not_go_together_is_one_line(arguments: tuple[str, ...], complaint: str) -> None:
    assert replay(STEP_LOG, *arguments).complaint == complaint


@pytest.mark.parametrize("keys", [EstimateResult.__struct_fields__, Support.__struct_fields__])
def test_every_key_is_listed(keys: tuple[str, ...]) -> None:
    assert {key for key in keys if f"`{key}`" not in README} == set()
