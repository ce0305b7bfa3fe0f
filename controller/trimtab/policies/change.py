"""Has acceptance changed? At once (a new kind of request) or over hours (a drafter that falls behind)?"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Evidence in nats for a change at one place in the history (a false alarm in about 3,000 reports), and the smallest
# change that makes old counts worthless.
EVIDENCE = 8.0
SMALLEST_CHANGE = 0.08
HISTORY = 16
# The drift alarm: when the level to compare with stands, how fast the present one follows, and what fall is worrying.
SETTLE_NS = 600 * 10**9
SETTLE_REQUESTS = 1_000.0
MEMORY_NS = 900 * 10**9
WORRYING_FALL = 0.05


@dataclass(frozen=True, slots=True)
class Counts:
    """Drafts offered and accepted by position."""

    offered: tuple[float, ...]
    accepted: tuple[float, ...]

    def __add__(self, other: Counts) -> Counts:
        return Counts(_add(self.offered, other.offered), _add(self.accepted, other.accepted))


class ChangeTest:
    """Generalised likelihood ratio test for one change of the first position's acceptance.

    Every split of the last reports is tried (Basseville and Nikiforov, "Detection of Abrupt Changes", 1993,
    section 2.4): with n offered and rate p before, m and r after, s over both, the evidence is
    `n KL(p || s) + m KL(r || s)`.
    """

    def __init__(self) -> None:
        self._history: deque[Counts] = deque(maxlen=HISTORY)

    def add(self, counts: Counts) -> Counts | None:
        """Take in one report's counts; if acceptance has changed, the counts since the change, else None."""
        self._history.append(counts)
        at = self._best_split()
        if at is None:
            return None
        kept = list(self._history)[at:]
        self.clear()
        self._history.extend(kept)
        total = kept[0]
        for more in kept[1:]:
            total = total + more
        return total

    def clear(self) -> None:
        """Forget the history."""
        self._history.clear()

    def _best_split(self) -> int | None:
        counts = [(c.offered[0], c.accepted[0]) for c in self._history]
        offered, accepted = sum(o for o, _ in counts), sum(a for _, a in counts)
        best, at = EVIDENCE, None
        m = r = 0.0
        for i in range(len(counts) - 1, 0, -1):
            m, r = m + counts[i][0], r + counts[i][1]
            n, p = offered - m, accepted - r
            if n <= 0 or m <= 0 or abs(p / n - r / m) < SMALLEST_CHANGE:
                continue
            pooled = accepted / offered
            evidence = n * _divergence(p / n, pooled) + m * _divergence(r / m, pooled)
            if evidence > best:
                best, at = evidence, i
        return at

    def state(self) -> list[list[list[float]]]:
        """Plain values for a snapshot."""
        return [[list(c.offered), list(c.accepted)] for c in self._history]

    def set_state(self, state: Sequence[Sequence[Sequence[float]]]) -> None:
        """Go on from a `state`."""
        self.clear()
        self._history.extend(Counts(tuple(map(float, o)), tuple(map(float, a))) for o, a in state)


class DriftAlarm:
    """Raised while the first position's acceptance has slowly fallen below what this engine began with.

    It began with the mean of its first `SETTLE_NS` and `SETTLE_REQUESTS`; now is a running mean that follows within
    minutes. Changes that come at once belong to the traffic: the level to compare with moves along with them.
    """

    def __init__(self) -> None:
        self._began_ns: int | None = None
        self._last_ns = 0
        self._settled = False
        self._start = 0.0
        self._requests = 0.0
        self._now = 0.0

    def add(self, offered: float, accepted: float, now_ns: int) -> None:
        """Take in counts of the first position at `now_ns` on the engine's clock."""
        if offered <= 0:
            return
        rate = accepted / offered
        if self._began_ns is None:
            self._began_ns = now_ns
        if not self._settled and (now_ns - self._began_ns < SETTLE_NS or self._requests < SETTLE_REQUESTS):
            self._requests += offered
            self._start += (rate - self._start) * offered / self._requests
            self._now = self._start
        else:
            self._settled = True
            passed_ns = max(0, now_ns - self._last_ns)
            # A thin report weighs no more than its requests.
            gain = min(-math.expm1(-passed_ns / MEMORY_NS), offered / SETTLE_REQUESTS)
            self._now += (rate - self._now) * gain
        self._last_ns = now_ns

    def changed(self, rate: float) -> None:
        """Acceptance is at another level at once, from now on at `rate`."""
        if self._settled:
            self._start = max(0.0, self._start + rate - self._now)
            self._now = rate

    @property
    def raised(self) -> bool:
        """Whether acceptance has fallen."""
        return self._settled and self._now < self._start * (1 - WORRYING_FALL)

    def state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        return {
            "began_ns": self._began_ns,
            "last_ns": self._last_ns,
            "settled": self._settled,
            "start": self._start,
            "requests": self._requests,
            "now": self._now,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        began_ns = state["began_ns"]
        self._began_ns, self._last_ns = None if began_ns is None else int(began_ns), int(state["last_ns"])
        self._settled, self._requests = bool(state["settled"]), float(state["requests"])
        self._start, self._now = float(state["start"]), float(state["now"])


def _divergence(p: float, q: float) -> float:
    """Kullback-Leibler divergence of two coins, in nats; q lies between others' p, so it is 0 or 1 only with them."""
    heads = p * math.log(p / q) if p > 0 else 0.0
    tails = (1 - p) * math.log((1 - p) / (1 - q)) if p < 1 else 0.0
    return heads + tails


def _add(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
    if len(a) < len(b):
        a, b = b, a
    return tuple(x + (b[i] if i < len(b) else 0.0) for i, x in enumerate(a))
