"""Epsilon-greedy: mostly the mode that earned most, now and then any mode (Sutton and Barto 2018, section 2.2)."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from trimtab.policies.contract import PolicyContext
from trimtab.policies.lots import LotsPolicy


class EpsilonGreedyParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often to look around.

    Attributes:
        epsilon: Probability of a draw among all modes alike.
        half_life_s: Step time in a band after which what was seen there counts half.
        dwell_steps: Steps between two draws.
    """

    epsilon: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    half_life_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 5.0
    dwell_steps: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 32


class EpsilonGreedyPolicy(LotsPolicy):
    """The mode that earned most with probability `1 - epsilon`, else any."""

    name: ClassVar[str] = "epsilon-greedy"
    summary: ClassVar[str] = "the mode that earned most, and any mode now and then"
    Parameters = EpsilonGreedyParameters

    def __init__(self, context: PolicyContext, parameters: EpsilonGreedyParameters | None = None) -> None:
        self._parameters = parameters or EpsilonGreedyParameters()
        super().__init__(context, self._parameters.half_life_s, self._parameters.dwell_steps)

    def chances(self, band: int) -> list[float]:
        """`epsilon` shared by all modes, the rest to the best of the band or of the nearest band that knows one."""
        arms = self._arms.bands[self._arms.nearest_known(band)]
        best = max(range(len(arms)), key=lambda m: (arms[m].goodput_tps, m == self._first))
        share = self._parameters.epsilon / len(arms)
        return [share + (1 - self._parameters.epsilon if m == best else 0.0) for m in range(len(arms))]
