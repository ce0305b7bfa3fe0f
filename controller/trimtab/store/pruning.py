"""Which entries of the journal have to go? The oldest, a few at a time, but none that a restart would need."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from trimtab.store.entries import LANDMARKS, NEWEST_STATES, Kind
from trimtab.store.schema import LANDMARK_LIST, PRUNED_THROUGH, pragma

CHUNK = 512
CHUNKS_AT_MOST = 8
VACUUM_PAGES = 256
NS_PER_S = 1_000_000_000

# Number, time, engine, kind, and size of an entry.
Candidate = tuple[int, int, str, str, int]


class Pruner:
    """Keeps one journal within its size and age. What each engine would go on from stays: its newest state and the
    orders after it, unless they are too old as well.

    Args:
        db: The journal, with no transaction open.
        max_bytes: Size of the file at most, as far as what has to stay lets it.
        max_age_s: Age of an entry at most.

    Attributes:
        through: Entries up to this number were pruned.
    """

    def __init__(self, db: sqlite3.Connection, max_bytes: int, max_age_s: float) -> None:
        self._db = db
        self._max_bytes = max_bytes
        self._max_age_ns = round(max_age_s * NS_PER_S)
        self._page_bytes = pragma(db, "page_size")
        (self.through,) = db.execute("SELECT value FROM meta WHERE key = ?", (PRUNED_THROUGH,)).fetchone()
        self._newest = newest_states(db)

    def added(self, states: Iterable[tuple[str, int]]) -> None:
        """These states (engine, number) are new: what an older one was kept for may go."""
        for engine, seq in states:
            if self._newest.get(engine, seq) <= self.through:
                self._db.execute(
                    f"DELETE FROM entries WHERE engine = ? AND kind IN ({LANDMARK_LIST}) AND seq <= ?",
                    (engine, self.through),
                )
            self._newest[engine] = seq

    def prune(self, wall_ns: int, before: int) -> int:
        """Delete what is too much or too old, within bounds of time; how many entries went.

        Args:
            wall_ns: The time since the epoch.
            before: Entries from this number on stay.
        """
        deleted = 0
        for _ in range(CHUNKS_AT_MOST):
            chunk = self._to_go(wall_ns, before)
            if not chunk:
                break
            deleted += self._delete(chunk, wall_ns)
        return deleted

    def prune_kept(self, wall_ns: int) -> None:
        """Delete what was kept for a restart and has become too old for one, and runs without entries."""
        self._db.execute(
            "DELETE FROM entries WHERE seq <= ? AND wall_ns < ?", (self.through, wall_ns - self._max_age_ns)
        )
        self._db.execute("DELETE FROM runs WHERE run < (SELECT run FROM entries ORDER BY seq LIMIT 1)")

    def shrink(self) -> None:
        """Give a little of the file back to the disk if it is larger than it may be; outside of a transaction."""
        if pragma(self._db, "page_count") * self._page_bytes > self._max_bytes:
            # `execute` would stop after the first page.
            self._db.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES});")

    def _to_go(self, wall_ns: int, before: int) -> list[Candidate]:
        """The oldest entries, as far as they are too old or more than there is room for."""
        candidates = self._db.execute(
            "SELECT seq, wall_ns, engine, kind, length(payload) FROM entries WHERE seq > ? AND seq < ?"
            " ORDER BY seq LIMIT ?",
            (self.through, before, CHUNK),
        ).fetchall()
        excess, chunk = self._excess_bytes(), []
        for candidate in candidates:
            if excess <= 0 and not self._too_old(candidate[1], wall_ns):
                break
            excess -= candidate[4]
            chunk.append(candidate)
        return chunk

    def _excess_bytes(self) -> int:
        used = pragma(self._db, "page_count") - pragma(self._db, "freelist_count")
        return used * self._page_bytes - self._max_bytes

    def _too_old(self, then_ns: int, wall_ns: int) -> bool:
        return then_ns < wall_ns - self._max_age_ns

    def _delete(self, chunk: Sequence[Candidate], wall_ns: int) -> int:
        kept = [seq for seq, then_ns, engine, kind, _ in chunk if self._needed(seq, then_ns, engine, kind, wall_ns)]
        marks = ", ".join("?" * len(kept))
        first, last = chunk[0][0], chunk[-1][0]
        self._db.execute(
            f"DELETE FROM entries WHERE seq BETWEEN ? AND ? AND seq NOT IN ({marks})", (first, last, *kept)
        )
        self._db.execute("UPDATE meta SET value = ? WHERE key = ?", (last, PRUNED_THROUGH))
        self.through = last
        return len(chunk) - len(kept)

    def _needed(self, seq: int, then_ns: int, engine: str, kind: str, wall_ns: int) -> bool:
        is_landmark = kind in LANDMARKS
        return is_landmark and seq >= self._newest.get(engine, 0) and not self._too_old(then_ns, wall_ns)


def newest_states(db: sqlite3.Connection) -> dict[str, int]:
    """Number of the newest state of every engine that has one, and of the standing orders, under no name."""
    return dict(
        db.execute(
            f"SELECT engine, max(seq) FROM entries INDEXED BY landmarks WHERE kind IN ({LANDMARK_LIST})"
            f" AND kind IN ({kind_list(NEWEST_STATES)}) GROUP BY engine"
        ).fetchall()
    )


def kind_list(kinds: Iterable[Kind]) -> str:
    """The kinds as a list in SQL."""
    return ", ".join(f"'{kind}'" for kind in sorted(kinds))
