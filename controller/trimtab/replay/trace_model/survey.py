"""A first look at a trace, in bounded memory: what costs can be learnt from, how drafts fared over time, who ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from trimtab.domain import Mode, StepFlag
from trimtab.replay.arrays import Floats, Ints, Mask
from trimtab.replay.profiles.samples import SETTLING_ROWS, StepSamples, cost_samples, joined
from trimtab.replay.trace_model.rows import FIRST_LOOK_COLUMNS, ReplayRows, RowSource

# Rows of one batch size in one mode that a profile is learnt from, and at least so many of each stretch.
CELL_ROWS = 4_000
CELL_ROWS_A_STRETCH = 8
# Changes of mode whose price is looked at.
MOST_SWITCHES = 4_000


@dataclass(frozen=True, slots=True)
class SwitchSamples:
    """Steps around changes of mode; arrays of shape `(n_rows,)`.

    Attributes:
        switch: Which change the row belongs to.
        samples: Their times and what these depend on.
    """

    switch: Ints
    samples: StepSamples


@dataclass(frozen=True, slots=True)
class BlockSums:
    """How drafts fared in every block of rows. Shapes: B blocks of all segments in turn, D depths.

    Attributes:
        first_block: Of every segment, and the number of all blocks at the end.
        steps: Decode steps; shape `(B,)`.
        offered: Drafts by depth of rows with counts; shape `(B, D)`.
        accepted: Those accepted.
        squares: Sum over rows of `accepted**2 / offered`.
        rows: Rows that offered a draft at this depth.
        sum_requests: Requests of rows with only a sum, by drafts a step; shape `(B, D + 1)`.
        sum_accepted: Their accepted drafts; shape `(B,)`.
    """

    first_block: Ints
    steps: Floats
    offered: Floats
    accepted: Floats
    squares: Floats
    rows: Floats
    sum_requests: Floats
    sum_accepted: Floats


@dataclass(slots=True)
class SegmentFacts:
    """What one run of an engine looks like from its rows."""

    rows: int = 0
    tokens: int = 0
    largest_batch: int = 0
    first_mode: int = -1
    modes: set[int] = field(default_factory=set)
    padded: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Survey:
    """What the first look found.

    Attributes:
        samples: Times that are a cost, no more than `CELL_ROWS` of a cell.
        left_out: Rows that are no cost, by reason.
        switches: Steps around changes of mode.
        blocks: How drafts fared.
        segments: What each segment looks like.
        by_mode: Offered and accepted by mode and depth, over all rows with counts; shape `(2, n_modes, D)`.
        depth: D.
    """

    samples: StepSamples
    left_out: dict[str, int]
    switches: SwitchSamples
    blocks: BlockSums
    segments: tuple[SegmentFacts, ...]
    by_mode: Floats
    depth: int

    @property
    def rows(self) -> int:
        """Rows that take part in the replay."""
        return sum(facts.rows for facts in self.segments)

    @property
    def tokens(self) -> int:
        """Tokens that came out of them."""
        return sum(facts.tokens for facts in self.segments)


def survey(source: RowSource, progress: Callable[[int], None] | None = None) -> Survey:
    """Look at all rows once.

    Args:
        source: The rows.
        progress: Told now and then how many rows have been looked at.

    Raises:
        DataError: The trace cannot be read, or a row says too little.
    """
    modes = source.trace.modes
    collected = _Collected(source.trace.rows, len(source.trace.segments()), modes, source.depth)
    for rows in source.stretches(FIRST_LOOK_COLUMNS):
        collected.add(rows)
        if progress is not None:
            progress(rows.columns.first_row + len(rows))
    return collected.survey()


class _Collected:
    """What was found so far."""

    def __init__(self, rows: int, segments: int, modes: Sequence[Mode], depth: int) -> None:
        self._all_rows = max(1, rows)
        self._modes = tuple(modes)
        self._depth = depth
        self._samples: list[StepSamples] = [cost_samples(modes, _no_rows())[0]]
        self._left_out: dict[str, int] = {}
        self._switches: list[tuple[Ints, StepSamples]] = []
        self._n_switches = 0
        self._blocks: list[tuple[int, int, dict[str, Floats]]] = []
        self._facts = [SegmentFacts() for _ in range(segments)]
        self._by_mode = np.zeros((2, len(modes), depth))

    def add(self, rows: ReplayRows) -> None:
        samples, left_out = cost_samples(self._modes, _cost_columns(rows))
        self._samples.append(thinned(samples, self._quota(len(rows))))
        for reason, count in left_out.items():
            self._left_out[reason] = self._left_out.get(reason, 0) + count
        self._add_switches(rows)
        self._add_blocks(rows)
        self._add_facts(rows)

    def _quota(self, rows: int) -> int:
        return CELL_ROWS_A_STRETCH + -(-CELL_ROWS * rows // self._all_rows)

    def _add_switches(self, rows: ReplayRows) -> None:
        at = np.flatnonzero(rows.switched[1:]) + 1
        at = at[: max(0, MOST_SWITCHES - self._n_switches)]
        around = at[:, None] + np.arange(-1, SETTLING_ROWS)
        inside = around < len(rows)
        # Around changes that follow at once upon each other nobody can tell whose the time is.
        once = np.array(
            [rows.switched[line[ok]].sum() == 1 for line, ok in zip(around, inside, strict=True)], dtype=bool
        )
        inside &= once[:, None] & ~np.isnan(rows.step_ms[np.minimum(around, len(rows) - 1)])
        number = np.broadcast_to(np.arange(len(at))[:, None] + self._n_switches, around.shape)[inside]
        self._switches.append((number.astype(np.int64), _samples(self._modes, rows, around[inside])))
        self._n_switches += len(at)

    def _add_blocks(self, rows: ReplayRows) -> None:
        first = int(rows.block[0])
        block, n = rows.block - first, int(rows.block[-1]) - first + 1
        sums = {"steps": _by(block, rows.steps, n)}
        sums |= self._count_sums(rows, block, n)
        only = ~rows.counted
        cell = block[only] * (self._depth + 1) + rows.drafts[only]
        sums["sum_requests"] = _by(cell, rows.requests[only], n * (self._depth + 1)).reshape(n, -1)
        sums["sum_accepted"] = _by(block[only], rows.accepted[only], n)
        self._blocks.append((rows.segment, first, sums))

    def _count_sums(self, rows: ReplayRows, block: Ints, n: int) -> dict[str, Floats]:
        names = ("offered", "accepted", "squares", "rows")
        sums = {name: np.zeros((n, self._depth)) for name in names}
        fresh = rows.columns.fresh
        if fresh is None:
            return sums
        for d in range(min(self._depth, fresh.offered.shape[1])):
            at = np.flatnonzero(rows.counted & (rows.drafts > d) & (fresh.offered[:, d] > 0))
            offered = fresh.offered[at, d].astype(float)
            accepted = np.minimum(fresh.accepted[at, d], offered)
            where = block[at]
            sums["offered"][:, d] = _by(where, offered, n)
            sums["accepted"][:, d] = _by(where, accepted, n)
            sums["squares"][:, d] = _by(where, accepted**2 / offered, n)
            sums["rows"][:, d] = _by(where, np.ones(len(at)), n)
            self._by_mode[0, :, d] += _by(rows.mode[at], offered, len(self._modes))
            self._by_mode[1, :, d] += _by(rows.mode[at], accepted, len(self._modes))
        return sums

    def _add_facts(self, rows: ReplayRows) -> None:
        facts = self._facts[rows.segment]
        facts.rows += len(rows)
        facts.tokens += int(rows.tokens.sum())
        facts.largest_batch = max(facts.largest_batch, int(rows.batch_size.max()))
        facts.first_mode = int(rows.mode[0]) if facts.first_mode < 0 else facts.first_mode
        facts.modes |= set(np.unique(rows.mode).tolist())
        facts.padded |= set(np.unique(rows.padded).tolist())

    def survey(self) -> Survey:
        """All of it put together."""
        switch = [number for number, _ in self._switches] or [np.zeros(0, dtype=np.int64)]
        around = [samples for _, samples in self._switches] or [self._samples[0]]
        return Survey(
            samples=joined(self._samples),
            left_out={reason: count for reason, count in sorted(self._left_out.items()) if count},
            switches=SwitchSamples(np.concatenate(switch), joined(around)),
            blocks=self._block_sums(),
            segments=tuple(self._facts),
            by_mode=self._by_mode,
            depth=self._depth,
        )

    def _block_sums(self) -> BlockSums:
        counts = [0] * len(self._facts)
        for segment, first, sums in self._blocks:
            counts[segment] = max(counts[segment], first + len(sums["steps"]))
        first_block: Ints = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        n, d = int(first_block[-1]), self._depth
        shapes = {"steps": (n,), "sum_requests": (n, d + 1), "sum_accepted": (n,)}
        names = ("steps", "offered", "accepted", "squares", "rows", "sum_requests", "sum_accepted")
        found = {name: np.zeros(shapes.get(name, (n, d))) for name in names}
        for segment, first, sums in self._blocks:
            start = int(first_block[segment]) + first
            for name, values in sums.items():
                found[name][start : start + len(values)] = values
        return BlockSums(first_block, **found)


def thinned(samples: StepSamples, most: int) -> StepSamples:
    """No more than so many rows of every batch size and mode, evenly spread over them."""
    code = samples.batch_size * len(samples.modes) + samples.mode
    order = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    sizes = np.diff(np.append(starts, len(order)))
    place = np.arange(len(order)) - np.repeat(starts, sizes)
    size = np.repeat(sizes, sizes)
    # The first row of every one of `most` equal shares.
    keep = (size <= most) | (place * most // size != (place - 1) * most // size)
    mask = np.zeros(len(order), dtype=bool)
    mask[order[keep]] = True
    return samples.where(mask)


def _by(code: Ints, values: Ints | Floats | Mask, n: int) -> Floats:
    return np.asarray(np.bincount(code, values, minlength=n)[:n], dtype=np.float64)


def _cost_columns(rows: ReplayRows) -> dict[str, Ints | Floats]:
    columns = {**rows.columns.arrays, "steps": rows.steps}
    flags = np.maximum(0, rows.columns.ints("flags")) & ~int(StepFlag.SWITCHED)
    columns["flags"] = flags | np.where(rows.switched, int(StepFlag.SWITCHED), 0)
    return columns


def _no_rows() -> dict[str, Ints | Floats]:
    return {name: np.zeros(0, dtype=np.int64) for name in ("mode", "batch_size", "step_ns")}


def _samples(modes: tuple[Mode, ...], rows: ReplayRows, at: Ints) -> StepSamples:
    return StepSamples(
        modes=modes,
        mode=rows.mode[at],
        batch_size=rows.padded[at],
        requests=rows.batch_size[at],
        step_ms=rows.step_ms[at],
        steps=np.ones(len(at)),
        context_sum=(rows.context * rows.batch_size)[at],
        context_max=rows.longest[at],
    )
