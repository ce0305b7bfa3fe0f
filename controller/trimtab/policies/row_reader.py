"""What one report's rows say, summed up: acceptance by position, times by cell, switches, load.

Which row may teach what is decided here and nowhere else:

* Acceptance is learnt from fresh requests of steps that drafted, also where the step's time is no cost. Requests
  whose draft cache has holes (stale) and warm-ups teach nothing.
* A row of the start-up sweep teaches a cost and nothing else.
* A cost is a timed step with nothing in between, in the mode of the step before it, from a captured graph where
  graphs are in use, without retractions or grammar. The first step after a switch teaches the price of switching,
  without the time in which the draft model read what it had missed: that is a price of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import le
from typing import Any

from trimtab.domain import DepthCounts, Mode, StepFlag, StepRow
from trimtab.policies.bands import band_of
from trimtab.policies.change import Counts
from trimtab.policies.cost import CellKey, Observation
from trimtab.policies.cost_features import context_knot
from trimtab.policies.profile import CostProfile

_GRAPH, _GAP, _WARM_UP, _SWITCHED = map(int, (StepFlag.GRAPH, StepFlag.GAP, StepFlag.WARM_UP, StepFlag.SWITCHED))
_SWEEP = int(StepFlag.SWEEP)

LONGEST_PREFILL_MS = 1_000.0
# A settled step counts as at most so many times the one before: a host that stands still is nobody's fault.
STALL = 2.0


@dataclass(slots=True)
class Tally:
    """Sums over rows of one mode in one band and context class."""

    rows: int = 0
    ratio: float = 0.0
    ratio_squared: float = 0.0
    octave: float = 0.0
    context: float = 0.0
    imbalance: float = 0.0

    def observation(self) -> Observation:
        """The means, as the cost model takes them."""
        n, mean = self.rows, self.ratio / self.rows
        scatter = max(0.0, self.ratio_squared / mean**2 - n)
        return Observation(n, math.log(mean), self.octave / n, self.context / n, self.imbalance / n, scatter)


@dataclass(slots=True)
class Settled:
    """Sums over timed steps in one band, first steps after a switch left out, stalls cut short."""

    rows: int = 0
    ms: float = 0.0
    requests: int = 0
    tokens: int = 0


@dataclass(slots=True)
class ReportSums:
    """What one report says. Times are in ms.

    Attributes:
        steps: Rows that said anything.
        counts: Drafts by position for each mode that drafted.
        tallies: Timed rows by (band, mode, context class).
        switch_ms: What each switch cost that could be seen.
        modes: Rows by mode.
        by_band: Rows, sum of batch sizes and sum of octaves by band.
        settled: Timed steps that followed another one in their mode, by band.
        decode_ms: Time of the `timed` steps.
        prefill_ms: Time between results with prefill in it, `prefills` of them.
        last_band: Band of the last timed row.
        last_step: Decode step counter of the last row; `last_ns` the engine's clock at its result.
        catches_up: Whether the drafter reads what it missed before it drafts again.
        catch_ups: What each catch-up took, and how many tokens of each request it read.
        unread: Tokens of each request that the drafter has not read after the last row.
    """

    steps: int = 0
    counts: dict[int, tuple[list[float], list[float]]] = field(default_factory=dict)
    tallies: dict[CellKey, Tally] = field(default_factory=dict)
    switch_ms: list[float] = field(default_factory=list)
    modes: dict[int, int] = field(default_factory=dict)
    by_band: dict[int, list[float]] = field(default_factory=dict)
    last_band: int = 0
    last_step: int = 0
    last_ns: int = 0
    requests: int = 0
    stale_requests: int = 0
    catches_up: bool = False
    catch_ups: list[tuple[float, float]] = field(default_factory=list)
    unread: float = 0.0
    timed: int = 0
    decode_ms: float = 0.0
    prefills: int = 0
    prefill_ms: float = 0.0
    settled: dict[int, Settled] = field(default_factory=dict)
    retracted: bool = False
    kv_used_tokens: int = 0
    context_tokens: float | None = None
    imbalance: float = 0.0

    @property
    def decode_share(self) -> float | None:
        """Share of busy time that decode steps took, prefill being the rest; None if unknown."""
        if not self.timed:
            return None
        step_ms = self.decode_ms / self.timed
        return min(1.0, step_ms * (self.timed + self.prefills) / (self.decode_ms + self.prefill_ms))

    def shared_counts(self, depth: int) -> Counts | None:
        """Drafts by position over all modes; None if nothing was drafted."""
        if not self.counts:
            return None
        offered, accepted = [0.0] * depth, [0.0] * depth
        for o, a in self.counts.values():
            for i in range(min(depth, len(o))):
                offered[i] += o[i]
                accepted[i] += a[i]
        return Counts(tuple(offered), tuple(accepted)) if offered[0] > 0 else None


class RowReader:
    """Reads the rows of one engine, report after report.

    Args:
        modes: Modes that the policy chooses from; rows of other modes still tell of load and acceptance.
        bands: Smallest batch size of each band.
        profile: Times are taken relative to it.
    """

    def __init__(self, modes: Sequence[Mode], bands: Sequence[int], profile: CostProfile | None) -> None:
        self._number = {mode: i for i, mode in enumerate(modes)}
        self._bands = list(bands)
        self._profile = profile
        self._expected: dict[tuple[int, int, int], float] = {}
        self._modes = list(modes)
        self._graphs_in_use = False
        self._last_mode = -1
        self._after_switch: tuple[int, int, float] | None = None
        self._before_ms: float | None = None

    def read(self, rows: Sequence[StepRow]) -> ReportSums:
        """Sum up one report. Rows without information leave no trace."""
        sums = ReportSums()
        newest: StepRow | None = None
        for row in rows:
            flags = int(row.flags)
            if flags & _WARM_UP or row.batch_size <= 0:
                continue
            step_ns = row.step_ns
            timed = step_ns is not None and step_ns > 0 and not flags & _GAP
            mode = self._number.get(row.mode, -1)
            if flags & _SWEEP:
                self._read_swept(sums, row, mode, flags, timed)
                continue
            drafted = row.mode.steps > 0 and row.fresh_requests > 0 and _is_cascade(row.fresh)
            if not timed and not drafted:
                continue
            sums.steps += 1
            sums.last_step, sums.last_ns = row.step, row.result_ns
            _note_gap(sums, row, timed)
            _note_catch_up(sums, row)
            if drafted and mode >= 0:
                _count(sums, mode, row)
            if timed and step_ns is not None:
                self._time(sums, row, mode, flags, step_ns / 1e6)
                newest = newest if row.context_tokens_sum is None else row
            self._last_mode = mode
        if newest is not None and newest.context_tokens_sum is not None:
            sums.context_tokens = newest.context_tokens_sum / newest.batch_size
            sums.imbalance = imbalance_of(newest)
        return sums

    def _read_swept(self, sums: ReportSums, row: StepRow, mode: int, flags: int, timed: bool) -> None:
        """A row of the start-up sweep: its time is a cost, its requests are nobody's and its load is made up."""
        if timed and row.step_ns is not None and mode >= 0 and mode == self._last_mode and not flags & _SWITCHED:
            band = band_of(self._bands, row.batch_size)
            octave = math.log2(row.padded_batch_size or row.batch_size)
            sums.steps += 1
            self._tally(sums, row, mode, band, octave, row.step_ns / 1e6)
        self._last_mode = mode

    def expected_ms(self, mode: int, batch_size: int, context_tokens: float) -> float:
        """The profile's time of a step; 1 without a profile."""
        if self._profile is None:
            return 1.0
        key = (mode, batch_size, int(context_tokens))
        if key not in self._expected:
            if len(self._expected) > 20_000:
                self._expected.clear()
            self._expected[key] = self._profile.step_ms(self._modes[mode], batch_size, context_tokens)
        return self._expected[key]

    def _time(self, sums: ReportSums, row: StepRow, mode: int, flags: int, step_ms: float) -> None:
        padded = row.padded_batch_size or row.batch_size
        # Under data-parallel attention the largest batch of all ranks reads the table.
        band = band_of(self._bands, row.global_batch_size or row.batch_size)
        octave = math.log2(padded)
        _note_load(sums, row, band, octave, step_ms)
        sums.last_band = self._band_in_force(row, band)
        if mode < 0:
            return
        sums.modes[mode] = sums.modes.get(mode, 0) + 1
        if flags & _SWITCHED or mode != self._last_mode:
            self._before_ms = None
            known = self._last_mode >= 0 or flags & _SWITCHED
            self._after_switch = (mode, padded, step_ms - (row.catch_up_ns or 0) / 1e6) if known else None
            return
        if self._after_switch is not None:
            if self._after_switch[:2] == (mode, padded):
                sums.switch_ms.append(self._after_switch[2] - step_ms)
            self._after_switch = None
        settled = sums.settled.get(band)
        if settled is None:
            settled = sums.settled[band] = Settled()
        settled.rows += 1
        settled.ms += step_ms if self._before_ms is None else min(step_ms, STALL * self._before_ms)
        self._before_ms = step_ms
        settled.requests += row.batch_size
        settled.tokens += row.emitted_tokens
        self._graphs_in_use = self._graphs_in_use or bool(flags & _GRAPH)
        eager = self._graphs_in_use and not flags & _GRAPH
        if not (eager or row.retracted_requests or row.grammar_requests):
            self._tally(sums, row, mode, band, octave, step_ms)

    def _band_in_force(self, row: StepRow, band: int) -> int:
        """The band whose table entry the engine follows: it smooths the batch size, so that may be the next one."""
        entry = row.table_entry
        follows = row.lease_version > 0 and entry is not None and abs(entry - band) <= 1
        return entry if follows and entry is not None and entry < len(self._bands) else band

    def _tally(self, sums: ReportSums, row: StepRow, mode: int, band: int, octave: float, step_ms: float) -> None:
        total = row.context_tokens_sum or 0
        mean = total / row.batch_size
        key = (band, mode, context_class(mean))
        tally = sums.tallies.get(key)
        if tally is None:
            tally = sums.tallies[key] = Tally()
        ratio = step_ms / self.expected_ms(mode, row.batch_size, mean)
        tally.rows += 1
        tally.ratio += ratio
        tally.ratio_squared += ratio * ratio
        tally.octave += octave
        if total:
            tally.context += context_knot(total)
            tally.imbalance += imbalance_of(row)

    def state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        return {
            "graphs_in_use": self._graphs_in_use,
            "last_mode": self._last_mode,
            "after_switch": None if self._after_switch is None else list(self._after_switch),
            "before_ms": self._before_ms,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._graphs_in_use = bool(state["graphs_in_use"])
        self._last_mode = int(state["last_mode"])
        waiting = state["after_switch"]
        self._after_switch = None if waiting is None else (int(waiting[0]), int(waiting[1]), float(waiting[2]))
        before_ms = state["before_ms"]
        self._before_ms = None if before_ms is None else float(before_ms)


def context_class(context_tokens: float) -> int:
    """Octave of the mean context of a request, from 256 tokens up."""
    return int(math.log2(1 + context_tokens / 256))


def imbalance_of(row: StepRow) -> float:
    """Binary logarithm of the longest context over the mean."""
    if not row.context_tokens_sum or not row.context_tokens_max:
        return 0.0
    return max(0.0, math.log2(row.context_tokens_max * row.batch_size / row.context_tokens_sum))


def _note_gap(sums: ReportSums, row: StepRow, timed: bool) -> None:
    """Time with prefill in it counts as busy, but no more than a second of it: the rest was idle."""
    if not timed and row.prefill_tokens > 0 and row.wall_gap_ns is not None:
        sums.prefills += 1
        sums.prefill_ms += min(LONGEST_PREFILL_MS, row.wall_gap_ns / 1e6)


def _note_catch_up(sums: ReportSums, row: StepRow) -> None:
    """What the draft model read before the step, and what it has left to read after it."""
    sums.unread = row.missed_tokens / row.batch_size
    if row.caught_up_tokens and row.catch_up_ns:
        sums.catch_ups.append((row.catch_up_ns / 1e6, row.caught_up_tokens / row.batch_size))


def _is_cascade(counts: DepthCounts) -> bool:
    """Whether drafts were offered, and no more accepted than offered, nor offered than accepted one before."""
    offered, accepted = counts.offered, counts.accepted
    if not offered or len(offered) != len(accepted) or offered[0] <= 0:
        return False
    if offered[1:] == accepted[:-1]:
        # As engines count: then the last one tells whether any is negative.
        return accepted[-1] >= 0 and all(map(le, accepted, offered))
    before = offered[0]
    for o, a in zip(offered, accepted, strict=True):
        if not 0 <= a <= o <= before:
            return False
        before = a
    return True


def _count(sums: ReportSums, mode: int, row: StepRow) -> None:
    offered, accepted = row.fresh.offered, row.fresh.accepted
    counts = sums.counts.get(mode)
    if counts is None:
        counts = sums.counts[mode] = ([0.0] * row.mode.steps, [0.0] * row.mode.steps)
    o, a = counts
    for i in range(min(len(offered), row.mode.steps)):
        if not offered[i]:
            break
        o[i] += offered[i]
        a[i] += accepted[i]


def _note_load(sums: ReportSums, row: StepRow, band: int, octave: float, step_ms: float) -> None:
    load = sums.by_band.get(band)
    if load is None:
        load = sums.by_band[band] = [0.0, 0.0, 0.0]
    load[0] += 1
    load[1] += row.batch_size
    load[2] += octave
    sums.requests += row.fresh_requests + row.stale_requests
    sums.stale_requests += row.stale_requests
    sums.catches_up = sums.catches_up or row.catch_up_ns is not None
    sums.timed += 1
    sums.decode_ms += step_ms
    sums.retracted = sums.retracted or bool(row.retracted_requests)
    sums.kv_used_tokens = row.kv_used_tokens or sums.kv_used_tokens
