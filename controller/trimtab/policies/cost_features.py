"""What a step's time may depend on, as features of its logarithm, and what is believed of them beforehand.

`log T` is a sum of a level by batch size, an exponent by batch size times `log(1 + k)` (0: the GPU waits for memory
and drafts are free; 1: it computes all the time and every draft costs as much as a token), an offset by mode, and a
level by context. Levels and exponents are hat functions on octaves of the batch size that move from knot to knot
like a random walk, so what is seen at one batch size speaks for its neighbours and says ever less further away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

CONTEXT_KNOTS = 9
CONTEXT_TOKENS_AT_FIRST_KNOT = 512
OCTAVES_A_CONTEXT_KNOT = 1.5


@dataclass(frozen=True, slots=True)
class Beliefs:
    """Standard deviations of what is believed before anything was seen; all of log time.

    Attributes:
        level: Of the level at the smallest batch size.
        level_walk: Of the change of level from one octave to the next.
        exponent: Of the exponent.
        exponent_walk: Of its change from one octave to the next.
        offset: Of a mode's own offset.
        context_walk: Of the change of level from one context knot to the next.
        imbalance: Of the effect of one doubling of the longest context over the mean.
        cell: Of what the features cannot explain about a mode in a band.
    """

    level: float
    level_walk: float
    exponent: float
    exponent_walk: float
    offset: float
    context_walk: float
    imbalance: float
    cell: float


WITHOUT_PROFILE = Beliefs(4.0, 0.25, 0.25, 0.15, 0.05, 0.15, 0.05, 0.05)
WITH_PROFILE = Beliefs(0.2, 0.03, 0.05, 0.03, 0.02, 0.03, 0.02, 0.02)


# What native plain saves of a warm plain step, in which the draft model reads along; measured 5% to 9% on an H200.
EXPECTED_OF_NATIVE = -0.06


def expected_exponent(octave: float) -> float:
    """Exponent before anything was seen, at batch size `2 ** octave`: half-way up at 64 requests."""
    return 0.1 + 0.7 / (1 + math.exp(6.0 - octave))


class Features:
    """Features of (batch size, mode, context).

    Args:
        steps: Drafts of each mode; shape `(n_modes,)`.
        largest_batch: Largest batch size to tell apart.
        native: Number of the plain mode that leaves the draft model alone; None: there is none.
    """

    def __init__(self, steps: tuple[int, ...], largest_batch: int, native: int | None = None) -> None:
        self.knots = max(2, math.ceil(math.log2(max(2, largest_batch))) + 1)
        self.log_width = [math.log1p(k) for k in steps]
        self.n_modes = len(steps)
        self._log_widths = np.array(self.log_width)
        self._modes = np.arange(self.n_modes)
        self._ahead = np.zeros(self.n_modes)
        if native is not None:
            self._ahead[native] = EXPECTED_OF_NATIVE
        self.size = 2 * self.knots + self.n_modes + CONTEXT_KNOTS + 1
        self._exponents = self.knots
        self._offsets = 2 * self.knots
        self._contexts = self._offsets + self.n_modes

    def prior_precision(self, beliefs: Beliefs) -> Floats:
        """Inverse covariance of the weights before anything was seen; shape `(size, size)`."""
        precision = np.zeros((self.size, self.size))
        _walk(precision, 0, self.knots, beliefs.level, beliefs.level_walk)
        _walk(precision, self._exponents, self.knots, beliefs.exponent, beliefs.exponent_walk)
        offsets = np.arange(self._offsets, self._contexts)
        precision[offsets, offsets] = beliefs.offset**-2
        _walk(precision, self._contexts, CONTEXT_KNOTS, 0.01, beliefs.context_walk)
        precision[-1, -1] = beliefs.imbalance**-2
        return precision

    def fill(self, row: Floats, octave: float, mode: int, context: float, imbalance: float) -> None:
        """Write the features of one place and mode into `row`; shape `(size,)`.

        Args:
            row: Overwritten.
            octave: Binary logarithm of the batch size.
            mode: Number of the mode.
            context: Place on the context axis (`context_knot`).
            imbalance: Binary logarithm of longest over mean context.
        """
        self._fill(row, octave, self.log_width[mode], context, imbalance)
        row[self._offsets + mode] = 1.0

    def fill_all(self, rows: Floats, octave: float, context: float, imbalance: float) -> None:
        """Write the features of one place for every mode into `rows`; shape `(n_modes, size)`."""
        self._fill(rows, octave, self._log_widths, context, imbalance)
        rows[self._modes, self._offsets + self._modes] = 1.0

    def _fill(self, out: Floats, octave: float, log_width: float | Floats, context: float, imbalance: float) -> None:
        out[...] = 0.0
        low, share = _hat(octave, self.knots)
        out[..., low], out[..., low + 1] = 1 - share, share
        at = self._exponents + low
        out[..., at], out[..., at + 1] = (1 - share) * log_width, share * log_width
        low, share = _hat(context, CONTEXT_KNOTS)
        at = self._contexts + low
        out[..., at], out[..., at + 1] = 1 - share, share
        out[..., -1] = imbalance

    def expected(self, octave: float, mode: int) -> float:
        """What is believed of this mode beforehand, in log time: the exponent, and what native plain saves."""
        return expected_exponent(octave) * self.log_width[mode] + float(self._ahead[mode])

    def expected_all(self, octave: float) -> Floats:
        """The same for every mode; shape `(n_modes,)`."""
        return expected_exponent(octave) * self._log_widths + self._ahead


def context_knot(context_tokens: float) -> float:
    """Place of a sum of context tokens on the context axis."""
    return math.log2(1 + context_tokens / CONTEXT_TOKENS_AT_FIRST_KNOT) / OCTAVES_A_CONTEXT_KNOT


def _hat(x: float, knots: int) -> tuple[int, float]:
    """Knot below, and share of the knot above."""
    x = min(max(x, 0.0), knots - 1.0)
    low = min(int(x), knots - 2)
    return low, x - low


def _walk(precision: Floats, start: int, knots: int, first: float, step: float) -> None:
    """A random walk over the knots: the first has its own standard deviation, each next one differs by `step`."""
    precision[start, start] += first**-2
    for i in range(start, start + knots - 1):
        precision[i : i + 2, i : i + 2] += step**-2 * np.array([[1.0, -1.0], [-1.0, 1.0]])
