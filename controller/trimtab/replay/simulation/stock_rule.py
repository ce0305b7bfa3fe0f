"""SGLang's own rule as the engine runs it: every step, without report interval or lease."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.domain import PLAIN_WARM, Mode
from trimtab.policies.ema_rule import EmaRule, slots_for


class StockRule:
    """Chooses modes by SGLang's rule. Owned by whoever plays the engine.

    Args:
        modes: Modes that the engine can run.
        initial_steps: Drafts a step that it starts with.
        graph_batch_sizes: Captured sizes, ascending, that batches count as; empty takes them as they are.
    """

    def __init__(self, modes: Sequence[Mode], initial_steps: int, graph_batch_sizes: Sequence[int] = ()) -> None:
        self._modes = {mode.steps: mode for mode in modes}
        if PLAIN_WARM in modes:
            # What SGLang itself runs for 0 steps, whatever other kinds of plain there are.
            self._modes[0] = PLAIN_WARM
        self._rule = EmaRule(slots_for(self._modes), initial_steps, graph_batch_sizes)

    def choose(self, batch_size: int) -> Mode:
        """The mode of the next step of a batch of this size."""
        return self._modes[self._rule.steps_for(batch_size)]

    def observe(self, accepted_per_request: float | None, batch_size: int) -> None:
        """Take in the mean accepted drafts of a batch; None where it ran without drafts."""
        self._rule.observe(accepted_per_request, batch_size)
