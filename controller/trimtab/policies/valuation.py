"""What is each mode worth? Acceptance and cost put together, with the uncertainty of every comparison."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.policies.cascade import Floats
from trimtab.policies.cost import Outlook


@dataclass(frozen=True, slots=True)
class Valuation:
    """Goodput of every mode in every band. Shapes: B bands, M modes, A independent sources.

    Attributes:
        accepted: Expected accepted drafts a request; shape `(M,)`.
        log_ms: Expected logarithm of the step time in ms; shape `(B, M)`.
        log_any_tps: Logarithm of tokens a second; shape `(B, M)`.
        log_tps: The same, minus infinity where a mode is not allowed.
        log_ceiling: `log_tps` with every draft accepted and the step as fast as it may be; shape `(B, M)`.
        spread: Standard deviation of `log_any_tps`; shape `(B, M)`.
        loadings: Of `log(1 + accepted)`, see `Curve.loadings`; shape `(M, A)`.
        outlook: Step times and their uncertainty.
        decode_share: Share of wall time that decode steps take: what a faster step can win at most.
    """

    accepted: Floats
    log_ms: Floats
    log_any_tps: Floats
    log_tps: Floats
    log_ceiling: Floats
    spread: Floats
    loadings: Floats
    outlook: Outlook
    decode_share: float = 1.0

    def gains(self, band: int, reference: int) -> Floats:
        """Relative gain in tokens a wall second of each mode over a reference; shape `(M,)`."""
        faster: Floats = 1 - np.exp(np.minimum(50.0, self.log_tps[band, reference] - self.log_tps[band]))
        saved = np.minimum(faster * self.decode_share, 0.99)
        gains: Floats = saved / (1 - saved)
        return gains

    def gain_sd(self, band: int, reference: int) -> Floats:
        """Standard deviation of each mode's gain over a reference; shape `(M,)`."""
        apart = self.loadings - self.loadings[reference]
        sd: Floats = np.sqrt((apart**2).sum(axis=1) + self.outlook.difference_variance(band, reference))
        return sd
