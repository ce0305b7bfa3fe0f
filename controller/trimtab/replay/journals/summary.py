"""What is in a journal, summed up: which runs of the daemon, which engines, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from trimtab.store.reading import Gap, Journal, Run
from trimtab.store.schema import MAGIC
from trimtab.wire.bounds import NS_PER_S


class RunSummary(msgspec.Struct, frozen=True):
    """One run of the daemon. `state`: `ended`, `died`, or `open` for the newest, which runs or has died."""

    run: int
    state: str
    version: str
    started_at: str
    ended_at: str | None


class GapSummary(msgspec.Struct, frozen=True):
    """Entries that are missing after entry `after`: `lost` of them, at least so many where the run died there."""

    run: int
    after: int
    lost: int
    died: bool


class JournalEngineSummary(msgspec.Struct, frozen=True):
    """One engine: entries by kind."""

    engine: str
    entries: int
    kinds: dict[str, int]


class JournalSummary(msgspec.Struct, frozen=True):
    """A whole journal.

    Attributes:
        pruned_through: Entries up to this number were pruned, except for what a restart needs.
        first_at: Time of the oldest entry; null if there is none.
        last_at: Time of the newest.
    """

    file: str
    source: str
    entries: int
    pruned_through: int
    first_at: str | None
    last_at: str | None
    runs: tuple[RunSummary, ...]
    gaps: tuple[GapSummary, ...]
    engines: tuple[JournalEngineSummary, ...]


def is_journal(path: Path) -> bool:
    """Whether this can only be a journal, or the directory of one."""
    if path.is_dir():
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def summarize_journal(path: Path, progress: Callable[[int, int], None] | None = None) -> JournalSummary:
    """What is in this journal.

    Args:
        path: The file, or the directory that it is in.
        progress: Told how many entries have been looked at, of how many.

    Raises:
        DataError: It cannot be read.
    """
    with Journal(path) as journal:
        kinds: dict[str, Counter[str]] = {}
        total, first_ns, last_ns = journal.count(), None, None
        for number, entry in enumerate(journal.entries(), start=1):
            first_ns = entry.wall_ns if first_ns is None else first_ns
            last_ns = entry.wall_ns
            if entry.engine:
                kinds.setdefault(entry.engine, Counter())[str(entry.kind)] += 1
            if progress is not None and number % 1000 == 0:
                progress(number, total)
        return JournalSummary(
            file=str(journal.path),
            source="journal",
            entries=total,
            pruned_through=journal.pruned_through,
            first_at=None if first_ns is None else time_text(first_ns),
            last_at=None if last_ns is None else time_text(last_ns),
            runs=_runs(journal.runs()),
            gaps=tuple(_gap(gap) for gap in journal.gaps()),
            engines=tuple(
                JournalEngineSummary(name, counts.total(), dict(sorted(counts.items())))
                for name, counts in sorted(kinds.items())
            ),
        )


def _runs(runs: list[Run]) -> tuple[RunSummary, ...]:
    newest = max((run.number for run in runs), default=0)
    return tuple(
        RunSummary(
            run.number,
            _state(run, newest),
            run.version,
            time_text(run.started_wall_ns),
            None if run.ended_wall_ns is None else time_text(run.ended_wall_ns),
        )
        for run in runs
    )


def _state(run: Run, newest: int) -> str:
    if run.ended_wall_ns is not None:
        return "ended"
    return "open" if run.number == newest else "died"


def _gap(gap: Gap) -> GapSummary:
    return GapSummary(gap.run, gap.after, gap.lost, gap.died)


def time_text(wall_ns: int) -> str:
    """A time since the epoch as ISO 8601, in UTC, to the second."""
    return datetime.fromtimestamp(wall_ns // NS_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
