"""SGLang's own adaptive rule as a policy: the baseline that every engine has without Trimtab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from trimtab.domain import Mode, StepRow
from trimtab.errors import PolicyError
from trimtab.policies.contract import (
    BandDecision,
    Candidate,
    Decision,
    PolicyContext,
    is_informative,
    probability_in,
)
from trimtab.policies.ema_rule import EmaRule, slots_for
from trimtab.policies.offer import choosable, mode_with_steps
from trimtab.policies.snapshots import seal, unseal


class SglangEmaParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rule has SGLang's default table and takes no parameters."""


class SglangEmaPolicy:
    """Decides as SGLang 0.5.23 does by default, once a report instead of once a step.

    Rows that ran plain while their slot wants drafts are rows of an older lease: they count as batches but
    say nothing about acceptance.
    """

    name: ClassVar[str] = "sglang-ema"
    summary: ClassVar[str] = "SGLang's own rule: a running mean of accepted drafts by batch size, cost ignored"
    Parameters = SglangEmaParameters

    def __init__(self, context: PolicyContext, parameters: SglangEmaParameters | None = None) -> None:
        self._context = context
        self._modes = choosable(context.modes)
        offered = {mode.steps for mode in self._modes}
        self._slots = slots_for(offered)
        self._decision: Decision | None = None
        self.forget()

    def learn(self, rows: Sequence[StepRow]) -> None:
        """Feed the mean accepted drafts of every informative row to the slot of its batch size."""
        for row in rows:
            requests = row.fresh_requests + row.stale_requests
            if is_informative(row) and requests > 0:
                accepted = row.accepted_tokens / requests if row.mode.steps else None
                self._rule.observe(accepted, row.batch_size)

    def choose(self) -> Decision:
        """The steps of every slot, read at the batch size of the moment as SGLang does."""
        bands = tuple(self._decide(first) for first in self._rule.first_batch_sizes())
        self._decision = Decision(bands, smoothing=1.0, hysteresis=0.0, min_dwell_steps=0)
        return self._decision

    def _decide(self, batch_size: int) -> BandDecision:
        mode = mode_with_steps(self._modes, self._rule.steps_for(batch_size))
        candidate = Candidate(mode, accepted_drafts=max(0.0, self._rule.mean_for(batch_size)))
        return BandDecision(batch_size, mode, "exploit", candidates=(candidate,))

    def probability_of(self, batch_size: int, mode: Mode) -> float:
        """1 for the slot's mode."""
        return probability_in(self._decision, batch_size, mode)

    def forget(self) -> None:
        """Begin again, as a restarted engine does."""
        self._rule = EmaRule(self._slots, self._context.initial_steps, self._context.graph_batch_sizes)

    def snapshot(self) -> dict[str, Any]:
        """Steps, mean and count of every slot."""
        return seal(self.name, self._context, {"slots": [list(slot) for slot in self._rule.state()]})

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from the slots of a snapshot."""
        state = unseal(self.name, self._context, snapshot)
        try:
            self._rule.set_state(state["slots"])
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyError(f"the snapshot of policy {self.name!r} cannot be read: {error}") from error
