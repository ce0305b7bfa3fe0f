"""What an engine did over the last few seconds, from its rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from trimtab.domain import StepRow

# Rows whose clock is wrong would otherwise stay for ever.
MAX_ROWS = 16_384


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures over a window of decode steps. None: nothing in the window says so.

    Attributes:
        goodput_tps: Emitted tokens a second of wall time, gaps between steps included.
        accepted_drafts: Accepted drafts a request and step, over the steps that drafted.
        step_ms: Mean time of a step by itself.
        batch_size: Mean requests a step.
        rows: Steps in the window.
        stale_share: Share of the requests whose draft model has not read every token and never will.
    """

    goodput_tps: float = 0.0
    accepted_drafts: float | None = None
    step_ms: float | None = None
    batch_size: float = 0.0
    rows: int = 0
    stale_share: float | None = None


class Window:
    """Keeps the rows of the last `length_ns` by the engine's own clock, no more than `MAX_ROWS`."""

    def __init__(self, length_ns: int = 5_000_000_000) -> None:
        self._length_ns = length_ns
        self._rows: deque[StepRow] = deque(maxlen=MAX_ROWS)

    def add(self, rows: Iterable[StepRow], now_ns: int) -> None:
        """Take in rows and forget what is older than the window at `now_ns` (engine's clock)."""
        self._rows.extend(rows)
        while self._rows and self._rows[0].result_ns < now_ns - self._length_ns:
            self._rows.popleft()

    def measure(self) -> Measured:
        """Figures over the rows in the window."""
        rows = self._rows
        if not rows:
            return Measured()
        tokens = sum(r.emitted_tokens for r in rows)
        wall_ns = sum(r.wall_gap_ns or r.step_ns or 0 for r in rows)
        drafted = [r for r in rows if r.mode.steps]
        requests = sum(r.fresh_requests + r.stale_requests for r in drafted)
        timed = [r.step_ns for r in rows if r.step_ns is not None]
        return Measured(
            goodput_tps=tokens / wall_ns * 1e9 if wall_ns else 0.0,
            accepted_drafts=sum(r.accepted_tokens for r in drafted) / requests if requests else None,
            step_ms=sum(timed) / len(timed) / 1e6 if timed else None,
            batch_size=sum(r.batch_size for r in rows) / len(rows),
            rows=len(rows),
            stale_share=_stale_share(rows),
        )


def _stale_share(rows: Iterable[StepRow]) -> float | None:
    requests = sum(r.fresh_requests + r.stale_requests for r in rows)
    stale = sum(r.stale_requests for r in rows if r.catch_up_ns is None)
    return stale / requests if requests else None
