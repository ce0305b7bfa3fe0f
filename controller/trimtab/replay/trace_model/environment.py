"""The world of a trace: what every row would have taken under every mode, stretch by stretch.

A row that ran in mode K for a time t takes t times the profile's ratio of the two modes under another one. Where its
time is no cost (a prefill or a pause before it, a warm-up, a change of mode beside it), the profile speaks alone, set
to the level of the times around.

Prefill belongs to the work: every policy pays it alike. Pauses and what nobody can explain are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.domain import PLAIN_WARM, EngineInfo, EngineKey, InForce, Mode, Source, StepFlag
from trimtab.profile_file import read_mode
from trimtab.replay.arrays import Floats, Ints, Mask
from trimtab.replay.trace_model.acceptance import AcceptanceCourse
from trimtab.replay.trace_model.costs import ReplayCosts
from trimtab.replay.trace_model.outcomes import Outcomes, outcomes_of
from trimtab.replay.trace_model.rows import COLUMNS, ReplayRows, RowSource
from trimtab.replay.trace_model.survey import SegmentFacts, Survey
from trimtab.replay.traces.columns import Segment
from trimtab.replay.traces.reader import Trace
from trimtab.replay.traces.schema import TraceEngine

BINS = 400
# Rows that a bin has at least, so that it says something.
BIN_ROWS = 5
# Rows of a block whose times tell its level.
LEVEL_ROWS = 8


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows, and what they take under every mode. Shapes: N rows, M modes.

    Attributes:
        rows: The rows.
        outcomes: How many steps each takes for one of its own.
        own: Place along the modes of the mode that ran; shape `(N,)`.
        size: Listed batch size of the profile that speaks for the row; shape `(N,)`.
        steps: Steps that the row takes; shape `(N, M)`.
        step_ms: Time of one of them; shape `(N, M)`.
        recorded_ms: Time of the row as it ran, what was in between left out; shape `(N,)`.
        prefill_ms: Prefill before it; shape `(N,)`.
        left_out_ms: Time before it that nobody can explain; shape `(N,)`.
        bin: Part of the trace that it belongs to; shape `(N,)`.
    """

    rows: ReplayRows
    outcomes: Outcomes
    own: Ints
    size: Ints
    steps: Floats
    step_ms: Floats
    recorded_ms: Floats
    prefill_ms: Floats
    left_out_ms: Floats
    bin: Ints

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Bins:
    """Parts of a trace of about equal length: for sums over its course, and as blocks of time.

    Attributes:
        first_bin: Of every segment, and the number of all bins at the end.
        rows: Rows of every segment in the trace.
    """

    first_bin: Ints
    rows: Ints

    def __len__(self) -> int:
        return int(self.first_bin[-1])

    def of(self, segment: int, row: Ints) -> Ints:
        """Bins of rows by their numbers within the segment."""
        n = self.first_bin[segment + 1] - self.first_bin[segment]
        return np.asarray(self.first_bin[segment] + row * n // max(1, int(self.rows[segment])))

    def segment_of(self) -> Ints:
        """Segment of every bin."""
        return np.repeat(np.arange(len(self.rows)), np.diff(self.first_bin))


def bins_of(segments: Sequence[Segment]) -> Bins:
    """About `BINS` bins over all segments, at least one for each."""
    rows = np.array([segment.rows for segment in segments], dtype=np.int64)
    most = max(2, min(BINS, int(rows.sum()) // BIN_ROWS))
    counts = np.maximum(1, np.round(most * rows / max(1, rows.sum()))).astype(np.int64)
    return Bins(np.concatenate([[0], np.cumsum(counts)]), rows)


class TraceEnvironment:
    """Everything that a replay of one trace needs to know; made once, read by every policy.

    Attributes:
        modes: Modes that ran or can be told to run, ascending.
        mode_of: Place along these of every mode of the trace.
        bins: Parts of the trace.
        exact: By segment, whether fewer drafts yield what the counts by depth say of them.
    """

    def __init__(
        self, source: RowSource, survey: Survey, modes: Sequence[Mode], course: AcceptanceCourse, costs: ReplayCosts
    ) -> None:
        self.source = source
        self.survey = survey
        self.course = course
        self.costs = costs
        self.modes = tuple(modes)
        self.mode_of = places_of(source.trace.modes, modes)
        self.bins = bins_of(source.trace.segments())
        self.exact = [not engine.block_verification for engine in source.trace.info.engines]

    def stretches(self) -> Iterator[Stretch]:
        """The whole trace in its order."""
        for rows in self.source.stretches(COLUMNS):
            yield self._stretch(rows)

    def _stretch(self, rows: ReplayRows) -> Stretch:
        costs, own = self.costs, self.mode_of[rows.mode]
        size = costs.table.cells(rows.padded)
        expected = costs.table.step_ms(size, rows.batch_size, rows.context, rows.longest)
        own_ms = np.take_along_axis(expected, own[:, None], axis=1)[:, 0]
        level = _levels(rows, own_ms, costs.level)
        factor = np.where(rows.cost, rows.step_ms / own_ms, level)
        step_ms = expected * factor[:, None]
        # The very time that was recorded, not one that went through a division.
        at = np.flatnonzero(rows.cost)
        step_ms[at, own[at]] = rows.step_ms[at]
        outcomes = outcomes_of(rows, self.course, self.modes, self.mode_of, self.exact[rows.segment])
        warm_up = (np.maximum(0, rows.columns.ints("flags")) & StepFlag.WARM_UP) > 0
        ran_ms: Floats = np.where(np.isnan(rows.step_ms) | warm_up, level * own_ms, rows.step_ms) * rows.steps
        prefill_ms, left_out_ms = _between(rows, ran_ms, warm_up)
        return Stretch(
            rows=rows,
            outcomes=outcomes,
            own=own,
            size=size,
            steps=outcomes.ratio[outcomes.group] * rows.steps[:, None],
            step_ms=step_ms,
            recorded_ms=ran_ms,
            prefill_ms=prefill_ms,
            left_out_ms=left_out_ms,
            bin=self.bins.of(rows.segment, _row_numbers(rows)),
        )


def _row_numbers(rows: ReplayRows) -> Ints:
    """Numbers of the rows within their segment; what was left out of a stretch moves them by nothing that matters."""
    return rows.first_row + np.arange(len(rows))


def _levels(rows: ReplayRows, own_ms: Floats, overall: float) -> Floats:
    """What times are to those of the profile around each row; shape `(N,)`."""
    block = rows.block - rows.block[0]
    ratio = np.where(rows.cost, rows.step_ms / own_ms, 0.0)
    n = np.bincount(block, rows.cost)
    total = np.bincount(block, ratio)
    level = np.where(n >= LEVEL_ROWS, total / np.maximum(1, n), overall)
    found: Floats = level[block]
    return found


def _between(rows: ReplayRows, ran_ms: Floats, warm_up: Mask) -> tuple[Floats, Floats]:
    """Time of each row's gap that was prefill, and that nobody can explain."""
    more = np.maximum(0.0, np.nan_to_num(rows.gap_ms - ran_ms))
    # What a timed row took beyond its own time is a rounding of clocks, unless something lay in between.
    told = np.isnan(rows.step_ms) | warm_up | rows.prefill
    more = np.where(told, more, 0.0)
    prefill = rows.prefill & ~warm_up
    return np.where(prefill, more, 0.0), np.where(prefill, 0.0, more)


def places_of(modes: Sequence[Mode], among: Sequence[Mode]) -> Ints:
    """Place of every mode among others."""
    places = {mode: i for i, mode in enumerate(among)}
    return np.array([places[mode] for mode in modes] or [0], dtype=np.int64)


def offered_modes(trace: Trace, engine: TraceEngine, facts: SegmentFacts) -> tuple[Mode, ...]:
    """The modes that an engine can be told to run: as it said itself, else those that it ran."""
    if engine.modes:
        return tuple(sorted(read_mode(str(trace.path), name) for name in engine.modes))
    return tuple(sorted(trace.modes[code] for code in facts.modes))


def engine_info(trace: Trace, engine: TraceEngine, facts: SegmentFacts) -> EngineInfo:
    """What the engine of a segment says of itself to a session."""
    modes = offered_modes(trace, engine, facts)
    start = start_mode(trace, engine, facts)
    sizes = engine.graph_batch_sizes or tuple(sorted(facts.padded))
    return EngineInfo(
        key=EngineKey(engine.engine),
        boot_id=f"{engine.engine}-{engine.run}",
        modes=modes,
        graph_batch_sizes=sizes,
        max_running_requests=max(engine.max_running_requests, facts.largest_batch, sizes[-1] if sizes else 0),
        block_verification=bool(engine.block_verification),
        initial_steps=engine.initial_steps or start.steps,
        in_force=InForce(Source.STOCK, start),
        kv_capacity_tokens=engine.kv_capacity_tokens,
    )


def start_mode(trace: Trace, engine: TraceEngine, facts: SegmentFacts) -> Mode:
    """The mode in force before the first row: as the engine said, else that of the first row."""
    if engine.start_mode:
        return read_mode(str(trace.path), engine.start_mode)
    return trace.modes[facts.first_mode] if facts.first_mode >= 0 else PLAIN_WARM
