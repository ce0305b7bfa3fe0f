"""What will a step take? A profile times a residual, or learnt from nothing.

`log T = log profile + features (cost_features.py) + residual of (band, context, mode) + drift + noise`, all of it
Gaussian and learnt together (kalman.py). The drift takes up what slows all modes down for a while (a busy host, a hot
GPU, contexts that nobody reported), so that a mode that ran before does not look better than one that runs now. As it
is learnt together with the rest, a mode that was timed under a wrong drift is put right with it, once a mode that was
known better shows how wrong it was. Without a profile the features alone predict a mode before it ever ran.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from trimtab.policies.kalman import KalmanFilter

# Spread of single step times around their mean, and of what all steps of one report have in common; in log time.
NOISE = 0.06
REPORT_NOISE = 0.02
# How far a single row may be off.
STRAY = 0.2
# Spread of the drift, and the share of it that is left one report later.
DRIFT_SPREAD = 0.1
DRIFT_KEPT = 0.98
# Growth of the variance of a residual in a step without news.
STALE_VAR_A_STEP = 1e-7
# Twice or half the time is put down to the mode itself, for a busy host does less. It is doubted at first, unless
# a few rows agree to so much.
JUMP = math.log(2)
SURE = 0.05
# Share of a residual's variance that is new an octave of context away.
OCTAVE_SHARE = 0.25
MOST_CELLS = 128

CellKey = tuple[int, int, int]
Indices = npt.NDArray[np.intp]


@dataclass(slots=True)
class Observation:
    """Rows of one mode in one band and context class, summed.

    `log_ratio` is log of mean time over profile, `scatter` the sum of squared relative deviations from that mean.
    """

    rows: float
    log_ratio: float
    octave: float
    context: float
    imbalance: float
    scatter: float = 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a band is judged: binary logarithm of its batch size, context knot, imbalance of contexts."""

    octave: float
    context: float
    imbalance: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """Expected log step time over profile of every mode in every band. Shapes: B bands, M modes.

    Attributes:
        log_ratio: Mean; shape `(B, M)`.
        variance: Of the log step time; shape `(B, M)`.
        covariance_in: Of the log step times of all modes in a band; shape `(M, M)`. Good until the next observation.
    """

    log_ratio: Floats
    variance: Floats
    covariance_in: Callable[[int], Floats]

    def difference_variance(self, band: int, reference: int) -> Floats:
        """Of the log step time of every mode over that of a reference, in one band; shape `(M,)`."""
        covariance = self.covariance_in(band)
        own = np.diagonal(covariance)
        apart: Floats = np.maximum(0.0, own + own[reference] - 2 * covariance[reference])
        return apart


@dataclass(frozen=True, slots=True)
class _Speakers:
    """Which cell speaks for a mode in a band. Shapes: B bands, M modes.

    Attributes:
        cells: Its number in the filter; shape `(B, M)`.
        known: 1 where there is one, else 0; shape `(B, M)`.
        apart: Variance by which it may be wrong; shape `(B, M)`.
    """

    cells: Indices
    known: Floats
    apart: Floats


