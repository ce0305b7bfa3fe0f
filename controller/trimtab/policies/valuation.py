"""What is each mode worth? Acceptance and cost put together, with the uncertainty of every comparison."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trimtab.policies.cascade import Floats
from trimtab.policies.cost import Outlook


@dataclass(frozen=True, slots=True)
class Comparison:
    """Relative gain in tokens a wall second over a reference mode, and its standard deviation; shape `(M,)`."""

    gain: Floats
    sd: Floats


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
    _compared: dict[tuple[int, int], Comparison] = field(default_factory=dict, repr=False, compare=False)

    def against(self, band: int, reference: int) -> Comparison:
        """Every mode of a band compared with one of them."""
        known = self._compared.get((band, reference))
        if known is not None:
            return known
        faster = 1 - np.exp(np.minimum(50.0, self.log_tps[band, reference] - self.log_tps[band]))
        saved = np.minimum(faster * self.decode_share, 0.99)
        apart = self.loadings - self.loadings[reference]
        var = np.einsum("ij,ij->i", apart, apart) + self.outlook.difference_variance(band, reference)
        found = self._compared[band, reference] = Comparison(saved / (1 - saved), np.sqrt(var))
        return found
