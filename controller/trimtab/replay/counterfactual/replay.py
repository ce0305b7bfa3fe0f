"""What would other policies have made of a recorded trace?

`replay` reads a trace twice: for what its costs and its acceptance are, then once more under all policies together.
Every policy meets the same rows, the same luck and the same prices. The recorded run and every fixed mode go along
for comparison. See `trace_model/outcomes.py` for what is known of other numbers of drafts,
`trace_model/environment.py` for times and `intervals.py` for how sure the figures are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trimtab.domain import EngineInfo, Mode
from trimtab.errors import DataError
from trimtab.policies.fixed import FixedPolicy
from trimtab.policies.offer import choosable
from trimtab.policies.profile import CostProfile
from trimtab.policies.sglang_ema import SglangEmaPolicy
from trimtab.replay.counterfactual.choosers import Chooser, EmaChooser, SessionChooser
from trimtab.replay.counterfactual.fixed import FixedCourse, RecordedCourse
from trimtab.replay.counterfactual.ledger import Ledger
from trimtab.replay.counterfactual.result import AS_RECORDED, ReplayResult
from trimtab.replay.counterfactual.stepped import SteppedCourse
from trimtab.replay.counterfactual.verdict import BinSums, Played, result_of
from trimtab.replay.simulation.engine_side import REPORT_INTERVAL_MS, EngineSide
from trimtab.replay.simulation.trial import NamedPolicy
from trimtab.replay.trace_model.acceptance import follow_acceptance
from trimtab.replay.trace_model.costs import ReplayCosts, fitted_costs, given_costs
from trimtab.replay.trace_model.environment import Stretch, TraceEnvironment, engine_info
from trimtab.replay.trace_model.rows import RowSource
from trimtab.replay.trace_model.survey import Survey, survey
from trimtab.replay.traces.reader import Trace


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How to replay.

    Attributes:
        interval_ms: Report interval in replayed time.
        seed: Of the policies, of luck beyond what was counted and of the resampling.
        profile: What steps cost; None fits a profile on the trace.
        profile_name: Where the profile comes from, for people.
        switch_ms: What a change of mode costs; None learns it from the trace.
    """

    interval_ms: float = REPORT_INTERVAL_MS
    seed: int = 0
    profile: CostProfile | None = None
    profile_name: str = ""
    switch_ms: float | None = None


class CourseOfPolicy(Protocol):
    """Plays a trace, stretch by stretch."""

    ledger: Ledger

    def play(self, stretch: Stretch) -> None:
        """Take in the next rows."""

    def finish(self) -> None:
        """The trace is over."""


def replay(
    trace: Trace,
    policies: Sequence[NamedPolicy],
    settings: ReplaySettings | None = None,
    name: str = "",
    progress: Callable[[float], None] | None = None,
) -> ReplayResult:
    """What the policies would have made of a trace; the recorded run is the first of the verdicts.

    Args:
        trace: The trace.
        policies: Who plays.
        settings: How.
        name: Of the trace, for people; empty takes its file's name.
        progress: Told now and then which share of the work is done.

    Raises:
        DataError: The trace cannot be read, or says too little to tell what other modes would have cost.
        PolicyError: A policy cannot work with the modes of an engine.
    """
    settings = settings or ReplaySettings()
    advance = _Advance(progress, trace.rows)
    environment, engines = prepare(RowSource(trace, name or str(trace.path)), settings, advance.first_look)
    courses = _courses(environment, engines, policies, settings)
    sums = BinSums(environment)
    for stretch in environment.stretches():
        sums.add(stretch)
        for course in courses.values():
            course.play(stretch)
        advance.replayed(stretch.rows.columns.first_row + len(stretch))
    for course in courses.values():
        course.finish()
    played = [Played(key, course.ledger) for key, course in courses.items()]
    return result_of(environment, sums, played, settings.interval_ms, settings.seed, _profile_name(settings), name)


class _Advance:
    """Shares of the work: the first look is quick."""

    FIRST_LOOK = 0.1

    def __init__(self, progress: Callable[[float], None] | None, rows: int) -> None:
        self._progress = progress or (lambda share: None)
        self._rows = max(1, rows)

    def first_look(self, rows: int) -> None:
        self._progress(self.FIRST_LOOK * rows / self._rows)

    def replayed(self, rows: int) -> None:
        self._progress(self.FIRST_LOOK + (1 - self.FIRST_LOOK) * rows / self._rows)


