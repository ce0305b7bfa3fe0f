"""Which modes does the operator's latency limit, the KV cache or the guard leave to choose from?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.domain import Mode
from trimtab.policies.cascade import Floats
from trimtab.policies.cost import NOISE
from trimtab.policies.row_reader import ReportSums

P95_SD = 1.645
NOISE_WEIGHT = 0.05
# Closer than this to a limit, nothing is explored.
NEAR_LIMIT = 0.9
HIGH_KV_USE = 0.9

Mask = npt.NDArray[np.bool_]


class Limits:
    """Follows how much step times scatter and how full the KV cache is. Owned by one policy.

    Args:
        modes: Modes to choose from.
        step_ms_p95: Limit of the 95th percentile of the step time; None for none.
        token_ms: Limit of the time per token of a request; None for none.
        kv_capacity_tokens: Tokens that the KV cache holds; 0 if unknown.
    """

    def __init__(
        self, modes: Sequence[Mode], step_ms_p95: float | None, token_ms: float | None, kv_capacity_tokens: int = 0
    ) -> None:
        self._steps = np.array([mode.steps for mode in modes])
        self._step_ms_p95 = step_ms_p95
        self._token_ms = token_ms
        self._kv_capacity = kv_capacity_tokens
        self._noise = NOISE
        self._short_of_kv = False

    def learn(self, sums: ReportSums) -> None:
        """Take in one report."""
        for tally in sums.tallies.values():
            if tally.rows >= 2:
                mean = tally.ratio / tally.rows
                var = max(0.0, tally.ratio_squared / tally.rows / mean**2 - 1)
                self._noise += NOISE_WEIGHT * (math.sqrt(var) - self._noise)
        full = self._kv_capacity > 0 and sums.kv_used_tokens > HIGH_KV_USE * self._kv_capacity
        self._short_of_kv = full or sums.retracted

    def allowed(self, log_ms: Floats, accepted: Floats, only_plain: bool) -> Mask:
        """What may run; shape `(n_bands, n_modes)`, at least one mode in every band.

        Where a latency limit leaves nothing, the mode that breaks it least.
        """
        allowed = np.ones(log_ms.shape, dtype=bool)
        if only_plain and (self._steps == 0).any():
            allowed &= self._steps == 0
        if self._short_of_kv:
            allowed &= self._steps <= max(self._steps.min(), self._fewest_drafts())
        for excess in self._excesses(log_ms, accepted):
            within = allowed & (excess <= 0)
            least = np.where(allowed, excess, np.inf).argmin(axis=1)
            bands = np.flatnonzero(~within.any(axis=1))
            within[bands, least[bands]] = True
            allowed = within
        return allowed

    def in_danger(self, log_ms: Floats, accepted: Floats, band: int, mode: int) -> bool:
        """Whether this mode is so near a limit that nothing should be tried."""
        return any(excess[band, mode] > math.log(NEAR_LIMIT) for excess in self._excesses(log_ms, accepted))

    def _fewest_drafts(self) -> int:
        return int(min((k for k in self._steps if k), default=0))

    def _excesses(self, log_ms: Floats, accepted: Floats) -> list[Floats]:
        """Logarithm of expected over allowed time, for each limit that is set."""
        found: list[Floats] = []
        if self._step_ms_p95 is not None:
            found.append(log_ms + P95_SD * self._noise - math.log(self._step_ms_p95))
        if self._token_ms is not None:
            found.append(log_ms - np.log1p(accepted)[None] - math.log(self._token_ms))
        return found

    def state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        return {"noise": self._noise, "short_of_kv": self._short_of_kv}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._noise, self._short_of_kv = float(state["noise"]), bool(state["short_of_kv"])
