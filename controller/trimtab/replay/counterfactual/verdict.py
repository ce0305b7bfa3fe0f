"""From the sums of every course to what is said about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trimtab.replay.arrays import Floats
from trimtab.replay.counterfactual.intervals import CourseIntervals, CourseTime
from trimtab.replay.counterfactual.ledger import Ledger
from trimtab.replay.counterfactual.result import AS_RECORDED, CourseBins, EngineVerdict, ReplayResult, ReplayVerdict
from trimtab.replay.trace_model.costs import ReplayCosts
from trimtab.replay.trace_model.environment import Stretch, TraceEnvironment
from trimtab.replay.trace_model.outcomes import Evidence

# Share of a policy's steps in modes without a measured cost from which that is said.
WORTH_SAYING = 0.01


class Named(Protocol):
    """Which course it is."""

    @property
    def name(self) -> str:
        """The policy as it was asked for, or the mode."""

    @property
    def is_reference(self) -> bool:
        """Whether it is a fixed mode for comparison."""


@dataclass(frozen=True, slots=True)
class Played:
    """A course that was played to its end."""

    key: Named
    ledger: Ledger


class BinSums:
    """What is the same for every course, summed up by bin. Owned by one replay."""

    def __init__(self, environment: TraceEnvironment) -> None:
        n = len(environment.bins)
        self.tokens = np.zeros(n)
        self.prefill_ms = np.zeros(n)
        self.left_out_ms = np.zeros(n)
        self.steps = np.zeros(n)
        self.requests = np.zeros(n)
        self._conditional = np.zeros((n, environment.course.conditional.shape[1]))
        self._rows = np.zeros(n)
        self._course = environment.course

    def add(self, stretch: Stretch) -> None:
        """Take in the next rows."""
        n, rows, bins = len(self.tokens), stretch.rows, stretch.bin
        self.tokens += np.bincount(bins, rows.tokens, minlength=n)
        self.prefill_ms += np.bincount(bins, stretch.prefill_ms, minlength=n)
        self.left_out_ms += np.bincount(bins, stretch.left_out_ms, minlength=n)
        self.steps += np.bincount(bins, rows.steps, minlength=n)
        self.requests += np.bincount(bins, rows.batch_size * rows.steps, minlength=n)
        self._rows += np.bincount(bins, minlength=n)
        block = self._course.blocks(rows.segment, rows.block)
        for d in range(self._conditional.shape[1]):
            self._conditional[:, d] += np.bincount(bins, self._course.conditional[block, d], minlength=n)

    @property
    def batch_size(self) -> Floats:
        """Mean requests a step."""
        return self.requests / np.maximum(1.0, self.steps)

    @property
    def conditional(self) -> Floats:
        """Mean acceptance of each position; NaN in bins without rows."""
        return np.where(self._rows > 0, 1.0, np.nan)[:, None] * self._conditional / np.maximum(1, self._rows)[:, None]


def result_of(
    environment: TraceEnvironment,
    sums: BinSums,
    played: Sequence[Played],
    interval_ms: float,
    seed: int,
    profile: str,
    name: str = "",
) -> ReplayResult:
    """All that is said about a trace.

    Args:
        environment: The trace.
        sums: What is the same for every course.
        played: The courses, as recorded first.
        interval_ms: Report interval.
        seed: Of the resampling.
        profile: Where costs come from.
        name: Of the trace; empty takes its file's name.
    """
    trace = environment.source.trace
    name = name or trace.path.name
    judge = _Judge(environment, sums, played, seed, profile)
    own = [one for one in played if not one.key.is_reference]
    segments = trace.segments()
    return ReplayResult(
        trace=name,
        source=trace.info.source,
        rows=environment.survey.rows,
        verdicts=tuple(judge.verdict(name, one) for one in own),
        modes=environment.modes,
        tokens=sums.tokens,
        prefill_s=sums.prefill_ms / 1e3,
        segment=environment.bins.segment_of(),
        engines=tuple(f"{s.engine} run {s.run}" if s.run else s.engine for s in segments),
        courses=tuple(judge.bins(one) for one in own),
        fixed=tuple(judge.bins(one) for one in played if one.key.is_reference),
        batch_size=sums.batch_size,
        ran_modes=trace.modes,
        accepted_by_mode=environment.survey.by_mode,
        conditional=sums.conditional,
        costs=environment.costs,
        profile=profile,
        policies=tuple(one.key.name for one in own if one.key.name != AS_RECORDED),
        interval_ms=interval_ms,
        seed=seed,
        times=tuple(judge.time(one) for one in own),
        intervals=judge.intervals,
    )


class _Judge:
    """Holds the courses against each other."""

    def __init__(
        self, environment: TraceEnvironment, sums: BinSums, played: Sequence[Played], seed: int, profile: str
    ) -> None:
        self._environment = environment
        self._profile = profile
        self._sums = sums
        self._times = {id(one): _time(one.ledger, sums) for one in played}
        self._recorded = self._times[id(played[0])]
        self.intervals = CourseIntervals(sums.tokens, self._recorded.ms, seed)
        references = [one for one in played if one.key.is_reference]
        best = min(references or played[:1], key=lambda one: self._times[id(one)].total_ms)
        self._best_name, self._best = best.key.name, self._times[id(best)]
        self._least_ms = np.min([self._times[id(one)].ms for one in references or played[:1]], axis=0)

    def verdict(self, trace: str, one: Played) -> ReplayVerdict:
        ledger, time = one.ledger, self._times[id(one)]
        tokens = float(self._sums.tokens.sum())
        rate = self.intervals.rate(time)
        by_evidence = ledger.tokens.sum(axis=1) / max(1.0, ledger.tokens.sum())
        steps, switches = float(ledger.steps.sum()), int(ledger.switches.sum())
        return ReplayVerdict(
            trace=trace,
            policy=one.key.name,
            tokens_per_s=rate.value,
            low=rate.low,
            high=rate.high,
            observed_share=float(by_evidence[Evidence.OBSERVED]),
            truncated_share=float(by_evidence[Evidence.TRUNCATED]),
            modelled_share=float(by_evidence[Evidence.MODELLED]),
            tokens=round(tokens),
            seconds=time.total_ms / 1e3,
            steps=steps,
            switches=switches,
            switches_per_1000_steps=1000 * switches / steps,
            steps_by_mode=self._shares(ledger),
            against_recorded=self.intervals.gain(time, self._recorded),
            best_fixed=self._best_name,
            against_best_fixed=self.intervals.gain(time, self._best),
            regret_s=float((time.ms - self._least_ms).sum()) / 1e3,
            left_out_s=float(self._sums.left_out_ms.sum()) / 1e3,
            left_out_rows={reason: n for reason, n in self._environment.source.left_out_rows.items() if n},
            switch_ms=self._environment.costs.price.ms,
            profile=self._profile,
            engines=self._by_engine(ledger, time),
            notes=tuple(_notes(ledger, self._environment.costs, self._environment)),
        )

    def time(self, one: Played) -> CourseTime:
        return self._times[id(one)]

    def bins(self, one: Played) -> CourseBins:
        return CourseBins(one.key.name, self._times[id(one)].ms / 1e3, one.ledger.steps)

    def _shares(self, ledger: Ledger) -> dict[str, float]:
        steps = ledger.steps.sum(axis=0)
        shares = steps / steps.sum()
        return {
            str(mode): float(share) for mode, share in zip(self._environment.modes, shares, strict=True) if share > 0
        }

    def _by_engine(self, ledger: Ledger, time: CourseTime) -> tuple[EngineVerdict, ...]:
        segment_of, found = self._environment.bins.segment_of(), []
        for number, segment in enumerate(self._environment.source.trace.segments()):
            mine = segment_of == number
            tokens, ms = float(self._sums.tokens[mine].sum()), float(time.ms[mine].sum())
            found.append(
                EngineVerdict(
                    segment.engine,
                    segment.run,
                    round(tokens),
                    ms / 1e3,
                    tokens / ms * 1e3 if ms else 0.0,
                    float(ledger.steps[mine].sum()),
                    int(ledger.switches[mine].sum()),
                )
            )
        return tuple(found)


def _time(ledger: Ledger, sums: BinSums) -> CourseTime:
    return CourseTime.of(ledger.work_ms + ledger.switch_ms + sums.prefill_ms, ledger.doubts())


def _notes(ledger: Ledger, costs: ReplayCosts, environment: TraceEnvironment) -> list[str]:
    """What to bear in mind about a course."""
    steps = ledger.steps.sum(axis=0)
    if not steps.sum():
        return []
    shares = steps / steps.sum()
    used = [(i, mode) for i, mode in enumerate(environment.modes) if shares[i] > WORTH_SAYING]
    guessed = [str(mode) for i, mode in used if not costs.knows(i, mode)]
    deepest = environment.survey.depth
    beyond = [str(mode) for _, mode in used if mode.steps > deepest]
    found = []
    if guessed:
        found.append(f"what a step costs in {', '.join(guessed)} was never measured")
    if beyond:
        found.append(f"acceptance beyond {deepest} drafts was never seen, as {', '.join(beyond)} needs it")
    modelled = ledger.tokens[Evidence.MODELLED].sum() > WORTH_SAYING * ledger.tokens.sum()
    if modelled and deepest and not environment.survey.by_mode.any():
        found.append("the trace has only sums of accepted drafts: one acceptance is taken for every position")
    if modelled and not all(environment.exact):
        found.append("drafts are verified as a block: acceptance with other numbers of drafts may be another")
    return found
