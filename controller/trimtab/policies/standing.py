"""A decision that stands: what the baselines share that never learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trimtab.domain import Mode, StepRow
from trimtab.policies.contract import Decision, PolicyContext, probability_in
from trimtab.policies.snapshots import seal, unseal


class StandingPolicy:
    """Answers with the decision that it was created with, whatever rows come in."""

    name: ClassVar[str]

    def __init__(self, context: PolicyContext, decision: Decision) -> None:
        self._context = context
        self._decision = decision
        self._chosen: Decision | None = None

    def learn(self, rows: Sequence[StepRow]) -> None:
        """Nothing to learn."""

    def choose(self) -> Decision:
        """The decision."""
        self._chosen = self._decision
        return self._chosen

    def probability_of(self, batch_size: int, mode: Mode) -> float:
        """1 for the decision's mode at this batch size."""
        return probability_in(self._chosen, batch_size, mode)

    def forget(self) -> None:
        """Nothing to forget."""

    def snapshot(self) -> dict[str, Any]:
        """No state but the identity."""
        return seal(self.name, self._context, {})

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Check the identity."""
        unseal(self.name, self._context, snapshot)
