"""The world of a case: a recorded or made-up load with its luck and its own costs, indexed by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.domain import Mode
from trimtab.errors import DataError
from trimtab.replay.environment import MAX_DEPTH, StepLoad


@dataclass(frozen=True, slots=True)
class CostRow:
    """What a step takes at one batch size up to a context, by steps. `ctx_le` None: whatever the context."""

    batch_size: int
    ms: Mapping[int, float]
    ctx_le: int | None = None


class CaseEnvironment:
    """An engine's world as a case has it; see `Environment`. No choice changes which batch comes next.

    Args:
        name: For people.
        modes: Modes that a policy may choose.
        start: Mode in force before the first step.
        cost_rows: Rows without `ctx_le` ascend by batch size: the first that holds a batch counts, the last one
            beyond that. Rows with `ctx_le` count for exactly their batch size: the first that holds the context.
        loads: The load of every step.
        switch_ms: Charged once for every step that runs in another mode than the step before.

    Raises:
        DataError: A step has no cost.
    """

    def __init__(
        self,
        name: str,
        modes: Sequence[Mode],
        start: Mode,
        cost_rows: Sequence[CostRow],
        loads: Sequence[StepLoad],
        switch_ms: float = 0.0,
    ) -> None:
        self.name = name
        self.modes = tuple(modes)
        self.start = start
        self.cost_rows = tuple(cost_rows)
        self.loads = tuple(loads)
        self.switch_ms = switch_ms
        listed = {row.batch_size for row in cost_rows}
        largest = max(load.batch_size for load in loads)
        # What is beyond the last row costs as much: to the policy, one more captured size.
        self.graph_batch_sizes = tuple(sorted(listed if largest <= max(listed) else listed | {largest}))
        kinds = {(load.batch_size, load.context_tokens) for load in loads}
        self._ms = {kind: self._cost_row(*kind).ms for kind in kinds}

    def load(self, step_index: int, now_ms: float) -> StepLoad | None:
        """The load of this step, whenever it starts; None after the last."""
        return self.loads[step_index] if step_index < len(self.loads) else None

    def step_ms(self, mode: Mode, load: StepLoad) -> float:
        """What the case says; every kind of plain costs what 0 steps cost."""
        return self._ms[load.batch_size, load.context_tokens][mode.steps]

    def ms_by_mode(self) -> npt.NDArray[np.float64]:
        """Time of every step in every mode, without switches; shape `(n_steps, n_modes)`."""
        return np.array([[self.step_ms(mode, load) for mode in self.modes] for load in self.loads])

    def tokens_by_mode(self) -> npt.NDArray[np.int64]:
        """Tokens of every step in every mode; shape `(n_steps, n_modes)`."""
        emitted = np.cumsum([load.reach for load in self.loads], axis=1)
        return emitted[:, [min(mode.steps, MAX_DEPTH) for mode in self.modes]]

    def _cost_row(self, batch_size: int, context_tokens: int | None) -> CostRow:
        row = find_cost_row(self.cost_rows, batch_size, context_tokens)
        if row is None:
            raise DataError(self.name, f"there is no cost for batch size {batch_size}, context {context_tokens or 0}")
        return row


def find_cost_row(rows: Sequence[CostRow], batch_size: int, context_tokens: int | None) -> CostRow | None:
    """The row that counts for a step (see `CaseEnvironment`), or None."""
    context = context_tokens or 0
    for row in rows:
        if row.ctx_le is None:
            if batch_size <= row.batch_size:
                return row
        elif batch_size == row.batch_size and context <= row.ctx_le:
            return row
    return rows[-1] if rows[-1].ctx_le is None else None
