"""What will a step take? A profile times a residual, or learnt from nothing.

`log T = log profile + common drift + features (cost_features.py) + residual of (band, context, mode)`. The residual is
shrunk: with n rows of noise `NOISE` around a cell of spread `cell` it counts `cell^2 / (cell^2 + NOISE^2 / n)`. The
common drift takes up what slows all modes down for a while (a busy host, a hot GPU), so that a mode that ran before
does not look better than one that runs now. It goes back to zero by itself: what lasts belongs into the cells, and what
a new cell learnt under a wrong drift would stay wrong. Without a profile the features alone predict a mode before it
ever ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.policies.cost_features import (
    WITH_PROFILE,
    WITHOUT_PROFILE,
    Features,
    Floats,
)

# Spread of single step times around their mean, in log time, and the most rows a cell remembers.
NOISE = 0.06
CELL_MEMORY_ROWS = 200.0
# Spread of the common drift, and the share of it that is left one report later.
DRIFT_SPREAD = 0.03
DRIFT_KEPT = 0.8
# Share by which the features may be wrong about the way from a cell's place to that of its next rows.
SHIFT_DOUBT = 0.5
# Growth of a cell's variance in a step without news.
STALE_VAR_A_STEP = 1e-7
STALE_VAR_MOST = 0.03**2
MOST_CELLS = 256

CellKey = tuple[int, int, int]
Indices = npt.NDArray[np.intp]


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
        variance: Of the log step time; shape `(B, M)`.
        features: Of every mode; shape `(B, M, F)`. The model's own, good until its next prediction.
        share: Share that the features have in it, what was seen of the mode itself being the rest; shape `(B, M)`.
        covariance: Of the features' weights; shape `(F, F)`.
        own_var: Variance that a mode shares with no other; shape `(B, M)`.
    """

    log_ratio: Floats
    variance: Floats
    features: Floats
    share: Floats
    covariance: Floats
    own_var: Floats

    def difference_variance(self, band: int, reference: int) -> Floats:
        """Of the log step time of every mode over that of a reference, in one band; shape `(M,)`."""
        scaled = self.features[band] * self.share[band][:, None]
        apart = scaled - scaled[reference]
        own = self.own_var[band] + self.own_var[band, reference]
        own[reference] = 0.0
        var: Floats = np.einsum("ij,ij->i", apart @ self.covariance, apart) + own
        return var


