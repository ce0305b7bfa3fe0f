"""What would other policies have earned where a trace was chosen at random? From a trace to estimates.

See `estimators.py` for what is estimated and how, `logged_steps.py` for the steps that count, and `shadow.py` for what
a candidate wants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from trimtab.domain import EngineInfo, Mode, StepRow, TableEntry
from trimtab.replay.arrays import Ints
from trimtab.replay.off_policy.choices import Choices
from trimtab.replay.off_policy.estimators import ESTIMATORS, MS_PER_S, Estimate, estimate_choices
from trimtab.replay.off_policy.logged_steps import LoggedSteps, StepReader, Stretches
from trimtab.replay.off_policy.recorded_rows import step_rows
from trimtab.replay.off_policy.shadow import Shadow
from trimtab.replay.off_policy.support import Support, nothing_known
from trimtab.replay.simulation.engine_side import REPORT_INTERVAL_MS
from trimtab.replay.simulation.trial import NamedPolicy
from trimtab.replay.statistics.interval import Interval
from trimtab.replay.trace_model.environment import engine_info
from trimtab.replay.trace_model.rows import RowSource
from trimtab.replay.trace_model.survey import survey
from trimtab.replay.traces.reader import Trace

BATCH_ROWS = 20_000


class EstimateResult(msgspec.Struct, frozen=True):
    """What one estimator says of one policy on a trace, or why it says nothing.

    Attributes:
        trace: The trace.
        policy: As it was asked for.
        estimator: `ips`, `snips`, `dm` or `dr`.
        tokens_per_s: Goodput of decode steps; `low` and `high` are its 95% interval.
        tokens_per_step: Tokens of a decode step, with their interval.
        step_ms: Time of one, with its interval.
        recorded_tokens_per_s: Goodput of the very same steps as they ran; None if there are none.
        support: How much of the trace speaks for the policy.
        rows: Rows that count.
        left_out: Others, by reason.
        refused: Why there is no estimate; None if there is one.
    """

    trace: str
    policy: str
    estimator: str
    tokens_per_s: float | None
    low: float | None
    high: float | None
    tokens_per_step: Interval | None
    step_ms: Interval | None
    recorded_tokens_per_s: float | None
    support: Support
    rows: int
    left_out: dict[str, int]
    refused: str | None


@dataclass(frozen=True, slots=True)
class OffPolicySettings:
    """How to estimate.

    Attributes:
        interval_ms: Report interval in recorded time.
        seed: Of the policies and of the resampling.
    """

    interval_ms: float = REPORT_INTERVAL_MS
    seed: int = 0


def estimate(
    trace: Trace,
    policies: Sequence[NamedPolicy],
    estimators: Sequence[str] = tuple(ESTIMATORS),
    settings: OffPolicySettings | None = None,
    name: str = "",
    progress: Callable[[float], None] | None = None,
) -> list[EstimateResult]:
    """What every estimator says of every policy, policy by policy.

    Args:
        trace: The trace.
        policies: The candidates.
        estimators: Keys of `ESTIMATORS`.
        settings: How.
        name: Of the trace, for people; empty takes its file's name.
        progress: Told now and then which share of the work is done.

    Raises:
        DataError: The trace cannot be read.
        PolicyError: A policy cannot work with the modes of an engine.
    """
    settings, name = settings or OffPolicySettings(), name or trace.path.name
    if not _says_probabilities(trace):
        unread = StepReader((), 0)
        unread.left_out["no_probability"] = trace.rows
        return [
            _result(name, policy.text, Estimate(estimator, refused=nothing_known()), Support(), None, unread)
            for policy in policies
            for estimator in estimators
        ]
    log = _Log(trace, policies, settings)
    log.read(progress or (lambda share: None))
    found: list[EstimateResult] = []
    for candidate in log.candidates:
        choices = candidate.choices()
        support, estimates = estimate_choices(choices, log.modes, estimators, settings.seed)
        found += [_result(name, candidate.text, said, support, choices, log.reader) for said in estimates]
    return found


def _says_probabilities(trace: Trace) -> bool:
    return any(not np.isnan(columns.floats("probability")).all() for columns in trace.batches(["probability"]))


def _result(
    name: str, policy: str, said: Estimate, support: Support, choices: Choices | None, reader: StepReader
) -> EstimateResult:
    goodput = said.tokens_per_s
    recorded = (
        float(choices.tokens.sum() / choices.ms.sum() * MS_PER_S) if choices is not None and reader.counted else None
    )
    return EstimateResult(
        trace=name,
        policy=policy,
        estimator=said.estimator,
        tokens_per_s=goodput.value if goodput else None,
        low=goodput.low if goodput else None,
        high=goodput.high if goodput else None,
        tokens_per_step=said.tokens_per_step,
        step_ms=said.step_ms,
        recorded_tokens_per_s=recorded,
        support=support,
        rows=reader.counted,
        left_out={reason: rows for reason, rows in sorted(reader.left_out.items()) if rows},
        refused=said.refused,
    )


class _Candidate:
    """One policy's wishes along a trace."""

    def __init__(self, policy: NamedPolicy, modes: Sequence[Mode], settings: OffPolicySettings) -> None:
        self.text = policy.text
        self._policy = policy
        self._places = {mode: place for place, mode in enumerate(modes)}
        self._settings = settings
        self._stretches = Stretches(len(modes))
        self._codes: dict[TableEntry | None, int] = {}

    def begin(self, info: EngineInfo) -> None:
        """Start afresh beside this engine; `PolicyError` if the policy cannot work with it."""
        self._shadow = Shadow(info, self._policy, self._settings.interval_ms, self._settings.seed)

    def wishes(self, rows: Sequence[StepRow]) -> Ints:
        """Number of what it wants for each of the next rows."""
        shadow, codes = self._shadow, self._codes
        found = []
        for row in rows:
            entry = shadow.wish(row.batch_size)
            code = codes.get(entry)
            found.append(self._code(entry) if code is None else code)
            shadow.see(row)
        return np.array(found, dtype=np.int64)

    def add(self, logged: LoggedSteps, wishes: Ints) -> None:
        """Take in what ran, beside its wishes for all rows that were read."""
        self._stretches.add(logged, wishes[logged.counted])

    def choices(self) -> Choices:
        """All of it."""
        return self._stretches.choices()

    def _code(self, entry: TableEntry | None) -> int:
        wish = [0.0] * len(self._places)
        if entry is not None:
            for mode, place in self._places.items():
                wish[place] = entry.probability_of(mode)
        return self._codes.setdefault(entry, self._stretches.code_of(tuple(wish)))


