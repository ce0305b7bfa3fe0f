"""A linear Gaussian state that is observed piece by piece (Kalman filter; Särkkä 2013, section 4.3).

The first entries are there from the start. Others come and go: an entry that is dropped is summed out, so what it
taught about the rest stays known.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Standard deviations beyond which nothing that was known explains what is seen.
UNHEARD_OF_SD = 4.0


class KalmanFilter:
    """Mean and covariance of a state that grows.

    Args:
        covariance: Of the entries that stay, their mean being zero; shape `(n, n)`.
        most: Most entries, those included.
    """

    def __init__(self, covariance: Floats, most: int) -> None:
        self.size = len(covariance)
        self._mean = np.zeros(most)
        self._covariance = np.zeros((most, most))
        self._covariance[: self.size, : self.size] = covariance

    @property
    def mean(self) -> Floats:
        """Expected state; shape `(size,)`. A view."""
        return self._mean[: self.size]

    @property
    def covariance(self) -> Floats:
        """Of the state; shape `(size, size)`. A view."""
        return self._covariance[: self.size, : self.size]

    def add(self, variance: float, like: int | None = None) -> int:
        """A new entry at the end, of this variance around zero or around the entry `like`. Returns its number."""
        at, n = self.size, self.size + 1
        if like is not None:
            self._mean[at] = self._mean[like]
            self._covariance[at, :at] = self._covariance[:at, at] = self._covariance[like, :at]
            variance += self._covariance[like, like]
        else:
            self._mean[at] = 0.0
            self._covariance[at, :n] = self._covariance[:n, at] = 0.0
        self._covariance[at, at] = variance
        self.size = n
        return at

    def drop(self, at: int) -> None:
        """Forget an entry; the last one takes its number."""
        last = self.size - 1
        self._mean[at] = self._mean[last]
        corner = self._covariance[last, last]
        self._covariance[at, :last] = self._covariance[:last, at] = self._covariance[last, :last]
        self._covariance[at, at] = corner
        self.size = last

    def fade(self, at: int, kept: float, variance: float) -> None:
        """Time passes for an entry: a share `kept` of it is left, and this variance is new."""
        self._mean[at] *= kept
        self._covariance[at, : self.size] *= kept
        self._covariance[: self.size, at] *= kept
        self._covariance[at, at] += variance

    def widen(self, start: int, variance: float, most: float) -> None:
        """Time passes for all entries from `start` on: each gains variance, but none beyond `most` by it."""
        diagonal = np.einsum("ii->i", self.covariance)[start:]
        diagonal += np.clip(most - diagonal, 0.0, variance)

    def observe(
        self, weights: Floats, at: int, value: float, variance: float, jump: float = math.inf, believed: bool = False
    ) -> bool:
        """Take in `weights` times the first entries plus entry `at`, seen with this variance.

        What is further off than `jump` and than anything expected moves next to nothing; if it is `believed`, then
        entry `at` has changed and none other.

        Args:
            weights: Shape `(n,)`, n being the number of weights.
            at: Number of the entry that is added to them.
            value: What was seen.
            variance: Of its noise.
            jump: Smallest surprise that counts as one.
            believed: Whether a surprise is believed.

        Returns:
            Whether it was a surprise.
        """
        n = len(weights)
        mean, covariance = self.mean, self.covariance
        reach = covariance[:, :n] @ weights + covariance[:, at]
        spread = weights @ reach[:n] + reach[at] + variance
        surprise = value - weights @ mean[:n] - mean[at]
        surprising = abs(surprise) > max(jump, UNHEARD_OF_SD * math.sqrt(spread))
        if surprising:
            spread += surprise**2
            if believed:
                covariance[at, at] += surprise**2
                reach[at] += surprise**2
        mean += reach * (surprise / spread)
        reach /= math.sqrt(spread)
        covariance -= reach[:, None] * reach
        return bool(surprising)

    def round(self) -> None:
        """Keep the covariance to single precision, in which a snapshot holds it, so that nothing is lost there."""
        self.covariance[:] = self.covariance.astype(np.float32)

    def state(self) -> dict[str, Any]:
        """Plain values for a snapshot; of the covariance the lower triangle in single precision."""
        lower = self.covariance[np.tril_indices(self.size)].astype("<f4")
        return {"mean": self.mean.tolist(), "covariance": base64.b64encode(lower.tobytes()).decode()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`; `ValueError` if it is none or does not fit."""
        mean = np.array(state["mean"], dtype=float)
        lower = np.frombuffer(base64.b64decode(state["covariance"], validate=True), "<f4")
        n = len(mean)
        if n > len(self._mean) or len(lower) != n * (n + 1) // 2 or not np.isfinite(lower).all():
            raise ValueError(f"a covariance of {len(lower)} values does not belong to {n} entries")
        self.size = n
        self.mean[:] = mean
        self.covariance[np.tril_indices(n)] = lower
        self.covariance[:] = np.tril(self.covariance) + np.tril(self.covariance, -1).T
