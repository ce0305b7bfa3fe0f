"""EXP3.S: no assumption on where rewards come from (Auer, Cesa-Bianchi, Freund, Schapire 2002, section 8).

With K modes, mode i runs with `p[i] = (1 - gamma) w[i] / sum(w) + gamma / K`. A play of reward x in [0, 1] gives
`w[i] <- w[i] exp(gamma x / (p[i] K)) + e alpha / K sum(w)`; alpha lets every mode come back after a change. Rewards
are tokens a second over the largest mean seen in the band, and a play is a dwell, so a row counts as one part of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from trimtab.domain import StepRow
from trimtab.policies.contract import PolicyContext
from trimtab.policies.lots import LotsPolicy


class Exp3Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How hard to look around and how fast to come back.

    Attributes:
        gamma: Share of uniform draws, and step of the weights.
        alpha: Share of the weights that every play spreads over all modes.
        half_life_s: Step time in a band after which the scale of rewards counts half.
        dwell_steps: Steps between two draws.
    """

    gamma: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    alpha: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.005
    half_life_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 5.0
    dwell_steps: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 32


class Exp3Policy(LotsPolicy):
    """Exponential weights on importance-weighted rewards."""

    name: ClassVar[str] = "exp3"
    summary: ClassVar[str] = "exponential weights, made for rewards that an adversary chooses"
    Parameters = Exp3Parameters

    def __init__(self, context: PolicyContext, parameters: Exp3Parameters | None = None) -> None:
        self._parameters = parameters or Exp3Parameters()
        super().__init__(context, self._parameters.half_life_s, self._parameters.dwell_steps)

    def forget(self) -> None:
        """Begin again with equal weights."""
        super().forget()
        n = len(self._modes)
        self._log_weights = [[0.0] * n for _ in self._context.bands]

    def learn(self, rows: Sequence[StepRow]) -> None:
        """Raise the weight of what ran by what it earned, over its probability."""
        for band, mode, row in self._arms.learn(rows):
            scale = self._arms.best_tps(band)
            if scale <= 0 or row.step_ns is None:
                continue
            reward = min(1.0, row.emitted_tokens / (row.step_ns / 1e9) / scale)
            self._raise_weight(band, mode, reward / self._dwell_steps)

    def _raise_weight(self, band: int, mode: int, reward: float) -> None:
        weights, p = self._log_weights[band], self._parameters
        n = len(weights)
        weights[mode] += p.gamma * reward / (self.chances(band)[mode] * n)
        top = max(weights)
        spread = math.e * p.alpha / self._dwell_steps / n * sum(math.exp(w - top) for w in weights)
        self._log_weights[band] = [math.log(math.exp(w - top) + spread) for w in weights]

    def chances(self, band: int) -> list[float]:
        """The weights' shares, mixed with uniform draws."""
        weights, gamma = self._log_weights[band], self._parameters.gamma
        top = max(weights)
        shares = [math.exp(w - top) for w in weights]
        total = sum(shares)
        return [(1 - gamma) * share / total + gamma / len(shares) for share in shares]

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "log_weights": [list(band) for band in self._log_weights]}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        weights = [[float(w) for w in band] for band in state["log_weights"]]
        if [len(band) for band in weights] != [len(band) for band in self._log_weights]:
            raise ValueError("the weights are of other bands or modes")
        super()._set_state(state)
        self._log_weights = weights
