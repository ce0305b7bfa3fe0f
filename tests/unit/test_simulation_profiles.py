"""What policies are told about costs in simulation: the case's own table, a file, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.domain import PLAIN_COLD, PLAIN_WARM, speculate
from trimtab.errors import DataError
from trimtab.policies.contract import Policy, PolicyContext
from trimtab.policies.profile import CostProfile
from trimtab.policies.registry import policy_factory
from trimtab.replay.case_file import read_case
from trimtab.replay.profiles import profile_source
from trimtab.replay.trial import NamedPolicy, try_policy

CASES = sorted((Path(__file__).parents[1] / "data" / "cases").glob("*.jsonl"))


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


def test_a_profile_file_lists_points_by_batch_size_and_context(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(
        '{"made_by": "hand", "points": ['
        '{"batch_size": 8, "context_tokens": 9000, "ms": {"plain_warm": 7, "plain_cold": 6.5, "speculate(3)": 9.5}},'
        '{"batch_size": 8, "context_tokens": 1000, "ms": {"plain_warm": 5, "speculate(3)": 6}}]}'
    )
    profile = profile_source(str(path))(read_case(CASES[0]))
    assert profile is not None
    assert profile.step_ms(speculate(3), 5, 500) == 6.0
    assert profile.step_ms(speculate(3), 5, 2000) == 9.5
    assert profile.step_ms(PLAIN_COLD, 8, 2000) == 6.5
    assert profile.step_ms(PLAIN_WARM, 8, 1000) == 5.0
    assert profile.step_ms(speculate(2), 8) is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file"),
        ("{}", "is not a profile: Object missing required field `points`"),
        ('{"points": []}', "is not a profile: .*length >= 1"),
        ('{"points": [{"batch_size": 0, "ms": {"plain_warm": 5}}]}', r"Expected `int` >= 1 - at `\$.points\[0\]"),
        ('{"points": [{"batch_size": 1, "ms": {"plain_warm": 0}}]}', "Expected `float` > 0"),
        ('{"points": [{"batch_size": 1, "ms": {"fast": 5}}]}', "unknown mode 'fast'; there are: plain_warm, "),
        ('{"points": [{"batch_size": 1, "ms": {"speculate(0)": 5}}]}', r"unknown mode 'speculate\(0\)'"),
    ],
)  # fmt: skip
def test_a_bad_profile_file_is_one_error(tmp_path: Path, content: str | None, problem: str) -> None:
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=problem) as caught:
        profile_source(str(path))
    assert caught.value.place == str(path)
