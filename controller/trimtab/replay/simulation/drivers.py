"""What would this policy have done, and how many tokens would have come out? Nothing here looks at a clock.

`play` runs an environment step by step under a `Driver`. `SessionDriver` is the whole product in simulated time:
the real `EngineSession` with its policy, the real lease machine, reports at the report interval. `FixedDriver` and
`EmaDriver` choose every step by themselves, as an engine without Trimtab would.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from trimtab.domain import EngineInfo, EngineKey, InForce, Mode, Source, StepFlag, StepRow
from trimtab.policies.registry import PolicyFactory
from trimtab.replay.environment import Environment, StepLoad, padded_size
from trimtab.replay.simulation.engine_side import REPORT_INTERVAL_MS, EngineSide
from trimtab.replay.simulation.stock_rule import StockRule

_FLAGS = {
    (switched, explored): StepFlag.GRAPH
    | (StepFlag.SWITCHED if switched else StepFlag.NONE)
    | (StepFlag.EXPLORED if explored else StepFlag.NONE)
    for switched in (False, True)
    for explored in (False, True)
}


@dataclass(slots=True)
class Course:
    """What happened, step by step; every list has shape `(n_steps,)`.

    Attributes:
        modes: Mode that ran.
        step_ms: Time taken, the price of a switch included.
        tokens: Tokens that came out.
        loads: The load.
        switches: Steps that ran in another mode than the step before; the first is compared with the start mode.
    """

    modes: list[Mode] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    loads: list[StepLoad] = field(default_factory=list)
    switches: int = 0

    @property
    def seconds(self) -> float:
        """Time taken in all."""
        return sum(self.step_ms) / 1e3

    @property
    def tokens_per_s(self) -> float:
        """Tokens over time taken; 0 without a step."""
        return sum(self.tokens) / self.seconds if self.step_ms else 0.0


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step that ended at `end_ms`; `step_ms` includes the price of a switch."""

    load: StepLoad
    mode: Mode
    tokens: int
    step_ms: float
    end_ms: float
    switched: bool


class Driver(Protocol):
    """Chooses the mode of every step of a simulated engine."""

    def choose(self, load: StepLoad) -> Mode:
        """The mode of the step that starts now."""

    def finish(self, result: StepResult) -> None:
        """Take in the result of that step."""


def play(environment: Environment, driver: Driver) -> Course:
    """Run the environment to its end under the driver."""
    course = Course()
    now_ms, before = 0.0, environment.start
    while (load := environment.load(len(course.modes), now_ms)) is not None:
        mode = driver.choose(load)
        switched = mode != before
        step_ms = environment.step_ms(mode, load) + (environment.switch_ms if switched else 0.0)
        tokens = load.emitted(mode.steps)
        now_ms += step_ms
        driver.finish(StepResult(load, mode, tokens, step_ms, now_ms, switched))
        course.modes.append(mode)
        course.step_ms.append(step_ms)
        course.tokens.append(tokens)
        course.loads.append(load)
        course.switches += switched
        before = mode
    return course


class FixedDriver:
    """Always the same mode."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode

    def choose(self, load: StepLoad) -> Mode:
        """The mode."""
        return self._mode

    def finish(self, result: StepResult) -> None:
        """Nothing to learn."""


class EmaDriver:
    """SGLang's own rule as the engine runs it: every step, without report interval or lease.

    The rule sees batches unpadded: cost tables list few sizes, and padding to those would push a batch into a slot
    where the finely captured sizes of a real engine would not.
    """

    def __init__(self, environment: Environment) -> None:
        self._rule = StockRule(environment.modes, environment.start.steps)

    def choose(self, load: StepLoad) -> Mode:
        """The steps of the batch's slot."""
        return self._rule.choose(load.batch_size)

    def finish(self, result: StepResult) -> None:
        """Tell the rule the mean accepted drafts of the batch."""
        size = result.load.batch_size
        accepted = (result.tokens - size) / size if result.mode.steps else None
        self._rule.observe(accepted, size)


class SessionDriver:
    """The engine's side of the plugin in simulated time, wired to a session of the controller; see `EngineSide`.

    Args:
        environment: What the engine is told to be.
        policy_name: Name of the policy, for the session.
        factory: Makes the policy.
        interval_ms: Report interval.
        seed: Seed of the policy.

    Raises:
        PolicyError: The policy cannot work with the modes of this environment.
    """

    def __init__(
        self,
        environment: Environment,
        policy_name: str,
        factory: PolicyFactory,
        interval_ms: float = REPORT_INTERVAL_MS,
        seed: int = 0,
    ) -> None:
        self._side = EngineSide(_engine_info(environment), policy_name, factory, interval_ms, seed)
        self.session, self.machine = self._side.session, self._side.machine
        self._graph_batch_sizes = environment.graph_batch_sizes

    def choose(self, load: StepLoad) -> Mode:
        """What the lease says; the start mode while there is none."""
        return self._side.choose(load.batch_size) or self._side.start

    def finish(self, result: StepResult) -> None:
        """Send what is due by the end of the step, then note its row for the next report."""
        self._side.pass_time(result.end_ms)
        self._side.note(self._row(result))

    def _row(self, result: StepResult) -> StepRow:
        load, machine = result.load, self.machine
        size, context = load.batch_size, load.context_tokens
        step_ns = round(result.step_ms * 1e6)
        return StepRow(
            launch_id=machine.step,
            step=machine.step,
            result_ns=round(result.end_ms * 1e6),
            mode=result.mode,
            batch_size=size,
            emitted_tokens=result.tokens,
            fresh_requests=size,
            fresh=load.counts(result.mode.steps),
            lease_version=machine.version,
            table_entry=machine.entry if machine.entry >= 0 else None,
            padded_batch_size=padded_size(self._graph_batch_sizes, size),
            global_batch_size=size,
            step_ns=step_ns,
            wall_gap_ns=step_ns,
            context_tokens_sum=None if context is None else context * size,
            context_tokens_max=context,
            running_requests=size,
            flags=_FLAGS[result.switched, machine.explored],
        )


def _engine_info(environment: Environment) -> EngineInfo:
    return EngineInfo(
        key=EngineKey(environment.name),
        boot_id="simulation",
        modes=environment.modes,
        graph_batch_sizes=environment.graph_batch_sizes,
        max_running_requests=environment.graph_batch_sizes[-1],
        initial_steps=environment.start.steps,
        in_force=InForce(Source.STOCK, environment.start),
    )
