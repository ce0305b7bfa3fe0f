"""From files to a profile with its record: read, fit, and say how well it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from trimtab.domain import CostKey
from trimtab.policies.profile import CostProfile
from trimtab.profile_file import CellRecord, ProfileContent, Provenance, content_of
from trimtab.replay.profiles.check import held_out_errors, judge
from trimtab.replay.profiles.fit import fit_profile
from trimtab.replay.profiles.sample_files import read_samples
from trimtab.replay.profiles.samples import joined
from trimtab.replay.profiles.wanted import Found, Wanted


def read_all(paths: Sequence[Path], wanted: Wanted, progress: Callable[[int], None] | None = None) -> Found:
    """The samples of all files together.

    Args:
        paths: At least one file.
        wanted: What to take from them.
        progress: Told now and then how many bytes have been read in all.

    Raises:
        DataError: A file cannot be read or used.
    """
    parts: list[Found] = []
    before = 0
    for path in paths:
        parts.append(read_samples(path, wanted, _going_on(progress, before)))
        before += path.stat().st_size
    left_out = sum((part.left_out for part in parts), Counter[str]())
    return Found(joined([part.samples for part in parts]), sum(part.rows for part in parts), left_out)


def _going_on(progress: Callable[[int], None] | None, before: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda read: progress(before + read)


def learn_profile(
    paths: Sequence[Path],
    wanted: Wanted,
    key: CostKey,
    moe: bool = False,
    progress: Callable[[int], None] | None = None,
) -> ProfileContent:
    """A profile of all files together, fit to be written.

    Args:
        paths: At least one file.
        wanted: What to take from them.
        key: The engines that it is to hold for.
        moe: Whether the model is a mixture of experts.
        progress: See `read_all`.

    Raises:
        DataError: A file cannot be used, or there is too little in them.
    """
    found = read_all(paths, wanted, progress)
    profile = fit_profile(found.samples, moe)
    held_out = held_out_errors(found.samples, moe)
    provenance = Provenance(
        sources=tuple(path.name for path in paths),
        rows=found.rows,
        used_rows=len(found.samples),
        left_out=dict(sorted(found.left_out.items())),
        moe=moe,
        cells=tuple(
            msgspec.structs.replace(record, held_out_error=held_out.get((record.batch_size, record.mode)))
            for record in judge(profile, found.samples)
        ),
    )
    return content_of(profile, key, provenance)


def check_profile(
    profile: CostProfile, paths: Sequence[Path], wanted: Wanted, progress: Callable[[int], None] | None = None
) -> list[CellRecord]:
    """How well the profile says what these files measured, by cell.

    Raises:
        DataError: A file cannot be read or used.
    """
    return judge(profile, read_all(paths, wanted, progress).samples)
