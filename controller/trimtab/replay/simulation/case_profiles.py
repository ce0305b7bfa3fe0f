"""What policies are told about costs in simulation: a case's own cost table, a profile file, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trimtab.domain import speculate
from trimtab.policies.profile import CostProfile, ProfilePoint, profile_of
from trimtab.profile_file import read_profile
from trimtab.replay.simulation.cases import CaseEnvironment


def profile_source(text: str) -> Callable[[CaseEnvironment], CostProfile | None]:
    """What a policy is told about each case: its own costs for `case`, nothing for `none`, else those of a file.

    The key of a profile file is not looked at: a case is no engine.

    Raises:
        DataError: The file cannot be read or used.
    """
    if text == "case":
        return case_profile
    profile = None if text == "none" else read_profile(Path(text)).profile
    return lambda case: profile


def case_profile(case: CaseEnvironment) -> CostProfile:
    """The case's own cost table: what a perfect measurement would have said."""
    return profile_of(
        ProfilePoint(row.batch_size, {speculate(k): ms for k, ms in row.ms.items()}, row.ctx_le)
        for row in case.cost_rows
    )
