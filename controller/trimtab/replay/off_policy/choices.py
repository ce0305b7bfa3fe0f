"""What a log chose and what came of it, beside what a candidate would have chosen; as arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from trimtab.replay.arrays import Floats, Ints, Mask


@dataclass(frozen=True, slots=True)
class Choices:
    """Stretches of decode steps in one mode. Shapes: N stretches in the order of the log, M modes, F features.

    Attributes:
        block: Number of the draw that chose the mode, never falling: stretches of one draw stand or fall together;
            shape `(N,)`.
        steps: Decode steps of the stretch; shape `(N,)`.
        mode: Number of the mode that ran; shape `(N,)`.
        probability: With which it was chosen, NaN if unknown; shape `(N,)`.
        wanted: Probability of every mode under the candidate; shape `(N, M)`.
        tokens: Tokens that came out over all of the steps; shape `(N,)`.
        ms: Time that they took; shape `(N,)`.
        batch_size: Mean requests of a step; shape `(N,)`.
        features: What tokens and time may depend on besides the mode; shape `(N, F)`.
    """

    block: Ints
    steps: Floats
    mode: Ints
    probability: Floats
    wanted: Floats
    tokens: Floats
    ms: Floats
    batch_size: Floats
    features: Floats

    def __len__(self) -> int:
        return len(self.mode)

    def where(self, mask: Mask) -> Choices:
        """These stretches alone."""
        return Choices(*(getattr(self, f.name)[mask] for f in fields(self)))

    @property
    def rewards(self) -> Floats:
        """Tokens and ms; shape `(2, N)`."""
        return np.stack([self.tokens, self.ms])

    @property
    def block_starts(self) -> Ints:
        """Number of the first stretch of every block."""
        return np.flatnonzero(np.diff(self.block, prepend=-1)).astype(np.int64)

    @property
    def wanted_of_own(self) -> Floats:
        """Probability of the mode that ran under the candidate; shape `(N,)`."""
        return self.wanted[np.arange(len(self)), self.mode]

    @property
    def weights(self) -> Floats:
        """How much more often the candidate would have chosen what ran; shape `(N,)`."""
        return self.wanted_of_own / self.probability

    def by_block(self, values: Floats) -> Floats:
        """Sums over the last axis by block."""
        return np.add.reduceat(values, self.block_starts, axis=-1)
