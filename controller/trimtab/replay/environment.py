"""What a decode step costs and how many drafts it accepts: the one model behind demo, simulation and counterfactuals.

Cost comes from measured step times (`CostTable`) or from a case file. Acceptance is luck that was drawn before
anybody chose: for each request of a step the run of drafts that *would* be accepted. A step with k drafts
accepts `min(run, k)` of them, so every policy meets the same luck and fewer steps are exact by truncation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trimtab.domain import PLAIN_WARM, DepthCounts, Mode, speculate
from trimtab.errors import DataError
from trimtab.replay.step_times import SHORT_PROMPT_TOKENS, StepTimes, isotonic, read_step_times

MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The requests of one decode step and their luck.

    Attributes:
        batch_size: Requests in the batch.
        reach: `reach[d]` requests would have at least d drafts accepted; shape `(MAX_DEPTH + 1,)`, `reach[0]` is
            the batch size.
        context_tokens: Tokens of context of a request; None if unknown.
        prefill: Requests prefilled in this scheduling round.
        phase: Label of the stretch of time that this step belongs to.
    """

    batch_size: int
    reach: tuple[int, ...]
    context_tokens: int | None = None
    prefill: int = 0
    phase: str = ""

    @property
    def run_hist(self) -> tuple[int, ...]:
        """`run_hist[i]` requests have a run of i accepted drafts; shape `(MAX_DEPTH + 1,)`."""
        return (*(a - b for a, b in pairwise(self.reach)), self.reach[-1])

    @property
    def runs(self) -> tuple[int, ...]:
        """The run of each request, shortest first."""
        return tuple(run for run, count in enumerate(self.run_hist) for _ in range(count))

    def counts(self, steps: int) -> DepthCounts:
        """Drafts offered and accepted by depth when this step runs with `steps` drafts."""
        reach = self.reach
        if steps <= MAX_DEPTH:
            return DepthCounts(reach[:steps], reach[1 : steps + 1])
        return DepthCounts((*reach, *[0] * (steps - MAX_DEPTH - 1)), (*reach[1:], *[0] * (steps - MAX_DEPTH)))

    def emitted(self, steps: int) -> int:
        """Tokens that come out with `steps` drafts: the accepted ones and one more for each request."""
        return sum(self.reach[: steps + 1])


def load_of(run_hist: Sequence[int], context_tokens: int | None = None, prefill: int = 0, phase: str = "") -> StepLoad:
    """The load in which `run_hist[i]` requests have a run of i drafts; missing depths count nobody."""
    padded = [*run_hist, *[0] * (MAX_DEPTH + 1 - len(run_hist))]
    reach = tuple(accumulate(reversed(padded)))[::-1]
    return StepLoad(reach[0], reach, context_tokens, prefill, phase)


class Environment(Protocol):
    """An engine's world: what it may run, what load comes, and what a step costs.

    Attributes:
        name: For people.
        modes: Modes to choose from.
        start: Mode in force before the first step.
        graph_batch_sizes: Sizes that batches are padded to, ascending.
        switch_ms: Charged once for every step that runs in another mode than the step before.
    """

    name: str
    modes: tuple[Mode, ...]
    start: Mode
    graph_batch_sizes: tuple[int, ...]
    switch_ms: float

    def load(self, step_index: int, now_ms: float) -> StepLoad | None:
        """The load of this step, which starts at `now_ms`; None when there is no more."""

    def step_ms(self, mode: Mode, load: StepLoad) -> float:
        """Time that this load takes in this mode, without the price of a switch."""


def padded_size(graph_batch_sizes: Sequence[int], batch_size: int) -> int:
    """The first captured size that holds the batch; the batch itself beyond the last."""
    slot = bisect_left(graph_batch_sizes, batch_size)
    return graph_batch_sizes[slot] if slot < len(graph_batch_sizes) else batch_size


class CostTable:
    """Step time of a mode at a batch size, from what was measured.

    Batches are padded to the next measured size; beyond the last, the step time grows with the batch. Steps that
    were not measured lie on the line through their neighbours.

    Attributes:
        modes: Modes with a cost.
        graph_batch_sizes: Measured sizes, ascending.
    """

    def __init__(self, times: StepTimes) -> None:
        self.graph_batch_sizes = times.batch_sizes
        self._largest = times.batch_sizes[-1]
        self._context_ms_per_token = times.context_ms_per_token
        padded = np.searchsorted(times.batch_sizes, np.arange(self._largest + 1))
        by_mode = {mode: np.array(ms) for mode, ms in times.ms.items()}
        ladder = sorted((m for m in by_mode if m is PLAIN_WARM or m.steps), key=lambda m: m.steps)
        for steps in range(1, MAX_DEPTH + 1):
            by_mode.setdefault(speculate(steps), isotonic(_at_steps(steps, ladder, by_mode)))
        self._ms = {mode: ms[padded].tolist() for mode, ms in by_mode.items()}
        self.modes = tuple(sorted(self._ms))

    @classmethod
    def measured(cls, model: str = "8B", attention_backend: str = "fa3") -> CostTable:
        """The table of this model and backend on one H200; `DataError` if it was not measured."""
        return cls(read_step_times(model, attention_backend))

    def step_ms(self, mode: Mode, batch_size: int, context_tokens: int = 0) -> float:
        """Time of one decode step.

        Args:
            mode: One of `modes`; anything else raises `DataError`.
            batch_size: Requests in the batch.
            context_tokens: Tokens of context of a request.
        """
        ms = self._ms.get(mode)
        if ms is None:
            raise DataError("cost table", f"has no cost for {mode}; it has: {', '.join(map(str, self.modes))}")
        largest = self._largest
        base: float = ms[batch_size] if batch_size <= largest else ms[-1] * batch_size / largest
        if context_tokens <= SHORT_PROMPT_TOKENS:
            return base
        return base + self._context_ms_per_token * batch_size * (context_tokens - SHORT_PROMPT_TOKENS)


def _at_steps(steps: int, ladder: Sequence[Mode], ms: dict[Mode, npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Step times at a number of steps that was not measured: on the line through the two nearest that were."""
    above = min(bisect_left([mode.steps for mode in ladder], steps), len(ladder) - 1)
    low, high = ladder[above - 1], ladder[above]
    share = (steps - low.steps) / (high.steps - low.steps)
    return ms[low] + share * (ms[high] - ms[low])


class Acceptance:
    """How many drafts in a row each request of a step would have accepted.

    The luck of a step depends on the seed and the step's index alone, never on what was chosen before.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.Philox(key=seed)
        self._generator = np.random.Generator(self._bits)

    def run_hist(self, conditional: Sequence[float], requests: int, step_index: int) -> tuple[int, ...]:
        """How many of the requests have a run of 0, 1 ... `MAX_DEPTH` drafts.

        Args:
            conditional: `conditional[d]` is the probability that draft d + 1 is accepted if those before it were;
                shape `(MAX_DEPTH,)`.
            requests: Size of the batch.
            step_index: Which step of the day.
        """
        state = self._bits.state
        state["state"]["counter"][:] = (0, 0, 0, step_index)
        state["buffer_pos"] = 4
        self._bits.state = state
        u = self._generator.random(requests)
        runs = np.searchsorted(-np.cumprod(conditional), -u, side="left")
        return tuple(np.bincount(runs, minlength=MAX_DEPTH + 1).tolist())
