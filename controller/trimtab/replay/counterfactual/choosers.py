"""Who chooses the mode of every step of a replay, and what a step tells whoever chose it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, Protocol

from trimtab.domain import DepthCounts, EngineInfo, Mode, StepFlag, StepRow
from trimtab.replay.simulation.engine_side import EngineSide
from trimtab.replay.simulation.stock_rule import StockRule

_GRAPH, _GAP, _SWITCHED, _EXPLORED = StepFlag.GRAPH, StepFlag.GAP, StepFlag.SWITCHED, StepFlag.EXPLORED
_FLAGS = {
    (graph, switched, explored, timed): (_GRAPH if graph else StepFlag.NONE)
    | (_SWITCHED if switched else StepFlag.NONE)
    | (_EXPLORED if explored else StepFlag.NONE)
    | (StepFlag.NONE if timed else _GAP)
    for graph, switched, explored, timed in product((False, True), repeat=4)
}
_NONE = DepthCounts()


OTHER_COLUMNS = (
    "stale_requests", "context_tokens_sum", "context_tokens_max", "kv_used_tokens", "running_requests",
    "waiting_requests", "retracted_requests", "grammar_requests",
)  # fmt: skip


class RowFacts(NamedTuple):
    """What is known of the row in which a step begins, whatever mode it runs in; the names are those of `StepRow`.

    Attributes:
        reach: Requests by accepted drafts in a row, were the chain long enough.
        kept: Share of the tokens that went out to clients.
        graph: Whether it ran from a captured graph.
    """

    batch_size: int
    padded: int
    reach: tuple[int, ...]
    kept: float
    graph: bool
    stale_requests: int | None
    context_tokens_sum: int | None
    context_tokens_max: int | None
    kv_used_tokens: int | None
    running_requests: int | None
    waiting_requests: int | None
    retracted_requests: int | None
    grammar_requests: int | None


@dataclass(slots=True)
class Begun:
    """A step that has begun: the row that it began in, and what it has taken up to now.

    Attributes:
        facts: What is known of that row; see `RowFacts`.
        place: Place of the mode along the modes.
        switched: Whether the step before ran in another mode.
        budget: What is left of it.
        ms: Time of the step itself.
        gap_ms: Prefill before or within it.
        prefill_tokens: Tokens of that.
        timed: Whether an engine could tell its time: nothing lay in between.
    """

    facts: RowFacts
    place: int
    switched: bool
    budget: float = 1.0
    ms: float = 0.0
    gap_ms: float = 0.0
    prefill_tokens: int = 0
    timed: bool = True


class Chooser(Protocol):
    """Chooses the mode of every step of one run of an engine."""

    def choose(self, batch_size: int) -> Mode:
        """The mode of the step that starts now."""

    def finish(self, step: Begun, mode: Mode, end_ms: float) -> None:
        """Take in the result of that step."""


class SessionChooser:
    """The session of the controller with its policy, and the lease machine, at the report interval.

    Args:
        side: The engine's side of it.
    """

    def __init__(self, side: EngineSide) -> None:
        self.side = side
        self._machine = side.machine

    def choose(self, batch_size: int) -> Mode:
        """What the lease says."""
        return self._machine.choose(batch_size) or self.side.start

    def finish(self, step: Begun, mode: Mode, end_ms: float) -> None:
        """Send what is due by the end of the step, then note its row for the next report."""
        self.side.pass_time(end_ms)
        self.side.note(self._row(step, mode, end_ms))

    def _row(self, step: Begun, mode: Mode, end_ms: float) -> StepRow:
        """What an engine would have said of the step."""
        facts, machine, k = step.facts, self._machine, mode.steps
        reach, stale = facts.reach, facts.stale_requests or 0
        tokens = sum(reach[: k + 1])
        entry = machine.entry
        fresh, missed = _by_freshness(reach, stale, k) if stale else (DepthCounts(reach[:k], reach[1 : k + 1]), _NONE)
        return StepRow(
            launch_id=machine.step,
            step=machine.step,
            result_ns=round(end_ms * 1e6),
            mode=mode,
            batch_size=facts.batch_size,
            emitted_tokens=tokens if facts.kept == 1.0 else round(tokens * facts.kept),
            fresh_requests=reach[0] - stale,
            fresh=fresh,
            stale_requests=stale,
            stale=missed,
            lease_version=machine.version,
            table_entry=entry if entry >= 0 else None,
            padded_batch_size=facts.padded,
            global_batch_size=facts.batch_size,
            step_ns=round(step.ms * 1e6) if step.timed else None,
            wall_gap_ns=round((step.ms + step.gap_ms) * 1e6),
            prefill_tokens=step.prefill_tokens,
            context_tokens_sum=facts.context_tokens_sum,
            context_tokens_max=facts.context_tokens_max,
            kv_used_tokens=facts.kv_used_tokens,
            running_requests=facts.running_requests,
            waiting_requests=facts.waiting_requests,
            retracted_requests=facts.retracted_requests,
            grammar_requests=facts.grammar_requests,
            flags=_FLAGS[facts.graph, step.switched, machine.explored, step.timed],
        )


def _by_freshness(reach: tuple[int, ...], stale: int, k: int) -> tuple[DepthCounts, DepthCounts]:
    """Counts of the requests whose draft cache is whole, and of the others, which get nothing accepted."""
    fresh = (reach[0] - stale, *reach[1:])
    missed = DepthCounts((stale, *[0] * (k - 1)), (0,) * k) if k else _NONE
    return DepthCounts(fresh[:k], fresh[1 : k + 1]), missed


class EmaChooser:
    """SGLang's own rule as the engine runs it; see `StockRule`. Batches count as the sizes that they are padded to."""

    def __init__(self, info: EngineInfo) -> None:
        self._rule = StockRule(info.modes, info.initial_steps, info.graph_batch_sizes)

    def choose(self, batch_size: int) -> Mode:
        """The steps of the batch's slot."""
        return self._rule.choose(batch_size)

    def finish(self, step: Begun, mode: Mode, end_ms: float) -> None:
        """Tell the rule the mean accepted drafts of the batch."""
        reach = step.facts.reach
        accepted = sum(reach[1 : mode.steps + 1]) / max(1, reach[0]) if mode.steps else None
        self._rule.observe(accepted, step.facts.batch_size)
