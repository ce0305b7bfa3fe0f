"""A cost profile for whole columns of rows at once: the same times as `CostProfile.step_ms`, looked up with numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab.domain import Mode
from trimtab.policies.profile import CostProfile
from trimtab.replay.arrays import Floats, Ints


class ProfileTable:
    """Step times of some modes by batch size and context.

    Args:
        profile: What steps cost.
        modes: Modes to look up; shape `(n_modes,)`.

    Attributes:
        sizes: Listed batch sizes, ascending; shape `(n_sizes,)`.
    """

    def __init__(self, profile: CostProfile, modes: Sequence[Mode]) -> None:
        by_size: dict[int, list[float]] = {}
        for point in profile.points:
            unbounded = np.inf if point.context_tokens is None else float(point.context_tokens)
            by_size.setdefault(point.batch_size, []).append(unbounded)
        self.sizes: Ints = np.array(list(by_size), dtype=np.int64)
        most = max(map(len, by_size.values()))
        self._thresholds = np.array([[*t, *[np.inf] * (most - len(t))] for t in by_size.values()])
        self._last = np.array([len(t) - 1 for t in by_size.values()])
        self._ms = np.zeros((len(by_size), most, len(modes)))
        for i, (size, thresholds) in enumerate(by_size.items()):
            for j, threshold in enumerate(thresholds):
                context = None if threshold == np.inf else threshold
                # A profile's own surcharge for context comes on top, row by row.
                bare = CostProfile(profile.points)
                beyond = max((t for t in thresholds if t < np.inf), default=0) + 1 if context is None else context
                self._ms[i, j] = [bare.step_ms(mode, size, beyond) for mode in modes]
        self._context = profile.context

    def cells(self, batch_size: Ints) -> Ints:
        """Number of the listed size that speaks for each batch; shape of `batch_size`."""
        found: Ints = np.minimum(np.searchsorted(self.sizes, batch_size), len(self.sizes) - 1).astype(np.int64)
        return found

    def step_ms(self, cells: Ints, requests: Ints, context: Floats, longest: Floats) -> Floats:
        """Expected time of a step in every mode; shape `(n_rows, n_modes)`.

        Args:
            cells: See `cells`.
            requests: Requests in the batch.
            context: Tokens of context of a request on average, NaN if unknown.
            longest: Those of the longest request, NaN if unknown: then like the others.
        """
        if self._thresholds.shape[1] == 1:
            ms = self._ms[cells, 0]
        else:
            known = np.nan_to_num(context)
            point = (known[:, None] > self._thresholds[cells]).sum(axis=1)
            ms = self._ms[cells, np.minimum(point, self._last[cells])]
        if self._context is None:
            return np.asarray(ms)
        cost = self._context
        far = np.where(np.isnan(longest), context, longest)
        more = cost.ms_per_token * requests * (context - cost.reference_tokens)
        more = np.nan_to_num(more + cost.ms_per_longest_token * (far - cost.reference_tokens))
        found: Floats = np.where((context > 0)[:, None], np.maximum(ms / 10, ms + more[:, None]), ms)
        return found
