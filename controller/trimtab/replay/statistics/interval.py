"""A figure with its interval, and how long the stretches of a series are that do not hang together."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from trimtab.replay.arrays import Floats

# Of the flat-top kernel: lags in a row that must be insignificant, and what that means in standard errors.
QUIET_LAGS = 5
SIGNIFICANT = 2.0


class Interval(msgspec.Struct, frozen=True):
    """A figure with its 95% interval."""

    value: float
    low: float
    high: float


def block_length(series: Sequence[float] | Floats) -> int:
    """Length of the blocks of a circular bootstrap of the mean (Politis and White 2004, corrected 2009)."""
    x = np.asarray(series, dtype=float) - np.mean(series)
    n = len(x)
    if n < 4 or not x.any():
        return 1
    most = min(n - 1, int(np.ceil(np.sqrt(n))) + QUIET_LAGS)
    covariance = np.array([x[: n - lag] @ x[lag:] / n for lag in range(most + 1)])
    limit = SIGNIFICANT * np.sqrt(np.log10(n) / n)
    loud = np.abs(covariance[1:] / covariance[0]) > limit
    quiet_from = next((m for m in range(most) if not loud[m : m + QUIET_LAGS].any()), most)
    window = min(most, 2 * max(1, quiet_from))
    lags = np.arange(1, window + 1)
    # The flat-top kernel: 1 up to one half, then falling to 0.
    kernel = np.clip(2 * (1 - lags / window), 0.0, 1.0)
    g = 2 * np.sum(kernel * lags * covariance[1 : window + 1])
    spectrum = covariance[0] + 2 * np.sum(kernel * covariance[1 : window + 1])
    if spectrum <= 0:
        return 1
    length = (2 * g**2 / (4 / 3 * spectrum**2)) ** (1 / 3) * n ** (1 / 3)
    return int(np.clip(np.ceil(length), 1, max(1, np.ceil(min(3 * np.sqrt(n), n / 3)))))
