"""What is in a trace, summed up: how long, which modes, how well counted, and what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from trimtab.domain import StepFlag
from trimtab.replay.arrays import Ints
from trimtab.replay.traces.columns import Segment, StepColumns
from trimtab.replay.traces.reader import Trace
from trimtab.replay.traces.recording import read_trace
from trimtab.replay.traces.schema import TraceEngine
from trimtab.replay.traces.step_time_histograms import StepTimeHistograms
from trimtab.wire.bounds import MAX_STEPS, NS_PER_S

COLUMNS = (
    "step", "mode", "batch_size", "emitted_tokens", "accepted_tokens", "fresh_offered", "step_ns", "wall_gap_ns",
    "flags", "probability", "steps",
)  # fmt: skip


class EngineSummary(msgspec.Struct, frozen=True):
    """One run of one engine.

    Attributes:
        rows: Rows of it.
        steps: Decode steps that these stand for.
        tokens: Tokens that came out; null where some rows do not say.
        span_s: Time from the first result to the last.
        missing_steps: Decode steps without a row between the first and the last; null without a step counter.
        gap_rows: Rows that came after a prefill, idle time or lost rows.
        gap_s: Time before these.
        about: What is known of the engine.
    """

    engine: str
    run: int
    rows: int
    steps: int
    tokens: int | None
    span_s: float
    missing_steps: int | None
    gap_rows: int
    gap_s: float
    about: TraceEngine


class ModeSummary(msgspec.Struct, frozen=True):
    """One mode. `accepted`: drafts a request and step; `step_ms`: median of what was timed; both null if unknown."""

    mode: str
    rows: int
    steps: int
    accepted: float | None
    step_ms: float | None


class DepthSummary(msgspec.Struct, frozen=True):
    """One position of the drafts: requests that reached it, and those that had it accepted."""

    depth: int
    offered: int
    accepted: int
    rate: float | None


class BatchSummary(msgspec.Struct, frozen=True):
    """Sizes of the batches, each row counted once."""

    smallest: int
    median: int
    largest: int
    distinct: int


class TraceSummary(msgspec.Struct, frozen=True):
    """A whole trace.

    Attributes:
        counts_share: Share of the rows that have counts by depth.
        timed_share: Share that have a step time.
        propensity_share: Share that say with which probability their mode was chosen.
        acceptance: By position, where it was counted.
    """

    file: str
    source: str
    format: int
    trimtab_version: str
    rows: int
    steps: int
    span_s: float
    counts_share: float
    timed_share: float
    propensity_share: float
    batch_size: BatchSummary | None
    modes: tuple[ModeSummary, ...]
    acceptance: tuple[DepthSummary, ...]
    engines: tuple[EngineSummary, ...]


def summarize(path: Path, progress: Callable[[int, int], None] | None = None) -> TraceSummary:
    """What is in this trace, or in a file that one can be made of.

    Args:
        path: The file.
        progress: Told how many bytes have been imported of how many, if the file is no trace; then the same in rows.

    Raises:
        DataError: The file cannot be read or used.
    """
    told = progress or (lambda done, total: None)
    with read_trace(path, importing=lambda read: told(read, path.stat().st_size)) as trace:
        total, engines = _Total(trace), [_Engine(segment) for segment in trace.segments()]
        at = {engine.segment: engine for engine in engines}
        for columns in trace.batches(COLUMNS):
            total.add(columns)
            at[columns.segment].add(columns)
            told(columns.first_row + len(columns), trace.rows)
        found = tuple(e.summary(about) for e, about in zip(engines, trace.info.engines, strict=True))
        return total.summary(path, found)


class _Engine:
    """Sums over one run."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.steps = self.tokens = self.gap_rows = self.gap_ns = 0
        self.missing: int | None = None
        self._last_step = -1
        self._first_ns, self._last_ns = 0, 0
        self._all_tokens = True

    def add(self, columns: StepColumns) -> None:
        result_ns = columns.ints("result_ns")
        self._first_ns = self._first_ns if self.steps else int(result_ns[0])
        self._last_ns = int(result_ns[-1])
        self.steps += int(columns.steps.sum())
        tokens, flags = columns.ints("emitted_tokens"), columns.ints("flags")
        self._all_tokens &= bool((tokens >= 0).all())
        self.tokens += int(tokens.sum())
        gap = (np.maximum(0, flags) & StepFlag.GAP) > 0
        self.gap_rows += int(gap.sum())
        self.gap_ns += int(np.maximum(0, columns.ints("wall_gap_ns")[gap]).sum())
        self._count_missing(columns.ints("step"))

    def _count_missing(self, step: Ints) -> None:
        step = step[step >= 0]
        if not len(step):
            return
        jumps = np.diff(step, prepend=step[0] if self.missing is None else self._last_step)
        self.missing = (self.missing or 0) + int(np.maximum(0, jumps - 1).sum())
        self._last_step = int(step[-1])

    def summary(self, about: TraceEngine) -> EngineSummary:
        return EngineSummary(
            engine=about.engine,
            run=about.run,
            rows=about.rows,
            steps=self.steps,
            tokens=self.tokens if self._all_tokens else None,
            span_s=(self._last_ns - self._first_ns) / NS_PER_S,
            missing_steps=self.missing,
            gap_rows=self.gap_rows,
            gap_s=self.gap_ns / NS_PER_S,
            about=about,
        )


