"""What a replay found, as data for programs and for the report."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from trimtab.domain import Mode
from trimtab.errors import PolicyError
from trimtab.replay.arrays import Floats, Ints
from trimtab.replay.counterfactual.intervals import CourseIntervals, CourseTime
from trimtab.replay.statistics.interval import Interval
from trimtab.replay.trace_model.costs import ReplayCosts

AS_RECORDED = "as recorded"


class EngineVerdict(msgspec.Struct, frozen=True):
    """One policy on one run of one engine."""

    engine: str
    run: int
    tokens: int
    seconds: float
    tokens_per_s: float
    steps: float
    switches: int


class ReplayVerdict(msgspec.Struct, frozen=True):
    """One policy on one trace.

    Attributes:
        trace: The trace.
        policy: As it was asked for; "as recorded" is what ran.
        tokens_per_s: Tokens over the time of decode steps, switches and prefill.
        low: Lower end of its 95% interval; `high` the upper one.
        observed_share: Share of the tokens whose mode is that which ran.
        truncated_share: Of those with fewer drafts than ran, exact by counts by depth.
        modelled_share: Of the others, whose accepted drafts are modelled.
        steps: Decode steps; a part of one where the trace ends within it.
        switches: Changes of mode.
        steps_by_mode: Share of the steps by mode.
        against_recorded: Tokens a second over those of the recorded run.
        best_fixed: The best single mode of this trace, known afterwards only.
        against_best_fixed: Tokens a second over those of that mode.
        regret_s: Time lost against the best fixed mode of each part of the trace.
        left_out_s: Pauses, warm-ups and gaps that nobody can explain: no policy is charged for them.
        left_out_rows: Rows that take no part, by reason.
        switch_ms: What a change of mode is taken to cost.
        profile: Where step times come from.
        engines: The same for every run of every engine.
        notes: What to bear in mind.
    """

    trace: str
    policy: str
    tokens_per_s: float
    low: float
    high: float
    observed_share: float
    truncated_share: float
    modelled_share: float
    tokens: int
    seconds: float
    steps: float
    switches: int
    switches_per_1000_steps: float
    steps_by_mode: dict[str, float]
    against_recorded: Interval
    best_fixed: str
    against_best_fixed: Interval
    regret_s: float
    left_out_s: float
    left_out_rows: dict[str, int]
    switch_ms: float
    profile: str
    engines: tuple[EngineVerdict, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CourseBins:
    """One course along the trace. Shapes: N bins, M modes.

    Attributes:
        name: Of the policy, or the mode.
        seconds: Time by bin; shape `(N,)`.
        steps: Steps by bin and mode; shape `(N, M)`.
    """

    name: str
    seconds: Floats
    steps: Floats


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """All that was found about one trace. Shapes: N bins, M modes, D positions.

    Attributes:
        trace: Name of the trace.
        source: What it was made from.
        rows: Rows that took part.
        verdicts: One for each course: as recorded first, then the policies.
        modes: All modes; the order of every array by mode.
        tokens: Tokens by bin; shape `(N,)`.
        prefill_s: Prefill by bin; the same for every policy.
        segment: Segment of each bin; shape `(N,)`.
        engines: Name of every segment.
        courses: As recorded first, then the policies.
        fixed: One for every mode that could be held throughout.
        batch_size: Mean batch size by bin, weighted by recorded steps.
        ran_modes: Modes of the rows as they ran.
        accepted_by_mode: Offered and accepted drafts by these modes and position; shape `(2, n_ran_modes, n_seen)`.
        conditional: Acceptance of each position along the trace: mean over the blocks of each bin; shape `(N, D)`.
        costs: What steps cost, with the profile.
        profile: Where that came from.
        policies: The policies, as they were asked for.
        interval_ms: Report interval.
        seed: Of the policies and the luck.
        times: Time of each of `courses`, for comparisons.
        intervals: Of the courses.
    """

    trace: str
    source: str
    rows: int
    verdicts: tuple[ReplayVerdict, ...]
    modes: tuple[Mode, ...]
    tokens: Floats
    prefill_s: Floats
    segment: Ints
    engines: tuple[str, ...]
    courses: tuple[CourseBins, ...]
    fixed: tuple[CourseBins, ...]
    batch_size: Floats
    ran_modes: tuple[Mode, ...]
    accepted_by_mode: Floats
    conditional: Floats
    costs: ReplayCosts
    profile: str
    policies: tuple[str, ...]
    interval_ms: float
    seed: int
    times: tuple[CourseTime, ...]
    intervals: CourseIntervals

    def gain(self, policy: str, reference: str) -> Interval:
        """Tokens a second of a policy over those of another; "as recorded" is what ran.

        Raises:
            PolicyError: One of them was not replayed.
        """
        named = {course.name: time for course, time in zip(self.courses, self.times, strict=True)}
        for name in (policy, reference):
            if name not in named:
                raise PolicyError(f"policy {name!r} was not replayed; there are: {', '.join(named)}")
        return self.intervals.gain(named[policy], named[reference])