class _Log:
    """A trace, and what each candidate makes of it."""

    def __init__(self, trace: Trace, policies: Sequence[NamedPolicy], settings: OffPolicySettings) -> None:
        facts = survey(RowSource(trace, str(trace.path))).segments
        self._trace = trace
        self._engines = [engine_info(trace, e, f) for e, f in zip(trace.info.engines, facts, strict=True)]
        self.modes = tuple(sorted({*trace.modes, *(mode for info in self._engines for mode in info.modes)}))
        self.reader = StepReader(self.modes, trace.rows)
        self.candidates = [_Candidate(policy, self.modes, settings) for policy in policies]
        for info in self._engines:
            for candidate in self.candidates:
                # Whether a policy can work with every engine is said before the long work.
                candidate.begin(info)

    def read(self, progress: Callable[[float], None]) -> None:
        """Take in the whole trace."""
        numbers = {segment: i for i, segment in enumerate(self._trace.segments())}
        for columns in self._trace.batches(rows=BATCH_ROWS):
            if columns.first_row == columns.segment.first_row:
                for candidate in self.candidates:
                    candidate.begin(self._engines[numbers[columns.segment]])
            logged, rows = self.reader.read(columns), step_rows(columns)
            for candidate in self.candidates:
                candidate.add(logged, candidate.wishes(rows))
            progress((columns.first_row + len(columns)) / self._trace.rows)
