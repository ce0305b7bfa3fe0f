"""Logs of a few kinds of draws, so that estimates can be worked out on paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.domain import PLAIN_WARM, speculate
from trimtab.replay.off_policy.choices import Choices

MODES = (PLAIN_WARM, speculate(3))
PLAIN, DRAFTING = 0, 1


@dataclass(frozen=True)
class Draw:
    """`times` blocks of one step in which this mode was drawn with this probability.

    `wanted` is the candidate's probability of drafting.
    """

    times: int
    mode: int
    probability: float
    tokens: float
    ms: float
    wanted: float = 1.0
    batch_size: float = 1.0


def log_of(draws: Sequence[Draw], steps: int = 1) -> Choices:
    """The log, its draws mixed in a fixed order; every block has so many steps of one stretch."""
    rows = [draw for draw in draws for _ in range(draw.times)]
    rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    wanted = np.array([row.wanted for row in rows])
    batch_size = np.array([row.batch_size for row in rows])
    return Choices(
        block=np.arange(len(rows)),
        steps=np.full(len(rows), float(steps)),
        mode=np.array([row.mode for row in rows]),
        probability=np.array([row.probability for row in rows]),
        wanted=np.column_stack([1 - wanted, wanted]),
        tokens=np.array([row.tokens for row in rows]) * steps,
        ms=np.array([row.ms for row in rows]) * steps,
        batch_size=batch_size,
        features=batch_size[:, None],
    )