# Columns of the table of cells: what was seen, and what of it the features were last fitted to. The four means are
# log ratio, octave, context and imbalance, in this order; `BELIEVED` follows from them.
ROWS, MEANS, SEEN_AT, FITTED_ROWS, FITTED_MEANS, BELIEVED, COLUMNS = 0, 1, 5, 6, 7, 11, 12
# By how much a cell must have moved before the features are fitted again: share of rows; log time, octaves, knots.
FIT_AGAIN_ROWS = 1.25
FIT_AGAIN_SHIFTS = (0.01, 0.05, 0.1, 0.1)


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
        self._by_kind: dict[int, tuple[Indices, Indices, Floats]] = {}
        self._table = np.zeros((MOST_CELLS, COLUMNS))
        self._rows = np.zeros((MOST_CELLS, self._features.size))
        self._place_row = np.zeros(self._features.size)
        self._drift = 0.0
        self._drift_var = 0.0
        self._step = 0
        self._places: list[Place | None] = [None] * bands
        self._place_rows = np.zeros((bands, len(steps), self._features.size))
        self._believed = np.zeros((bands, len(steps)))
        self._shared_mean = np.zeros((bands, len(steps)))
        self._shared_var = np.zeros((bands, len(steps)))
        self._fit: tuple[Floats, Floats] | None = None

    def observe(self, seen: Mapping[CellKey, Observation], steps: int) -> None:
        """Take in one report's rows by (band, mode, context class); `steps` decode steps have passed."""
        self._step += steps
        self._drift *= DRIFT_KEPT
        self._drift_var = DRIFT_KEPT**2 * self._drift_var + (1 - DRIFT_KEPT**2) * DRIFT_SPREAD**2
        weights = (self._fit or self._solve())[0]
        for key, observation in seen.items():
            at = self._number.get(key)
            if at is None:
                at = self._new_cell(key)
            else:
                self._follow_drift(at, key[1], observation, weights)
            self._add(at, key[1], observation)

    def knows(self, key: CellKey) -> bool:
        """Whether the mode was ever timed in this band and context class."""
        return key in self._number

    def predict(self, places: Sequence[Place], kind: int) -> Outlook:
        """Expected times of all modes at one place in every band, for contexts of class `kind`."""
        fit, self._fit = self._fit, self._fit or self._solve()
        weights, covariance = self._fit
        if fit is None:
            self._by_kind.clear()
        for band, place in enumerate(places):
            moved = place != self._places[band]
            if moved:
                self._move(band, place)
            if moved or fit is None:
                self._look(band, weights, covariance)
        where, at, expected = self._cells_of(kind, weights)
        table = self._table[at]
        noise_var = NOISE**2 / table[:, ROWS]
        noise_var += np.minimum(STALE_VAR_MOST, STALE_VAR_A_STEP * (self._step - table[:, SEEN_AT]))
        cell_var = self._beliefs.cell**2
        trust = cell_var / (cell_var + noise_var)
        # What a cell has seen itself replaces what the features say, in the mean and in the uncertainty.
        log_ratio = (self._shared_mean + self._drift).ravel()
        own_var = np.full(log_ratio.shape, cell_var)
        share = np.ones(log_ratio.shape)
        log_ratio[where] += trust * (table[:, MEANS] - expected)
        own_var[where] = trust * noise_var
        share[where] -= trust
        shape = self._shared_mean.shape
        variance = self._shared_var.ravel() * share**2 + own_var
        return Outlook(
            log_ratio.reshape(shape),
            variance.reshape(shape),
            self._place_rows,
            share.reshape(shape),
            covariance,
            own_var.reshape(shape),
        )

    def _cells_of(self, kind: int, weights: Floats) -> tuple[Indices, Indices, Floats]:
        """Cells of a context class: places in a flat table of bands and modes, numbers, and what is expected there."""
        found = self._by_kind.get(kind)
        if found is None:
            modes = self._features.n_modes
            known = [(key[0] * modes + key[1], at) for key, at in self._number.items() if key[2] == kind]
            where, numbers = np.array(known, dtype=np.intp).reshape(-1, 2).T
            expected = self._rows[numbers] @ weights + self._table[numbers, BELIEVED]
            found = self._by_kind[kind] = (where, numbers, expected)
        return found

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
        rows, *means = self._table[at, :SEEN_AT].tolist()
        fitted_rows, *fitted = self._table[at, FITTED_ROWS:BELIEVED].tolist()
        rows = min(rows, CELL_MEMORY_ROWS) + seen.rows
        share = seen.rows / rows
        news = (seen.log_ratio - self._drift, seen.octave, seen.context, seen.imbalance)
        means = [mean + share * (new - mean) for mean, new in zip(means, news, strict=True)]
        self._table[at, : SEEN_AT + 1] = (rows, *means, self._step)
        shifts = zip(means, fitted, FIT_AGAIN_SHIFTS, strict=True)
        if rows > FIT_AGAIN_ROWS * fitted_rows or any(abs(mean - old) > most for mean, old, most in shifts):
            self._table[at, FITTED_ROWS:BELIEVED] = (rows, *means)
            self._fill(at, mode)

    def _fill(self, at: int, mode: int) -> None:
        """Put a cell's features where it was last fitted."""
        octave, context, imbalance = self._table[at, FITTED_MEANS + 1 : BELIEVED].tolist()
        self._features.fill(self._rows[at], octave, mode, context, imbalance)
        self._table[at, BELIEVED] = self._features.expected(octave, mode) if self._from_nothing else 0.0
        self._fit = None

    def _move(self, band: int, place: Place) -> None:
        """The band is judged at another place from now on."""
        self._places[band] = place
        self._features.fill_all(self._place_rows[band], place.octave, place.context, place.imbalance)
        if self._from_nothing:
            self._believed[band] = self._features.expected_all(place.octave)

    def _look(self, band: int, weights: Floats, covariance: Floats) -> None:
        """Mean and variance of what the features say of a band."""
        rows = self._place_rows[band]
        self._shared_mean[band] = rows @ weights + self._believed[band]
        self._shared_var[band] = np.einsum("ij,ij->i", rows @ covariance, rows)

    def _follow_drift(self, at: int, mode: int, seen: Observation, weights: Floats) -> None:
        """Split a surprise between the common drift and the cell by how sure each was.

        What the features say of another batch size or a longer context is no surprise.
        """
        cell = self._table[at]
        rows, ratio, seen_at = float(cell[ROWS]), float(cell[MEANS]), float(cell[SEEN_AT])
        self._features.fill(self._place_row, seen.octave, mode, seen.context, seen.imbalance)
        shift = float((self._place_row - self._rows[at]) @ weights)
        cell_var = NOISE**2 / rows + min(STALE_VAR_MOST, STALE_VAR_A_STEP * (self._step - seen_at))
        gain = self._drift_var / (self._drift_var + cell_var + (SHIFT_DOUBT * shift) ** 2 + NOISE**2 / seen.rows)
        self._drift += gain * (seen.log_ratio - self._drift - ratio - shift)
        self._drift_var *= 1 - gain

    def _solve(self) -> tuple[Floats, Floats]:
        """Weights and their covariance: Bayesian linear regression on the cells (Bishop 2006, section 3.3)."""
        n = len(self._number)
        table, rows = self._table[:n], self._rows[:n]
        spread = self._beliefs.cell**2 + NOISE**2 / table[:, FITTED_ROWS]
        weighted = rows / spread[:, None]
        covariance = np.asarray(np.linalg.inv(self._prior + rows.T @ weighted), dtype=np.float64)
        weights: Floats = covariance @ ((table[:, FITTED_MEANS] - table[:, BELIEVED]) @ weighted)
        return weights, covariance

    def state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        cells = [[*key, *self._table[at, :BELIEVED].tolist()] for key, at in self._number.items()]
        return {"cells": cells, "drift": self._drift, "drift_var": self._drift_var, "step": self._step}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of the same bands and modes; `ValueError` otherwise."""
        cells = state["cells"]
        if len(cells) > MOST_CELLS:
            raise ValueError(f"there are {len(cells)} cells, at most {MOST_CELLS}")
        self._number = {}
        self._fit = None
        for band, mode, kind, *values in cells:
            if not (0 <= band < len(self._places) and 0 <= mode < self._features.n_modes):
                raise ValueError(f"there is no band {band} with mode {mode}")
            at = self._new_cell((int(band), int(mode), int(kind)))
            self._table[at, :BELIEVED] = values
            self._fill(at, int(mode))
        self._drift, self._drift_var = float(state["drift"]), float(state["drift_var"])
        self._step = int(state["step"])