def _profile_name(settings: ReplaySettings) -> str:
    return settings.profile_name or ("given" if settings.profile else "fitted on this trace")


def prepare(
    source: RowSource, settings: ReplaySettings, progress: Callable[[int], None] | None = None
) -> tuple[TraceEnvironment, list[EngineInfo]]:
    """The first reading: the world of a trace, and what the engine of each segment says of itself.

    Args:
        source: The rows.
        settings: How to replay.
        progress: Told now and then how many rows have been looked at.

    Raises:
        DataError: See `replay`.
    """
    trace = source.trace
    found = survey(source, progress)
    if not found.rows:
        raise DataError(source.place, "has no rows that could be replayed")
    engines = [engine_info(trace, e, f) for e, f in zip(trace.info.engines, found.segments, strict=True)]
    modes = sorted({*trace.modes, *(mode for info in engines for mode in info.modes)})
    depth = max(mode.steps for mode in modes)
    course = follow_acceptance(found.blocks, [segment.engine for segment in trace.segments()], depth)
    return TraceEnvironment(source, found, modes, course, _costs(source, found, modes, settings)), engines


def _costs(source: RowSource, found: Survey, modes: Sequence[Mode], settings: ReplaySettings) -> ReplayCosts:
    if settings.profile is not None:
        return given_costs(settings.profile, found.samples, found.switches, modes, settings.switch_ms)
    try:
        return fitted_costs(found.samples, found.switches, modes, settings.switch_ms)
    except DataError as error:
        problem = f"{error.problem}; give a profile of this model and GPU with --profile"
        raise DataError(source.place, problem) from error


@dataclass(frozen=True, slots=True)
class CourseKey:
    """Which course: a policy's, or that of a fixed mode for comparison."""

    name: str
    is_reference: bool = False


def _courses(
    environment: TraceEnvironment,
    engines: Sequence[EngineInfo],
    policies: Sequence[NamedPolicy],
    settings: ReplaySettings,
) -> dict[CourseKey, CourseOfPolicy]:
    starts = [info.in_force.mode or info.modes[0] for info in engines]
    courses: dict[CourseKey, CourseOfPolicy] = {CourseKey(AS_RECORDED): RecordedCourse(environment)}
    for policy in policies:
        courses[CourseKey(policy.text)] = _course(environment, engines, starts, policy, settings)
    for mode in _offered_everywhere(engines):
        courses[CourseKey(str(mode), is_reference=True)] = FixedCourse(environment, [mode] * len(engines), starts)
    return courses


def _offered_everywhere(engines: Sequence[EngineInfo]) -> list[Mode]:
    """Modes that could be held throughout; a run of an engine without rows has no say."""
    offers = [set(choosable(info.modes)) for info in engines if info.modes]
    return sorted(set.intersection(*offers), key=lambda mode: mode.steps)


def _course(
    environment: TraceEnvironment,
    engines: Sequence[EngineInfo],
    starts: list[Mode],
    policy: NamedPolicy,
    settings: ReplaySettings,
) -> CourseOfPolicy:
    if policy.name == FixedPolicy.name:
        return FixedCourse(environment, [_session(info, policy, settings).choose(1) for info in engines], starts)
    if policy.name == SglangEmaPolicy.name:
        return SteppedCourse(environment, lambda segment: EmaChooser(engines[segment]), starts, settings.seed)
    return course_through_session(environment, engines, policy, settings)


def course_through_session(
    environment: TraceEnvironment, engines: Sequence[EngineInfo], policy: NamedPolicy, settings: ReplaySettings
) -> SteppedCourse:
    """The course of a policy step by step, whatever the policy is.

    Raises:
        PolicyError: It cannot work with an engine; that is said before the long work.
    """
    for info in engines:
        _session(info, policy, settings)
    starts = [info.in_force.mode or info.modes[0] for info in engines]

    def chooser_for(segment: int) -> Chooser:
        return _session(engines[segment], policy, settings)

    return SteppedCourse(environment, chooser_for, starts, settings.seed)


def _session(info: EngineInfo, policy: NamedPolicy, settings: ReplaySettings) -> SessionChooser:
    return SessionChooser(EngineSide(info, policy.name, policy.factory, settings.interval_ms, settings.seed))
