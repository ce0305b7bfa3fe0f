"""Does a lease do harm? What came out under it, against what plain decoding would have made of the same time.

Pure: step rows in, a verdict out. The link thread feeds it with the rows that it drains anyway; what follows from a
verdict goes the way of every command, through the mailbox.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from trimtab_sglang.lease import Mode
from trimtab_sglang.rows import GAP, GRAPH, SWEEP, WARM_UP, Row

HARMFUL_SHARE = 0.9
WINDOW_NS = 2_000_000_000
SLICES = 8
SLICE_NS = WINDOW_NS // SLICES
# One slice may be good: chance has its share in every one.
MOST_GOOD = 1
# A mode's pace at a batch size is known after so many rows, and forgotten after so long without another one.
KNOWN_ROWS = 8
FORGET_NS = 600 * 1_000_000_000
PACE_WEIGHT = 0.1


@dataclass(frozen=True, slots=True)
class Harm:
    """A lease emitted `share` of what plain decoding would have, over `decode_ns` of decoding."""

    share: float
    decode_ns: int

    def __str__(self) -> str:
        return f"{self.share:.2f} of the tokens of plain decoding over {self.decode_ns / 1e9:.1f} s"


@dataclass(slots=True)
class _Pace:
    """What steps of one mode took at one batch size, lately."""

    step_ns: float
    context_tokens: float
    seen_ns: int
    rows: int = 1

    def add(self, row: Row) -> None:
        self.step_ns += PACE_WEIGHT * (row.step_ns - self.step_ns)
        self.context_tokens += PACE_WEIGHT * (row.context_tokens_sum - self.context_tokens)
        self.seen_ns = row.result_ns
        self.rows += 1


class PlainEstimate:
    """What a plain step would take, from the engine's own steps.

    Where plain was never measured, the mode with the fewest drafts stands in for it: a step of it emits at least as
    much, so the estimate is low rather than high. A pace measured at another batch size or context counts as an
    upper bound: a step of more work takes longer, but no longer than in proportion.
    """

    def __init__(self) -> None:
        self._paces: dict[tuple[Mode, bool], dict[int, _Pace]] = {}

    def learn(self, row: Row) -> None:
        """Take in a timed row."""
        paces = self._paces.setdefault((row.mode, bool(row.flags & GRAPH)), {})
        pace = paces.get(row.padded_batch_size)
        if pace is None or row.result_ns - pace.seen_ns > FORGET_NS:
            paces[row.padded_batch_size] = _Pace(row.step_ns, row.context_tokens_sum, row.result_ns)
        else:
            pace.add(row)

    def step_ns(self, row: Row) -> float | None:
        """Time that a plain step of this row's requests would take, at most; None if nobody knows."""
        graph = bool(row.flags & GRAPH)
        narrower = [mode for mode, kind in self._paces if mode.steps < row.mode.steps and kind == graph]
        for steps in sorted({mode.steps for mode in narrower}):
            of_modes = [self._paces[mode, graph] for mode in narrower if mode.steps == steps]
            bounds = [_bound(size, pace, row) for of in of_modes for size, pace in of.items() if _known(pace, row)]
            if bounds:
                return min(bounds)
        return None


def _known(pace: _Pace, row: Row) -> bool:
    return pace.rows >= KNOWN_ROWS and row.result_ns - pace.seen_ns <= FORGET_NS


def _bound(size: int, pace: _Pace, row: Row) -> float:
    more_requests = row.padded_batch_size / size
    more_context = row.context_tokens_sum / pace.context_tokens if pace.context_tokens > 0 else 1.0
    return pace.step_ns * max(1.0, more_requests, more_context)


@dataclass(slots=True)
class _Slice:
    """A stretch of decoding under leases: how long it took, and how long plain would have taken for its tokens."""

    decode_ns: int = 0
    plain_ns: float = 0.0

    @property
    def share(self) -> float:
        return self.plain_ns / self.decode_ns if self.decode_ns else 1.0


class Guard:
    """Watches the rows; finds harm where tokens stayed under `HARMFUL_SHARE` of plain's for `WINDOW_NS`.

    Time is decoding under leases: prefill, idle time, warm-up and steps under the engine's own policy or a pin do not
    count. A single slow step is not enough: the window must be bad slice by slice, and the newest slice is, so that a
    controller that has mended it is left alone.
    """

    def __init__(self) -> None:
        self._estimate = PlainEstimate()
        self._slices: deque[_Slice] = deque(maxlen=SLICES)
        self._open = _Slice()
        # Looked up once a slice: this runs beside the scheduler, in its process.
        self._plain_step_ns: dict[tuple[int, int, int], float | None] = {}

    def watch(self, row: Row) -> Harm | None:
        """Take in the next row; the harm, once it is found."""
        if row.step_ns <= 0 or not _requests(row) or row.flags & (GAP | WARM_UP):
            return None
        self._estimate.learn(row)
        if not row.lease_version or row.flags & SWEEP:
            self._start_over()
            return None
        self._open.decode_ns += row.step_ns
        self._open.plain_ns += self._plain_ns(row)
        if self._open.decode_ns < SLICE_NS:
            return None
        self._slices.append(self._open)
        self._open = _Slice()
        self._plain_step_ns.clear()
        return self._judge()

    def forget(self) -> None:
        """What was seen no longer holds: other weights, another memory layout."""
        self._estimate = PlainEstimate()
        self._start_over()

    def _start_over(self) -> None:
        self._slices.clear()
        self._open = _Slice()
        self._plain_step_ns.clear()

    def _plain_ns(self, row: Row) -> float:
        """Time that plain would have taken for the row's tokens; the row's own where nobody knows better."""
        if not row.mode.steps:
            return row.step_ns
        key = row.mode.steps, row.padded_batch_size, row.flags & GRAPH
        if key not in self._plain_step_ns:
            self._plain_step_ns[key] = self._estimate.step_ns(row)
        step_ns = self._plain_step_ns[key]
        return row.step_ns if step_ns is None else step_ns * row.emitted_tokens / _requests(row)

    def _judge(self) -> Harm | None:
        if len(self._slices) < SLICES:
            return None
        shares = [one.share for one in self._slices]
        decode_ns = sum(one.decode_ns for one in self._slices)
        share = sum(one.plain_ns for one in self._slices) / decode_ns
        good = sum(one >= HARMFUL_SHARE for one in shares)
        if good > MOST_GOOD or max(share, shares[-1]) >= HARMFUL_SHARE:
            return None
        self._start_over()
        return Harm(share, decode_ns)


def _requests(row: Row) -> int:
    """Requests of the batch, those with holes in their draft cache among them: time is time."""
    return row.fresh_requests + row.stale_requests
