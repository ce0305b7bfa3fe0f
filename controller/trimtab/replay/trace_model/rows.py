"""Rows of a trace as replay takes them: what ran, what came out, and which times are a cost.

Rows come in stretches that begin at a multiple of `block_rows` within their segment, so that what is summed up by
block does not depend on how the file is cut up. Rows of the start-up sweep and without requests are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.domain import StepFlag
from trimtab.errors import DataError
from trimtab.replay.arrays import Floats, Ints, Mask
from trimtab.replay.profiles.samples import SETTLING_ROWS
from trimtab.replay.traces.columns import DepthArrays, Segment, StepColumns
from trimtab.replay.traces.reader import Trace
from trimtab.replay.traces.schema import ABSENT

STRETCH_ROWS = 65_536
# Rows that are looked at together; fewer where a row stands for many steps.
BLOCK_STEPS = 64
SMALLEST_BLOCK = 8
COLUMNS = (
    "mode", "batch_size", "padded_batch_size", "emitted_tokens", "accepted_tokens", "fresh_requests",
    "stale_requests", "fresh_offered", "stale_offered", "step_ns", "wall_gap_ns", "prefill_tokens",
    "context_tokens_sum", "context_tokens_max", "kv_used_tokens", "running_requests", "waiting_requests",
    "retracted_requests", "grammar_requests", "flags", "steps",
)  # fmt: skip
# What the first look at a trace does without.
FIRST_LOOK_COLUMNS = tuple(
    name for name in COLUMNS if name not in ("kv_used_tokens", "running_requests", "waiting_requests")
)

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReplayRows:
    """Rows of one segment that follow each other; arrays of shape `(n_rows,)` unless said.

    Attributes:
        segment: Number of the segment in the trace.
        block: Number of the row's block within the segment.
        mode: Number of the mode that ran, among the modes of the trace.
        drafts: Drafts that it offered to each request.
        batch_size: Requests in the batch.
        padded: Size that the batch was padded to; the batch size where nobody knows.
        requests: Requests that the counts are of, over all steps of the row.
        steps: Decode steps that the row stands for.
        accepted: Accepted drafts, over all steps of the row.
        tokens: Tokens that came out, over all steps of the row.
        reached: Requests whose first d drafts were accepted, d from 0 to the deepest; shape `(n_rows, depth + 1)`. 0
            beyond the row's own drafts, and where only a sum is known.
        counted: Whether `reached` is known; true of plain rows.
        step_ms: Time of one step; NaN where it is not known.
        cost: Whether that time is a cost: timed, nothing in between, no warm-up, away from a change of mode.
        gap_ms: Wall time of the row, whatever was in between; NaN where it is not known.
        prefill: Whether a prefill was in between.
        switched: Whether it ran in another mode than the row before.
        context: Mean tokens of context of a request; NaN if unknown.
        longest: Those of the longest request; NaN if unknown.
        columns: The columns of the trace that the rows came from.
    """

    segment: int
    block: Ints
    mode: Ints
    drafts: Ints
    batch_size: Ints
    padded: Ints
    requests: Ints
    steps: Ints
    accepted: Ints
    tokens: Ints
    reached: Counts
    counted: Mask
    step_ms: Floats
    cost: Mask
    gap_ms: Floats
    prefill: Mask
    switched: Mask
    context: Floats
    longest: Floats
    columns: StepColumns

    def __len__(self) -> int:
        return len(self.mode)

    @property
    def first_row(self) -> int:
        """Number of the first row within its segment."""
        return self.columns.first_row - self.columns.segment.first_row


class RowSource:
    """The rows of a trace, stretch by stretch, as often as wanted.

    Args:
        trace: Where they come from.
        place: Name of the trace, for messages.

    Attributes:
        depth: Most drafts of any mode that ran.
        left_out_rows: Rows of the last reading that say nothing, by reason.
    """

    def __init__(self, trace: Trace, place: str) -> None:
        self.trace = trace
        self.place = place
        self.depth = max((mode.steps for mode in trace.modes), default=0)
        self.left_out_rows: dict[str, int] = {}
        self._drafts = np.array([mode.steps for mode in trace.modes] or [0], dtype=np.int64)

    def stretches(self, columns: Sequence[str] = COLUMNS, rows: int = STRETCH_ROWS) -> Iterator[ReplayRows]:
        """All rows in their order; `DataError` names a row that says too little."""
        self.left_out_rows = {"sweep": 0, "no_requests": 0}
        numbers = {segment: i for i, segment in enumerate(self.trace.segments())}
        last_mode: dict[Segment, int] = {}
        for found, block_rows in _aligned(self.trace, columns, rows):
            row = np.arange(len(found)) + found.first_row - found.segment.first_row
            kept, block = self._worth_a_look(found, row // block_rows)
            if len(kept):
                before = last_mode.get(found.segment, int(kept.ints("mode")[0]))
                yield self._rows(numbers[found.segment], kept, block, before)
                last_mode[found.segment] = int(kept.ints("mode")[-1])

    def _worth_a_look(self, found: StepColumns, block: Ints) -> tuple[StepColumns, Ints]:
        swept = (_flags(found) & StepFlag.SWEEP) > 0
        empty = ~swept & (found.ints("batch_size") <= 0)
        self.left_out_rows["sweep"] += int(swept.sum())
        self.left_out_rows["no_requests"] += int(empty.sum())
        keep = ~(swept | empty)
        return (found, block) if keep.all() else (_where(found, keep), block[keep])

    def _rows(self, segment: int, found: StepColumns, block: Ints, before: int) -> ReplayRows:
        mode, size, steps = found.ints("mode"), found.ints("batch_size"), found.steps
        fresh, stale = found.ints("fresh_requests"), found.ints("stale_requests")
        requests = np.where(fresh >= 0, fresh + np.maximum(0, stale), size * steps)
        reached, counted = _reached(found, requests, self._drafts[mode], self.depth)
        accepted = self._accepted(found, reached, counted, requests)
        emitted = found.ints("emitted_tokens")
        switched = np.diff(mode, prepend=before) != 0
        step_ms, cost = _times(found, switched)
        padded = found.ints("padded_batch_size")
        context = found.floats("context_tokens_sum") / size
        return ReplayRows(
            segment=segment,
            block=block,
            mode=mode,
            drafts=self._drafts[mode],
            batch_size=size,
            padded=np.where(padded > 0, padded, size),
            requests=requests,
            steps=steps,
            accepted=accepted,
            tokens=np.where(emitted >= 0, emitted, requests + accepted),
            reached=reached,
            counted=counted,
            step_ms=step_ms,
            cost=cost,
            gap_ms=found.floats("wall_gap_ns") / 1e6,
            prefill=found.ints("prefill_tokens") > 0,
            switched=switched,
            context=np.where(context > 0, context, np.nan),
            longest=found.floats("context_tokens_max"),
            columns=found,
        )

    def _accepted(self, found: StepColumns, reached: Counts, counted: Mask, requests: Ints) -> Ints:
        """Accepted drafts: by their counts, else as the trace says, else what came out beyond one token a request."""
        said, emitted = found.ints("accepted_tokens"), found.ints("emitted_tokens")
        by_sum = np.where(said >= 0, said, np.where(emitted >= 0, np.maximum(0, emitted - requests), ABSENT))
        found_all: Ints = np.where(counted, reached[:, 1:].sum(axis=1), by_sum)
        if len(found_all) and found_all.min() < 0:
            row = found.first_row + int(found_all.argmin()) + 1
            raise DataError(f"{self.place}: row {row}", "says neither what was accepted nor what came out")
        return found_all


def _reached(found: StepColumns, requests: Ints, drafts: Ints, depth: int) -> tuple[Counts, Mask]:
    """Requests by accepted drafts in a row, and where that is known."""
    n = len(found)
    reached = np.zeros((n, depth + 1), dtype=np.int64)
    reached[:, 0] = requests
    plain = drafts == 0
    fresh, stale = found.fresh, found.stale
    if fresh is None:
        return reached, plain
    counted = plain | fresh.known
    inside = counted[:, None] & (np.arange(1, depth + 1) <= drafts[:, None])
    for counts in (fresh, stale):
        if counts is not None and depth:
            reached[:, 1:] += np.where(inside, _deep_enough(counts, depth), 0)
    # A count that grows with depth is a fault of the log: nobody reaches a draft without the one before it.
    np.minimum.accumulate(reached, axis=1, out=reached)
    return reached, counted


def _deep_enough(counts: DepthArrays, depth: int) -> npt.NDArray[Any]:
    known = np.where(counts.known[:, None], counts.accepted, 0)[:, :depth]
    short = depth - known.shape[1]
    return np.pad(known, ((0, 0), (0, short))) if short > 0 else known


def _times(found: StepColumns, switched: Mask) -> tuple[Floats, Mask]:
    flags = _flags(found)
    step_ms = found.floats("step_ns") / 1e6
    timed = (step_ms > 0) & ((flags & StepFlag.GAP) == 0)
    step_ms = np.where(timed, step_ms, np.nan)
    cost = timed & ((flags & StepFlag.WARM_UP) == 0) & ~beside_switch(switched)
    return step_ms, cost


def beside_switch(switched: Mask) -> Mask:
    """Rows that a change of mode slows or speeds up: the one before it, and those until the host has caught up."""
    beside = switched.copy()
    beside[:-1] |= switched[1:]
    for after in range(1, SETTLING_ROWS):
        beside[after:] |= switched[:-after]
    return beside


def _flags(found: StepColumns) -> Ints:
    flags: Ints = np.maximum(0, found.ints("flags"))
    return flags


# -- cutting ---------------------------------------------------------------------------------------


def _aligned(trace: Trace, columns: Sequence[str], rows: int) -> Iterator[tuple[StepColumns, int]]:
    """Stretches of about `rows` rows that begin at a multiple of the block size of their segment, and that size."""
    waiting: list[StepColumns] = []
    block_rows = 1
    for found in trace.batches(columns, rows):
        if waiting and waiting[0].segment != found.segment:
            yield _joined(waiting), block_rows
            waiting = []
        if found.first_row == found.segment.first_row:
            block_rows = _block_rows(found)
        waiting.append(found)
        held = sum(map(len, waiting))
        whole = held - held % block_rows
        if whole >= rows // 2:
            together = _joined(waiting)
            yield together.rows(0, whole), block_rows
            waiting = [together.rows(whole, held)] if whole < held else []
    if waiting:
        yield _joined(waiting), block_rows


def _block_rows(found: StepColumns) -> int:
    typical = float(np.median(found.steps[:1000]))
    return max(SMALLEST_BLOCK, round(BLOCK_STEPS / typical))


def _joined(parts: Sequence[StepColumns]) -> StepColumns:
    first = parts[0]
    if len(parts) == 1:
        return first
    return StepColumns(
        first.segment,
        first.first_row,
        first.modes,
        {name: np.concatenate([part.arrays[name] for part in parts]) for name in first.arrays},
        _joined_depths([part.fresh for part in parts]),
        _joined_depths([part.stale for part in parts]),
    )


def _joined_depths(parts: Sequence[DepthArrays | None]) -> DepthArrays | None:
    known = [part for part in parts if part is not None]
    if not known:
        return None
    width = max(part.offered.shape[1] for part in known)
    wide = [_widened(part, width) for part in known]
    return DepthArrays(*(np.concatenate([getattr(part, f.name) for part in wide]) for f in fields(DepthArrays)))


def _widened(part: DepthArrays, width: int) -> DepthArrays:
    missing = ((0, 0), (0, width - part.offered.shape[1]))
    return DepthArrays(np.pad(part.offered, missing), np.pad(part.accepted, missing), part.depths)


def _where(found: StepColumns, keep: Mask) -> StepColumns:
    """These rows alone; `first_row` stays that of the stretch."""

    def depths(part: DepthArrays | None) -> DepthArrays | None:
        return part and DepthArrays(part.offered[keep], part.accepted[keep], part.depths[keep])

    arrays = {name: column[keep] for name, column in found.arrays.items()}
    return StepColumns(found.segment, found.first_row, found.modes, arrays, depths(found.fresh), depths(found.stale))
