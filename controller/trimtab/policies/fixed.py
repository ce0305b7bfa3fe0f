"""One mode for every band: the baseline, and what an operator sets to take the policy out of the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from trimtab.domain import Mode, StepRow
from trimtab.errors import PolicyError
from trimtab.policies.contract import BandDecision, Candidate, Decision, PolicyContext, probability_in
from trimtab.policies.offer import choosable, mode_named, mode_with_steps
from trimtab.policies.snapshots import seal, unseal


class FixedParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which mode to hold.

    Attributes:
        steps: Drafts a step; 0 is the cheapest safe plain. None: the steps the engine was started with.
        mode: A mode by its name, for example `plain_native`; goes before `steps`.
    """

    steps: int | None = None
    mode: str = ""


class FixedPolicy:
    """Always the same mode."""

    name: ClassVar[str] = "fixed"
    summary: ClassVar[str] = "one mode for every batch size"
    Parameters = FixedParameters

    def __init__(self, context: PolicyContext, parameters: FixedParameters | None = None) -> None:
        self._context = context
        self._decision: Decision | None = None
        self._mode = _mode_to_hold(context, parameters or FixedParameters())

    def learn(self, rows: Sequence[StepRow]) -> None:
        """Nothing to learn."""

    def choose(self) -> Decision:
        """The same mode for every batch size."""
        band = BandDecision(1, self._mode, "fixed", candidates=(Candidate(self._mode),))
        self._decision = Decision((band,), min_dwell_steps=0)
        return self._decision

    def probability_of(self, batch_size: int, mode: Mode) -> float:
        """1 for the fixed mode."""
        return probability_in(self._decision, batch_size, mode)

    def forget(self) -> None:
        """Nothing to forget."""

    def snapshot(self) -> dict[str, Any]:
        """No state but the identity."""
        return seal(self.name, self._context, {})

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Check the identity."""
        unseal(self.name, self._context, snapshot)


def _mode_to_hold(context: PolicyContext, parameters: FixedParameters) -> Mode:
    if parameters.mode:
        return mode_named(context.modes, parameters.mode)
    if parameters.steps is not None:
        return mode_with_steps(context.modes, parameters.steps)
    try:
        return mode_with_steps(context.modes, context.initial_steps)
    except PolicyError:
        # An engine starts at its widest candidate: the nearest to what it was started with.
        return choosable(context.modes)[-1]
