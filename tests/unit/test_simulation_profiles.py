"""What policies are told about costs in simulation: the case's own table, a file, or nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trimtab.domain import PLAIN_WARM
from trimtab.policies.contract import Policy, PolicyContext
from trimtab.policies.profile import CostProfile
from trimtab.policies.registry import policy_factory
from trimtab.replay.simulation.case_file import read_case
from trimtab.replay.simulation.case_profiles import profile_source
from trimtab.replay.simulation.trial import NamedPolicy, try_policy

FILES = sorted((Path(__file__).parents[1] / "data" / "cases").glob("*.jsonl"))
CASES = [path for path in FILES if json.loads(path.read_text().partition("\n")[0])["trace"] == "env"]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_profile_of_a_case_predicts_every_step_of_it(path: Path) -> None:
    case = read_case(path)
    profile = profile_source("case")(case)
    assert profile is not None
    for load in set(case.loads):
        for mode in case.modes:
            assert profile.step_ms(mode, load.batch_size, load.context_tokens) == case.step_ms(mode, load)


@pytest.mark.parametrize("told", ["case", "none"])
def test_the_policy_is_told_the_profile_that_was_asked_for(told: str) -> None:
    case = read_case(CASES[0])
    seen: list[CostProfile | None] = []

    def factory(context: PolicyContext) -> Policy:
        seen.append(context.profile)
        return policy_factory("fixed")(context)

    profile = profile_source(told)(case)
    try_policy(case, NamedPolicy("spy", "spy", factory), profile)
    assert seen == [profile]
    assert (profile is None) == (told == "none")


def test_a_profile_file_is_told_whatever_its_key(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text('{"key": {"model": "other"}, "points": [{"batch_size": 8, "ms": {"plain_warm": 5}}]}')
    profile = profile_source(str(path))(read_case(CASES[0]))
    assert profile is not None
    assert profile.step_ms(PLAIN_WARM, 8) == 5.0
