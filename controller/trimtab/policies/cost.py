"""What will a step take? A profile times a residual, or learnt from nothing.

`log T = log profile + common drift + features (cost_features.py) + residual of (band, context, mode)`. The residual is
shrunk: with n rows of noise `NOISE` around a cell of spread `cell` it counts `cell^2 / (cell^2 + NOISE^2 / n)`. The
common drift takes up what slows all modes down together, so that a mode that ran before the GPU got slower does
not look better than one that runs now. Without a profile the features alone predict a mode before it ever ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.policies.cost_features import (
    WITH_PROFILE,
    WITHOUT_PROFILE,
    Features,
    Floats,
)

# Spread of single step times around their mean, in log time, and the most rows a cell remembers.
NOISE = 0.06
CELL_MEMORY_ROWS = 200.0
# Growth of the common drift's variance in a report, and of a cell's in 1,000 steps without news.
DRIFT_VAR = 0.003**2
STALE_VAR_A_STEP = 1e-7
STALE_VAR_MOST = 0.03**2
MOST_CELLS = 256

CellKey = tuple[int, int, int]


@dataclass(slots=True)
class Observation:
    """Rows of one mode in one band and context class, summed. `log_ratio` is log of mean time over profile."""

    rows: float
    log_ratio: float
    octave: float
    context: float
    imbalance: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where a band is judged: binary logarithm of its batch size, context knot, imbalance of contexts."""

    octave: float
    context: float
    imbalance: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """Expected log step time over profile of every mode in every band. Shapes: B bands, M modes, F features.

    Attributes:
        log_ratio: Mean; shape `(B, M)`.
        features: Of every mode, scaled by the share that the features still have in it; shape `(B, M, F)`.
        covariance: Of the features' weights; shape `(F, F)`.
        own_var: Variance that a mode shares with no other; shape `(B, M)`.
    """

    log_ratio: Floats
    features: Floats
    covariance: Floats
    own_var: Floats

    def variance(self) -> Floats:
        """Of the log step time; shape `(B, M)`."""
        flat = self.features.reshape(-1, len(self.covariance))
        shared: Floats = ((flat @ self.covariance) * flat).sum(axis=1).reshape(self.own_var.shape)
        return shared + self.own_var

    def difference_variance(self, band: int, reference: int) -> Floats:
        """Of the log step time of every mode over that of a reference, in one band; shape `(M,)`."""
        apart = self.features[band] - self.features[band, reference]
        own = self.own_var[band] + self.own_var[band, reference]
        own[reference] = 0.0
        var: Floats = ((apart @ self.covariance) * apart).sum(axis=1) + own
        return var


# Columns of the table of cells.
ROWS, RATIO, OCTAVE, CONTEXT, IMBALANCE, SEEN_AT, BELIEVED = range(7)


