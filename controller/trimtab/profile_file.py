"""Cost profiles as people keep them: a JSON file, or the same keys under `[[profile]]` in the daemon's settings.

    {"key": {"model": "/models/llama-8b", "device_name": "NVIDIA H200", "sglang_version": "0.5"},
     "points": [{"batch_size": 8, "ms": {"plain_warm": 5.5, "speculate(3)": 6.3}},
                {"batch_size": 16, "ms": {"plain_warm": 5.7, "speculate(3)": 6.5}}],
     "context": {"reference_tokens": 500, "ms_per_token": 0.00003}}

`key` says for which engines it holds (see `CostKey`; what is left out may be anything). `points` lists what steps
take; a batch costs what the next larger size costs. Context comes in either by `context_tokens` of a point (the
largest context of a request that the point speaks for) or by `context`: the points then hold for `reference_tokens` a
request, and each token more in the batch adds `ms_per_token`. `provenance` says what the profile was learnt from
and how well it fits; nobody reads it but people.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from trimtab.domain import CostKey, Mode, ModeKind, speculate
from trimtab.errors import DataError
from trimtab.policies.profile import ContextCost, CostProfile, ProfilePoint, profile_of
from trimtab.session.profiles import KeyedProfile
from trimtab.whole_file import written_whole

# Without these a profile would be taken for engines that it knows nothing of.
INDISPENSABLE = ("model", "device_name")

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
_SPECULATE = ModeKind.SPECULATE.value
_PLAIN = tuple(kind.value for kind in ModeKind if kind is not ModeKind.SPECULATE)


class KeyContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of `CostKey`."""

    model: str = ""
    weight_version: str = ""
    draft_model: str = ""
    device_name: str = ""
    attention_backend: str = ""
    dtype: str = ""
    kv_cache_dtype: str = ""
    tp_size: Annotated[int, msgspec.Meta(ge=0)] = 0
    sglang_version: str = ""


class PointContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Step times by mode at one batch size."""

    batch_size: Annotated[int, msgspec.Meta(ge=1)]
    ms: Annotated[dict[str, Positive], msgspec.Meta(min_length=1)]
    context_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None


class ContextContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of `ContextCost`."""

    reference_tokens: NotNegative
    ms_per_token: NotNegative
    ms_per_longest_token: NotNegative = 0.0


class CellRecord(msgspec.Struct, frozen=True):
    """How the profile does where something was measured.

    Attributes:
        rows: Steps that were measured.
        measured_ms: Median of their times.
        error: Median over these steps of predicted over measured time, less 1.
        held_out_error: The same with a profile of one half of the rows on the other half, the worse of the two
            halves; null where a half has too few rows.
    """

    batch_size: int
    mode: str
    rows: int
    measured_ms: float
    error: float
    held_out_error: float | None = None


class Provenance(msgspec.Struct, frozen=True):
    """What a profile was learnt from.

    Attributes:
        sources: Names of the files.
        rows: Rows in them.
        used_rows: Rows that were a cost.
        left_out: The others, by reason.
        moe: Whether more steps were allowed to be faster.
        cells: Every batch size and mode that was measured.
    """

    sources: tuple[str, ...]
    rows: int
    used_rows: int
    left_out: dict[str, int]
    moe: bool
    cells: tuple[CellRecord, ...]


class ProfileContent(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of a profile file. Keys that are not listed here are left alone."""

    points: Annotated[list[PointContent], msgspec.Meta(min_length=1)]
    key: KeyContent = KeyContent()
    context: ContextContent | None = None
    provenance: Provenance | None = None


def read_profile(path: Path) -> KeyedProfile:
    """The profile in a file, under the file's name.

    Raises:
        DataError: The file cannot be read or used.
    """
    try:
        content = msgspec.json.decode(path.read_bytes(), type=ProfileContent)
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(str(path), f"is not a profile: {error}") from error
    return keyed_profile(path.name, content, str(path))


def write_profile(path: Path, content: ProfileContent) -> None:
    """Put the profile into a file, at once and as a whole.

    Raises:
        DataError: The file cannot be written.
    """
    with written_whole(path) as beside:
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


def keyed_profile(name: str, content: ProfileContent, place: str) -> KeyedProfile:
    """The profile as sessions use it; `DataError` names `place` if a mode in it is unknown."""
    points = [
        ProfilePoint(
            point.batch_size, {read_mode(place, mode): ms for mode, ms in point.ms.items()}, point.context_tokens
        )
        for point in content.points
    ]
    context = ContextCost(**msgspec.structs.asdict(content.context)) if content.context else None
    return KeyedProfile(name, CostKey(**msgspec.structs.asdict(content.key)), profile_of(points, context))


def content_of(
    profile: CostProfile, key: CostKey, provenance: Provenance | None = None, exact: bool = False
) -> ProfileContent:
    """The profile as it goes into a file: `exact` to the last digit, or as well as step times are known."""
    context = profile.context

    def said(value: float) -> float:
        return value if exact else _short(value)

    return ProfileContent(
        points=[
            PointContent(point.batch_size, {str(m): said(ms) for m, ms in point.ms.items()}, point.context_tokens)
            for point in profile.points
        ],
        key=KeyContent(**key.stated()),  # type: ignore[arg-type]
        context=None
        if context is None
        else ContextContent(
            said(context.reference_tokens), said(context.ms_per_token), said(context.ms_per_longest_token)
        ),
        provenance=provenance,
    )


def read_key(place: str, pairs: Iterable[tuple[str, Any]]) -> CostKey:
    """The key with these fields, text converted; `DataError` names `place` and the field that is none."""
    try:
        content = msgspec.convert(dict(pairs), type=KeyContent, strict=False)
    except msgspec.ValidationError as error:
        fields = ", ".join(KeyContent.__struct_fields__)
        raise DataError(place, f"{error}; the fields of a key are: {fields}") from error
    return CostKey(**msgspec.structs.asdict(content))


def read_mode(place: str, name: str) -> Mode:
    """The mode that prints as `name`; `DataError` names `place` if there is none."""
    kind, _, rest = name.partition("(")
    steps = rest.removesuffix(")")
    if kind == _SPECULATE and steps.isdecimal() and int(steps) > 0:
        return speculate(int(steps))
    if name not in _PLAIN:
        raise DataError(place, f"unknown mode {name!r}; there are: {', '.join(_PLAIN)} and {_SPECULATE}(K)")
    return Mode(ModeKind(name))


def _short(value: float) -> float:
    """Five significant digits: a step time is not known better."""
    return float(f"{value:.5g}")