class CostModel:
    """Learns step times and predicts them for modes and batch sizes that were never seen.

    A cell is what a mode has of its own in a band and context class.

    Args:
        steps: Drafts of each mode.
        bands: Number of bands.
        largest_batch: Largest batch size to tell apart.
        with_profile: Whether the observations are relative to a profile.
        native: Number of the plain mode that leaves the draft model alone; None: there is none.
    """

    def __init__(
        self, steps: Sequence[int], bands: int, largest_batch: int, with_profile: bool, native: int | None = None
    ) -> None:
        self._features = Features(tuple(steps), largest_batch, native)
        self._beliefs = WITH_PROFILE if with_profile else WITHOUT_PROFILE
        self._from_nothing = not with_profile
        self._n_bands = bands
        # The weights of the features, the drift, and what a report's steps have in common; then the cells.
        self._drift = self._features.size
        self._common = self._drift + 1
        self._first_cell = self._drift + 2
        self._filter = KalmanFilter(self._prior(), self._first_cell + MOST_CELLS)
        self._number: dict[CellKey, int] = {}
        self._seen_at: dict[CellKey, int] = {}
        self._doubted: set[CellKey] = set()
        self._by_kind: dict[int, _Speakers] = {}
        shape = bands, self._features.n_modes
        self._places: list[Place | None] = [None] * bands
        self._place_rows = np.ones((*shape, self._common))
        self._believed = np.zeros(shape)
        self._row = np.zeros(self._first_cell)
        self._row[self._drift :] = 1.0
        self._step = 0

    def _prior(self) -> Floats:
        prior = np.zeros((self._first_cell, self._first_cell))
        covariance = np.linalg.inv(self._features.prior_precision(self._beliefs))
        prior[: self._drift, : self._drift] = (covariance + covariance.T) / 2
        return prior

    def observe(self, seen: Mapping[CellKey, Observation], steps: int) -> None:
        """Take in one report's rows by (band, mode, context class); `steps` decode steps have passed."""
        self._step += steps
        self._filter.fade(self._drift, DRIFT_KEPT, (1 - DRIFT_KEPT**2) * DRIFT_SPREAD**2)
        self._filter.fade(self._common, 0.0, REPORT_NOISE**2)
        self._filter.widen(self._first_cell, STALE_VAR_A_STEP * steps, self._beliefs.cell**2)
        for key, observation in seen.items():
            self._take_in(key, observation)
        self._filter.round()

    def _take_in(self, key: CellKey, seen: Observation) -> None:
        is_new = key not in self._number
        at, mode = self._entry(key), key[1]
        self._features.fill(self._row[: self._drift], seen.octave, mode, seen.context, seen.imbalance)
        value = seen.log_ratio - (self._features.expected(seen.octave, mode) if self._from_nothing else 0.0)
        variance = _noise_variance(seen)
        is_sure = variance < SURE**2
        # What is seen for the first time is no change, and says as much about the mode elsewhere.
        jump = math.inf if is_new and is_sure else JUMP
        if self._filter.observe(self._row, at, value, variance, jump, is_sure or key in self._doubted):
            self._doubted.add(key)
        else:
            self._doubted.discard(key)

    def knows(self, key: CellKey) -> bool:
        """Whether the mode was ever timed in this band and context class."""
        return key in self._number

    def predict(self, places: Sequence[Place], kind: int) -> Outlook:
        """Expected times of all modes at one place in every band, for contexts of class `kind`."""
        for band, place in enumerate(places):
            if place != self._places[band]:
                self._move(band, place)
        rows, speaks = self._place_rows, self._cells_for(kind)
        mean, covariance = self._filter.mean, self._filter.covariance
        cells, known, n = speaks.cells, speaks.known, self._common
        log_ratio = self._believed + rows @ mean[:n] + known * mean[cells]
        reach = rows @ covariance[:n, :n]
        reach += (2 * known)[:, :, None] * covariance[cells, :n]
        reach *= rows
        variance = reach.sum(axis=2) + known * covariance[cells, cells] + speaks.apart
        return Outlook(log_ratio, variance, lambda band: self._covariance_in(band, speaks))

    def _covariance_in(self, band: int, speaks: _Speakers) -> Floats:
        rows, covariance, n = self._place_rows[band], self._filter.covariance, self._common
        cells, known = speaks.cells[band], speaks.known[band]
        across = rows @ (covariance[cells, :n] * known[:, None]).T
        found: Floats = rows @ covariance[:n, :n] @ rows.T + across + across.T
        found += covariance[cells[:, None], cells] * (known[:, None] * known)
        np.einsum("ii->i", found)[...] += speaks.apart[band]
        return found

    def _move(self, band: int, place: Place) -> None:
        """The band is judged at another place from now on."""
        self._places[band] = place
        rows = self._place_rows[band, :, : self._drift]
        self._features.fill_all(rows, place.octave, place.context, place.imbalance)
        if self._from_nothing:
            self._believed[band] = self._features.expected_all(place.octave)

    def _cells_for(self, kind: int) -> _Speakers:
        """The cells that speak for every mode in every band: those of the nearest context class."""
        found = self._by_kind.get(kind)
        if found is None:
            shape = self._n_bands, self._features.n_modes
            cells, known = np.zeros(shape, dtype=np.intp), np.zeros(shape)
            apart = np.full(shape, self._beliefs.cell**2)
            for (band, mode, other), at in self._number.items():
                doubt = self._apart(abs(other - kind))
                if doubt < apart[band, mode]:
                    cells[band, mode], known[band, mode], apart[band, mode] = at, 1.0, doubt
            found = self._by_kind[kind] = _Speakers(cells, known, apart)
        return found

    def _apart(self, octaves: int) -> float:
        """Variance between a mode's own share of the time at two contexts so many octaves apart."""
        return float(self._beliefs.cell**2 * min(1.0, OCTAVE_SHARE * octaves))

    def _entry(self, key: CellKey) -> int:
        """Number of a cell in the filter. A new one starts as the nearest context's; the oldest makes room for it."""
        at = self._number.get(key)
        if at is None:
            if len(self._number) == MOST_CELLS:
                self._drop(min(self._seen_at, key=self._seen_at.__getitem__))
            band, mode, kind = key
            speaks = self._cells_for(kind)
            nearest = int(speaks.cells[band, mode]) if speaks.known[band, mode] else None
            at = self._number[key] = self._filter.add(float(speaks.apart[band, mode]), nearest)
            self._by_kind.clear()
        self._seen_at[key] = self._step
        return at

    def _drop(self, key: CellKey) -> None:
        at = self._number.pop(key)
        del self._seen_at[key]
        self._doubted.discard(key)
        self._filter.drop(at)
        moved = next((other for other, number in self._number.items() if number == self._filter.size), None)
        if moved is not None:
            self._number[moved] = at
        self._by_kind.clear()

    def state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        cells = [
            [*key, self._seen_at[key], key in self._doubted]
            for key in sorted(self._number, key=self._number.__getitem__)
        ]
        return {"cells": cells, **self._filter.state(), "step": self._step}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of the same bands and modes; `ValueError` otherwise."""
        cells = [tuple(map(int, cell)) for cell in state["cells"]]
        for band, mode, *_ in cells:
            if not (0 <= band < self._n_bands and 0 <= mode < self._features.n_modes):
                raise ValueError(f"there is no band {band} with mode {mode}")
        if len(state["mean"]) != self._first_cell + len(cells):
            raise ValueError(f"{len(state['mean'])} values do not belong to {len(cells)} cells")
        self._filter.set_state(state)
        self._number = {(band, mode, kind): self._first_cell + i for i, (band, mode, kind, *_) in enumerate(cells)}
        self._seen_at = {(band, mode, kind): step for band, mode, kind, step, _ in cells}
        self._doubted = {(band, mode, kind) for band, mode, kind, _, doubted in cells if doubted}
        self._by_kind.clear()
        self._step = int(state["step"])


def _noise_variance(seen: Observation) -> float:
    """Of a report's mean. Few rows are believed little: the first steps after a prefill may take anything."""
    scatter = max(NOISE**2 * seen.rows, STRAY**2 / seen.rows + seen.scatter)
    return scatter / seen.rows**2
