"""What to take from files of step times, and what follows of it: padding and context where a file does not say them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from trimtab.replay.arrays import Floats, Mask
from trimtab.replay.profiles.samples import StepSamples


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to take from files, and what they do not say themselves.

    Attributes:
        model: Only rows of this model, in tables that name it; empty for all.
        attention_backend: The same for the attention backend.
        prompt_tokens: Length of the prompts behind a step log; None if unknown: context is then left out.
        graph_sizes: Sizes that batches were padded to, ascending, for files that do not say it.
    """

    model: str = ""
    attention_backend: str = ""
    prompt_tokens: int | None = None
    graph_sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What a file holds: the rows that are a cost, how many rows there are, and why the others are none."""

    samples: StepSamples
    rows: int
    left_out: Counter[str]


def generated_tokens(gap: Mask, emitted: Floats, size: Floats) -> Floats:
    """Tokens that each request of a row has generated since the last prefill, on average.

    Args:
        gap: Rows that a prefill or idle time comes before.
        emitted: Tokens that came out.
        size: Requests in the batch.
    """
    before = np.concatenate([[0.0], np.cumsum(emitted / np.maximum(size, 1))[:-1]])
    start = np.maximum.accumulate(np.where(gap, np.arange(len(gap)), 0))
    generated: Floats = before - before[start]
    return generated


def padded_sizes(size: Floats, wanted: Wanted) -> Floats:
    """The first captured size that holds the batch; the batch itself beyond the last."""
    if not wanted.graph_sizes:
        return size
    sizes = np.array(wanted.graph_sizes, dtype=float)
    slot = np.searchsorted(sizes, size)
    return np.where(slot < len(sizes), sizes[np.minimum(slot, len(sizes) - 1)], size)
