"""A world whose load goes on by tokens, as a server's does: what replay is held against, since here the truth is known.

Load and acceptance are functions of the tokens that came out so far. The same world can be run as often as wanted, in
any mode, each time with other luck; what ran can be written as a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trimtab.domain import Mode, StepFlag, StepRow, speculate
from trimtab.policies.registry import policy_factory
from trimtab.replay.environment import Acceptance, CostTable, StepLoad, load_of, padded_size
from trimtab.replay.simulation.drivers import Driver, FixedDriver, SessionDriver, StepResult
from trimtab.replay.traces.schema import TraceEngine
from trimtab.replay.traces.writer import TraceWriter

MODES = tuple(speculate(steps) for steps in (0, 1, 2, 3, 5, 7))
TICKS = 200


@dataclass(frozen=True)
class Stretch:
    """A part of the load: so many tokens, requests between two bounds, conditional acceptance by position."""

    tokens: int
    fewest: int
    most: int
    acceptance: float
    fall: float = 0.97

    @property
    def conditional(self) -> tuple[float, ...]:
        return tuple(self.acceptance * self.fall**d for d in range(8))


def random_load(seed: int, stretches: int = 12, largest: int = 243, tokens: int = 60_000) -> list[Stretch]:
    """Stretches of one process: the truth for one draw of it is, on average, that of any other."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(stretches):
        size = int(2 ** rng.uniform(0, np.log2(largest)))
        share = rng.uniform(0.3, 0.95)
        # About as many steps whatever the batch.
        found.append(Stretch(int(tokens * size / 20) + 200, size, max(size, int(size * 1.3)), share))
    return found


@dataclass
class Run:
    """What came of one run. `result_ms` is when each step ended."""

    rows: list[StepRow] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


class TokenWorld:
    """The engine's world; see `Environment` for the attributes.

    Args:
        load: The load.
        seed: Of the batch's wandering.
        noise: Standard deviation of the logarithm of step times.
    """

    def __init__(
        self,
        load: Sequence[Stretch],
        seed: int = 0,
        noise: float = 0.02,
        switch_ms: float = 0.0,
        start: Mode = MODES[3],
    ) -> None:
        self.name = "world"
        self.modes = MODES
        self.start = start
        self.switch_ms = switch_ms
        self._costs = CostTable.measured()
        self.graph_batch_sizes = self._costs.graph_batch_sizes
        self._load = load
        self._ends = np.cumsum([stretch.tokens for stretch in load])
        rng = np.random.default_rng(seed)
        self._sizes = [rng.integers(s.fewest, s.most + 1, TICKS) for s in load]
        self._noise = noise

    def run(self, driver: Driver, luck: int) -> Run:
        """Run to the end under the driver."""
        acceptance, rng = Acceptance(luck), np.random.default_rng((luck, 1))
        found, before, now_ms, step = Run(), self.start, 0.0, 0
        while found.tokens < self._ends[-1]:
            load = self._load_at(found.tokens, acceptance, step)
            mode = driver.choose(load)
            switched = mode != before
            ms = self._costs.step_ms(mode, load.batch_size) * float(np.exp(self._noise * rng.standard_normal()))
            ms += self.switch_ms if switched else 0.0
            now_ms, tokens, step = now_ms + ms, load.emitted(mode.steps), step + 1
            driver.finish(StepResult(load, mode, tokens, ms, now_ms, switched))
            found.rows.append(self._row(step, load, mode, tokens, ms, now_ms, switched))
            found.tokens += tokens
            before = mode
        found.seconds = now_ms / 1e3
        return found

    def _load_at(self, tokens: int, acceptance: Acceptance, step: int) -> StepLoad:
        at = int(np.searchsorted(self._ends, tokens, side="right"))
        stretch = self._load[at]
        into = 1 - (self._ends[at] - tokens) / stretch.tokens
        size = int(self._sizes[at][int(into * TICKS)])
        return load_of(acceptance.run_hist(stretch.conditional, size, step))

    def _row(
        self, step: int, load: StepLoad, mode: Mode, tokens: int, ms: float, now_ms: float, switched: bool
    ) -> StepRow:
        return StepRow(
            launch_id=step,
            step=step,
            result_ns=round(now_ms * 1e6),
            mode=mode,
            batch_size=load.batch_size,
            emitted_tokens=tokens,
            fresh_requests=load.batch_size,
            fresh=load.counts(mode.steps),
            padded_batch_size=padded_size(self.graph_batch_sizes, load.batch_size),
            step_ns=round(ms * 1e6),
            wall_gap_ns=round(ms * 1e6),
            running_requests=load.batch_size,
            flags=StepFlag.GRAPH | (StepFlag.SWITCHED if switched else StepFlag.NONE),
        )


def engine_of(world: TokenWorld) -> TraceEngine:
    """What a trace says of the world's engine."""
    return TraceEngine(
        "world", 0, modes=tuple(map(str, world.modes)), graph_batch_sizes=world.graph_batch_sizes,
        max_running_requests=world.graph_batch_sizes[-1], initial_steps=world.start.steps,
        block_verification=False, start_mode=str(world.start),
    )  # fmt: skip


def write_run(path: Path, world: TokenWorld, rows: Sequence[StepRow]) -> Path:
    """Write rows of the world as a trace."""
    with TraceWriter(path, "step_rows") as writer:
        writer.begin(engine_of(world))
        writer.write_rows(rows)
    return path


def under_policy(world: TokenWorld, name: str, seed: int = 0) -> Driver:
    """A driver with the whole product."""
    return SessionDriver(world, name, policy_factory(name), seed=seed)  # type: ignore[arg-type]


class Wandering:
    """Every so many steps a mode by lot: a log in which everything was tried."""

    def __init__(self, modes: Sequence[Mode], seed: int, dwell: int = 16) -> None:
        self._modes, self._rng, self._dwell, self._step = modes, np.random.default_rng(seed), dwell, 0
        self._mode = modes[0]

    def choose(self, load: StepLoad) -> Mode:
        if self._step % self._dwell == 0:
            self._mode = self._modes[int(self._rng.integers(len(self._modes)))]
        self._step += 1
        return self._mode

    def finish(self, result: StepResult) -> None:
        return


def fixed(world: TokenWorld, steps: int, luck: int) -> Run:
    """The truth of a fixed mode."""
    return world.run(FixedDriver(speculate(steps)), luck)


DriverOf = Callable[[TokenWorld, int], Driver]
