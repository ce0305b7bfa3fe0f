"""One mode for every band: the baseline, and what an operator sets to take the policy out of the picture."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from trimtab.domain import Mode
from trimtab.errors import PolicyError
from trimtab.policies.contract import BandDecision, Candidate, Decision, PolicyContext
from trimtab.policies.offer import choosable, mode_named, mode_with_steps
from trimtab.policies.standing import StandingPolicy


class FixedParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which mode to hold.

    Attributes:
        steps: Drafts a step; 0 is the cheapest safe plain. None: the steps the engine was started with.
        mode: A mode by its name, for example `plain_native`; goes before `steps`.
    """

    steps: int | None = None
    mode: str = ""


class FixedPolicy(StandingPolicy):
    """Always the same mode."""

    name: ClassVar[str] = "fixed"
    summary: ClassVar[str] = "one mode for every batch size"
    Parameters = FixedParameters

    def __init__(self, context: PolicyContext, parameters: FixedParameters | None = None) -> None:
        mode = _mode_to_hold(context, parameters or FixedParameters())
        band = BandDecision(1, mode, "fixed", candidates=(Candidate(mode),))
        super().__init__(context, Decision((band,), min_dwell_steps=0))


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