class CostModel:
    """Learns step times and predicts them for modes and batch sizes that were never seen.

    A cell is what was seen of a mode in a band and context class, without the common drift.

    Args:
        steps: Drafts of each mode.
        bands: Number of bands.
        largest_batch: Largest batch size to tell apart.
        with_profile: Whether the observations are relative to a profile.
    """

    def __init__(self, steps: Sequence[int], bands: int, largest_batch: int, with_profile: bool) -> None:
        self._features = Features(tuple(steps), largest_batch)
        self._beliefs = WITH_PROFILE if with_profile else WITHOUT_PROFILE
        self._from_nothing = not with_profile
        self._prior = self._features.prior_precision(self._beliefs)
        self._number: dict[CellKey, int] = {}
        self._table = np.zeros((MOST_CELLS, 7))
        self._rows = np.zeros((MOST_CELLS, self._features.size))
        self._drift = 0.0
        self._drift_var = 0.0
        self._step = 0
        self._places: list[Place | None] = [None] * bands
        self._place_rows = np.zeros((bands, len(steps), self._features.size))
        self._place_believed = np.zeros((bands, len(steps)))

    def observe(self, seen: Mapping[CellKey, Observation], steps: int) -> None:
        """Take in one report's rows by (band, mode, context class); `steps` decode steps have passed."""
        self._step += steps
        self._drift_var += DRIFT_VAR
        for key, observation in seen.items():
            at = self._number.get(key)
            if at is None:
                at = self._new_cell(key)
            else:
                self._follow_drift(self._table[at], observation)
            self._add(at, key[1], observation)

    def knows(self, key: CellKey) -> bool:
        """Whether the mode was ever timed in this band and context class."""
        return key in self._number

    def predict(self, places: Sequence[Place], kind: int) -> Outlook:
        """Expected times of all modes at one place in every band, for contexts of class `kind`."""
        for band, place in enumerate(places):
            if place != self._places[band]:
                self._move(band, place)
        weights, covariance, residual, own_var, left = self._solve()
        log_ratio = self._place_rows @ weights + self._place_believed + self._drift
        own = np.full(log_ratio.shape, self._beliefs.cell**2)
        features = self._place_rows
        known = [(key[0], key[1], at) for key, at in self._number.items() if key[2] == kind]
        if known:
            bands, modes, at = (list(column) for column in zip(*known, strict=True))
            log_ratio[bands, modes] += residual[at]
            own[bands, modes] = own_var[at]
            features = features.copy()
            features[bands, modes] *= left[at, None]
        return Outlook(log_ratio, features, covariance, own)

    def _new_cell(self, key: CellKey) -> int:
        """Number of an empty cell; the one that was seen longest ago makes room."""
        if len(self._number) == MOST_CELLS:
            oldest = min(self._number, key=lambda k: float(self._table[self._number[k], SEEN_AT]))
            at = self._number.pop(oldest)
        else:
            at = len(self._number)
        self._table[at] = 0.0
        self._number[key] = at
        return at

    def _add(self, at: int, mode: int, seen: Observation) -> None:
        rows, ratio, octave, context, imbalance, *_ = self._table[at].tolist()
        rows = min(rows, CELL_MEMORY_ROWS) + seen.rows
        share = seen.rows / rows
        octave += share * (seen.octave - octave)
        context += share * (seen.context - context)
        imbalance += share * (seen.imbalance - imbalance)
        ratio += share * (seen.log_ratio - self._drift - ratio)
        believed = self._features.expected(octave, mode) if self._from_nothing else 0.0
        self._table[at] = (rows, ratio, octave, context, imbalance, self._step, believed)
        self._features.fill(self._rows[at], octave, mode, context, imbalance)

    def _move(self, band: int, place: Place) -> None:
        self._places[band] = place
        for mode in range(self._features.n_modes):
            self._features.fill(self._place_rows[band, mode], place.octave, mode, place.context, place.imbalance)
            believed = self._features.expected(place.octave, mode) if self._from_nothing else 0.0
            self._place_believed[band, mode] = believed

    def _follow_drift(self, cell: Floats, seen: Observation) -> None:
        """Split a surprise between the common drift and the cell by how sure each was."""
        rows, ratio, seen_at = float(cell[ROWS]), float(cell[RATIO]), float(cell[SEEN_AT])
        cell_var = NOISE**2 / rows + min(STALE_VAR_MOST, STALE_VAR_A_STEP * (self._step - seen_at))
        gain = self._drift_var / (self._drift_var + cell_var + NOISE**2 / seen.rows)
        self._drift += gain * (seen.log_ratio - self._drift - ratio)
        self._drift_var *= 1 - gain

    def _solve(self) -> tuple[Floats, ...]:
        """Bayesian linear regression on the cells (Bishop 2006, section 3.3).

        Returns:
            Weights and their covariance; of each cell its residual, its own variance, and the share that the
            features keep in it: what a cell has seen itself replaces what the features say.
        """
        n = len(self._number)
        table, rows = self._table[:n], self._rows[:n]
        stale = np.minimum(STALE_VAR_MOST, STALE_VAR_A_STEP * (self._step - table[:, SEEN_AT]))
        noise_var = NOISE**2 / table[:, ROWS] + stale
        cell_var = self._beliefs.cell**2
        spread = cell_var + noise_var
        weighted = rows / spread[:, None]
        covariance = np.linalg.inv(self._prior + rows.T @ weighted)
        target = table[:, RATIO] - table[:, BELIEVED]
        weights = covariance @ (target @ weighted)
        trust = cell_var / spread
        return weights, covariance, trust * (target - rows @ weights), trust * noise_var, 1 - trust

    def state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        cells = [[*key, *self._table[at].tolist()] for key, at in self._number.items()]
        return {"cells": cells, "drift": self._drift, "drift_var": self._drift_var, "step": self._step}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of the same bands and modes; `ValueError` otherwise."""
        cells = state["cells"]
        if len(cells) > MOST_CELLS:
            raise ValueError(f"there are {len(cells)} cells, at most {MOST_CELLS}")
        self._number = {}
        for band, mode, kind, *values in cells:
            if not (0 <= band < len(self._places) and 0 <= mode < self._features.n_modes):
                raise ValueError(f"there is no band {band} with mode {mode}")
            at = self._new_cell((int(band), int(mode), int(kind)))
            self._table[at] = values
            _, _, octave, context, imbalance, *_ = map(float, values)
            self._features.fill(self._rows[at], octave, int(mode), context, imbalance)
        self._drift, self._drift_var = float(state["drift"]), float(state["drift_var"])
        self._step = int(state["step"])
