"""Cost profiles for simulation: a case's own cost table, or a profile file.

A profile file is one JSON object. `points` lists what steps take:

    {"points": [{"batch_size": 8, "ms": {"plain_warm": 5.5, "speculate(3)": 6.3}},
                {"batch_size": 16, "context_tokens": 1024, "ms": {"plain_warm": 5.7, "speculate(3)": 6.5}}]}

A batch costs what the next larger size costs; `context_tokens` is the largest context of a request that the point
speaks for (left out: any). Other keys are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from trimtab.domain import Mode, ModeKind, speculate
from trimtab.errors import DataError
from trimtab.policies.profile import CostProfile, ProfilePoint, profile_of
from trimtab.replay.cases import CaseEnvironment

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_SPECULATE = ModeKind.SPECULATE.value


class _Point(msgspec.Struct):
    batch_size: Annotated[int, msgspec.Meta(ge=1)]
    ms: Annotated[dict[str, _Positive], msgspec.Meta(min_length=1)]
    context_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _Profile(msgspec.Struct):
    points: Annotated[list[_Point], msgspec.Meta(min_length=1)]


def profile_source(text: str) -> Callable[[CaseEnvironment], CostProfile | None]:
    """What a policy is told about each case: its own costs for `case`, nothing for `none`, else those of a file.

    Raises:
        DataError: The file cannot be read or used.
    """
    if text == "case":
        return case_profile
    profile = None if text == "none" else read_profile(Path(text))
    return lambda case: profile


def case_profile(case: CaseEnvironment) -> CostProfile:
    """The case's own cost table: what a perfect measurement would have said."""
    return profile_of(
        ProfilePoint(row.batch_size, {speculate(k): ms for k, ms in row.ms.items()}, row.ctx_le)
        for row in case.cost_rows
    )


def read_profile(path: Path) -> CostProfile:
    """The profile in a file.

    Raises:
        DataError: The file cannot be read or used.
    """
    try:
        content = msgspec.json.decode(path.read_bytes(), type=_Profile)
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(str(path), f"is not a profile: {error}") from error
    return profile_of(
        ProfilePoint(point.batch_size, {_mode(path, name): ms for name, ms in point.ms.items()}, point.context_tokens)
        for point in content.points
    )


def _mode(path: Path, name: str) -> Mode:
    """The mode that prints as `name`."""
    kind, _, rest = name.partition("(")
    steps = rest.removesuffix(")")
    if kind == _SPECULATE and steps.isdecimal() and int(steps) > 0:
        return speculate(int(steps))
    plain = [kind.value for kind in ModeKind if kind is not ModeKind.SPECULATE]
    if name not in plain:
        raise DataError(str(path), f"unknown mode {name!r}; there are: {', '.join(plain)} and {_SPECULATE}(K)")
    return Mode(ModeKind(name))
