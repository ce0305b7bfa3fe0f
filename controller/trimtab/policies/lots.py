"""Bandits that draw lots: each band has probabilities, the engine draws from them once a dwell.

The draws happen inside the lease, so the probabilities recorded there are the true propensities. Subclasses say
how the probabilities follow from what was earned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trimtab.domain import Mode, StepRow
from trimtab.errors import PolicyError
from trimtab.policies.arms import ArmTable, first_mode, measured
from trimtab.policies.contract import BandDecision, Decision, PolicyContext, probability_in
from trimtab.policies.offer import choosable
from trimtab.policies.snapshots import seal, unseal

# A probability below this is not worth an entry in the lease.
SMALLEST_PROBABILITY = 1e-3


class LotsPolicy:
    """Common part of the bandits that draw lots.

    Args:
        context: The engine.
        half_life_s: Step time in a band after which what was seen there counts half.
        dwell_steps: Steps between two draws.
    """

    name: ClassVar[str]

    def __init__(self, context: PolicyContext, half_life_s: float, dwell_steps: int) -> None:
        self._context = context
        self._modes = choosable(context.modes)
        self._first = first_mode(context, self._modes)
        self._half_life_s = half_life_s
        self._dwell_steps = dwell_steps
        self._decision: Decision | None = None
        self.forget()

    def chances(self, band: int) -> list[float]:
        """Probability of every mode in this band; they sum to 1."""
        raise NotImplementedError

    def learn(self, rows: Sequence[StepRow]) -> None:
        """Credit every informative row to its band and mode."""
        self._arms.learn(rows)

    def choose(self) -> Decision:
        """The probabilities of every band."""
        bands = tuple(self._band(i) for i in range(len(self._context.bands)))
        self._decision = Decision(
            bands,
            min_dwell_steps=min(8, self._dwell_steps),
            exploration_seed=self._context.seed,
            exploration_dwell_steps=self._dwell_steps,
        )
        return self._decision

    def _band(self, i: int) -> BandDecision:
        chances = [c if c >= SMALLEST_PROBABILITY else 0.0 for c in self.chances(i)]
        total = sum(chances)
        chances = [c / total for c in chances]
        most = max(range(len(chances)), key=lambda m: (chances[m], m == self._first))
        others = tuple((self._modes[m], c) for m, c in enumerate(chances) if c > 0 and m != most)
        return BandDecision(
            self._context.bands[i],
            self._modes[most],
            "explore" if others else "exploit",
            1 - sum(c for _, c in others),
            others,
            tuple(map(measured, self._modes, self._arms.bands[i])),
        )

    def probability_of(self, batch_size: int, mode: Mode) -> float:
        """Probability with which a draw gives `mode` at this batch size."""
        return probability_in(self._decision, batch_size, mode)

    def forget(self) -> None:
        """Begin again: rewards are made of acceptance."""
        self._arms = ArmTable(self._context, self._modes, self._half_life_s)

    def snapshot(self) -> dict[str, Any]:
        """What was earned, by band and mode."""
        return seal(self.name, self._context, self._state())

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        state = unseal(self.name, self._context, snapshot)
        try:
            self._set_state(state)
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyError(f"the snapshot of policy {self.name!r} cannot be read: {error}") from error

    def _state(self) -> dict[str, Any]:
        return {"arms": self._arms.state()}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._arms.set_state(state["arms"])
