"""Where in each band does the engine run? Batch size, padded size and context that a band is judged at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.policies.cost import Place
from trimtab.policies.cost_features import context_knot
from trimtab.policies.row_reader import ReportSums, context_class

NEWEST_WEIGHT = 0.5


class Places:
    """Typical load of every band, and the band that the engine is in.

    A band that was never entered is judged at its largest batch size.

    Args:
        bands: Smallest batch size of each band.
        largest: Largest batch size.

    Attributes:
        current: Band of most of the last report's steps.
        batch_size: Mean batch size by band.
        octave: Mean binary logarithm of the padded size by band.
        context_tokens: Mean context of a request.
        imbalance: Binary logarithm of the longest context over the mean.
    """

    def __init__(self, bands: Sequence[int], largest: int) -> None:
        tops = [*[edge - 1 for edge in bands[1:]], max(largest, bands[-1])]
        self.batch_size = [float(top) for top in tops]
        self.octave = [math.log2(top) for top in tops]
        self.current = 0
        self.context_tokens = 0.0
        self.imbalance = 0.0
        self._places: list[Place | None] = [None] * len(tops)

    def learn(self, sums: ReportSums) -> bool:
        """Take in one report; whether the engine is in another band than before."""
        for band, (rows, sizes, octaves) in sums.by_band.items():
            self.batch_size[band] += NEWEST_WEIGHT * (sizes / rows - self.batch_size[band])
            self.octave[band] += NEWEST_WEIGHT * (octaves / rows - self.octave[band])
            self._places[band] = None
        if sums.context_tokens is not None and sums.context_tokens != self.context_tokens:
            self.context_tokens, self.imbalance = sums.context_tokens, sums.imbalance
            self._places = [None] * len(self._places)
        if not sums.by_band or sums.last_band == self.current:
            return False
        self.current = sums.last_band
        return True

    @property
    def kind(self) -> int:
        """Context class."""
        return context_class(self.context_tokens)

    def places(self) -> list[Place]:
        """Where every band is judged, with the present context of a request; rounded, so that trifles do not count."""
        found = [place or self._place(band) for band, place in enumerate(self._places)]
        self._places = [*found]
        return found

    def _place(self, band: int) -> Place:
        context = context_knot(self.context_tokens * self.batch_size[band])
        return Place(round(self.octave[band] * 32) / 32, round(context * 8) / 8, round(self.imbalance * 4) / 4)

    def state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        return {
            "current": self.current,
            "batch_size": self.batch_size.copy(),
            "octave": self.octave.copy(),
            "context_tokens": self.context_tokens,
            "imbalance": self.imbalance,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of as many bands; `ValueError` otherwise."""
        sizes, octaves = list(map(float, state["batch_size"])), list(map(float, state["octave"]))
        current = int(state["current"])
        if len(sizes) != len(self.batch_size) or len(octaves) != len(sizes) or not 0 <= current < len(sizes):
            raise ValueError("the places are of other bands")
        self.batch_size, self.octave, self.current = sizes, octaves, current
        self.context_tokens, self.imbalance = float(state["context_tokens"]), float(state["imbalance"])
        self._places = [None] * len(sizes)
