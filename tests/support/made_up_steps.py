"""Step times that are known exactly, for tests of what is learnt from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.domain import PLAIN_WARM, Mode, speculate
from trimtab.replay.profiles.samples import StepSamples

SIZES = (1, 4, 16, 64)
MODES = (PLAIN_WARM, speculate(1), speculate(3))


@dataclass(frozen=True)
class MadeUpCosts:
    """A step takes `5 + 0.05 batch + (0.3 + 0.02 batch) steps` ms, and more for context."""

    ms_per_token: float = 0.0
    ms_per_longest_token: float = 0.0

    def ms(self, mode: Mode, size: int, context_sum: float = 0.0, context_max: float = 0.0) -> float:
        """What a step takes."""
        base = 5 + 0.05 * size + (0.3 + 0.02 * size) * mode.steps
        return base + self.ms_per_token * context_sum + self.ms_per_longest_token * context_max

    def samples(
        self,
        rows: int = 60,
        sizes: Sequence[int] = SIZES,
        modes: Sequence[Mode] = MODES,
        noise: float = 0.0,
        with_context: bool = False,
        seed: int = 0,
    ) -> StepSamples:
        """So many rows of every size and mode, in a random order of contexts."""
        rng = np.random.default_rng(seed)
        cells = [(size, m) for size in sizes for m in range(len(modes)) for _ in range(rows)]
        size, mode = (np.array(column, dtype=np.int64) for column in zip(*cells, strict=True))
        mean, longest = rng.uniform(100, 2000, len(cells)), rng.uniform(1, 4, len(cells))
        context_sum = mean * size if with_context else np.full(len(cells), np.nan)
        context_max = mean * longest if with_context else np.full(len(cells), np.nan)
        exact = [
            self.ms(modes[m], int(s), *np.nan_to_num([total, most]))
            for s, m, total, most in zip(size, mode, context_sum, context_max, strict=True)
        ]
        ms = np.array(exact) * np.exp(noise * rng.standard_normal(len(cells)))
        return StepSamples(tuple(modes), mode, size, size, ms, np.ones(len(cells)), context_sum, context_max)