class _Total:
    """Sums over all rows."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._counted = self._timed = self._chosen = 0
        self._sizes: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        # By mode: rows, steps, requests with known acceptance, accepted drafts.
        self._by_mode = np.zeros((len(trace.modes), 4), dtype=np.int64)
        # By depth: offered, accepted.
        self._by_depth = np.zeros((MAX_STEPS, 2), dtype=np.int64)
        self._times = StepTimeHistograms()

    def add(self, columns: StepColumns) -> None:
        mode, size, steps = columns.ints("mode"), columns.ints("batch_size"), columns.steps
        accepted, step_ns = columns.ints("accepted_tokens"), columns.ints("step_ns")
        known = accepted >= 0
        figures = (np.ones(len(mode)), steps, size * steps * known, np.maximum(0, accepted))
        for i, values in enumerate(figures):
            self._by_mode[:, i] += np.bincount(mode, weights=values, minlength=len(self._by_mode)).astype(np.int64)
        self._counted += int(columns.has_counts.sum())
        self._chosen += int((~np.isnan(columns.floats("probability"))).sum())
        self._timed += int((step_ns > 0).sum())
        self._times.add(np.where(step_ns > 0, mode, -1), step_ns)
        self._add_sizes(np.maximum(0, size))
        if columns.fresh is not None:
            depth = min(MAX_STEPS, columns.fresh.offered.shape[1])
            self._by_depth[:depth, 0] += columns.fresh.offered[:, :depth].sum(axis=0)
            self._by_depth[:depth, 1] += columns.fresh.accepted[:, :depth].sum(axis=0)

    def _add_sizes(self, size: Ints) -> None:
        found = np.bincount(size, minlength=len(self._sizes))
        found[: len(self._sizes)] += self._sizes
        self._sizes = found

    def summary(self, path: Path, engines: tuple[EngineSummary, ...]) -> TraceSummary:
        info, rows = self._trace.info, self._trace.rows
        return TraceSummary(
            file=str(path),
            source=info.source,
            format=info.format,
            trimtab_version=info.trimtab_version,
            rows=rows,
            steps=sum(engine.steps for engine in engines),
            span_s=sum(engine.span_s for engine in engines),
            counts_share=self._counted / max(1, rows),
            timed_share=self._timed / max(1, rows),
            propensity_share=self._chosen / max(1, rows),
            batch_size=self._batch_summary(),
            modes=self._mode_summaries(),
            acceptance=self._depth_summaries(),
            engines=engines,
        )

    def _batch_summary(self) -> BatchSummary | None:
        present = np.flatnonzero(self._sizes)
        if not len(present):
            return None
        median = int(np.searchsorted(np.cumsum(self._sizes), self._sizes.sum() / 2))
        return BatchSummary(int(present[0]), median, int(present[-1]), len(present))

    def _mode_summaries(self) -> tuple[ModeSummary, ...]:
        medians = self._times.medians()
        return tuple(
            ModeSummary(
                str(mode),
                rows,
                steps,
                accepted / requests if requests else None,
                medians[code] / 1e6 if code in medians else None,
            )
            for code, (mode, (rows, steps, requests, accepted)) in enumerate(
                zip(self._trace.modes, self._by_mode.tolist(), strict=True)
            )
        )

    def _depth_summaries(self) -> tuple[DepthSummary, ...]:
        deepest = int(np.flatnonzero(self._by_depth[:, 0]).max(initial=-1)) + 1
        return tuple(
            DepthSummary(depth, offered, accepted, accepted / offered if offered else None)
            for depth, (offered, accepted) in enumerate(self._by_depth[:deepest].tolist(), start=1)
        )
