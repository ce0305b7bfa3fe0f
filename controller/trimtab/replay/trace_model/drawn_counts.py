"""The counts by depth that an engine would have reported, had it run as many drafts as anybody may ask for.

What was counted stays as it was; beyond it, requests that had everything accepted go on by lot. The lots of a block of
rows depend on the seed and the block alone, so that every policy meets the same luck.
"""

from __future__ import annotations

import numpy as np

from trimtab.replay.arrays import Floats, Ints
from trimtab.replay.trace_model.acceptance import AcceptanceCourse
from trimtab.replay.trace_model.rows import ReplayRows

# Acceptances for which the accepted drafts are worked out beforehand.
RATES = np.linspace(0.0, 1.0, 1025)


def drawn_reach(rows: ReplayRows, course: AcceptanceCourse, seed: int) -> Ints:
    """Requests of one step by accepted drafts in a row, shape `(n_rows, depth + 1)`; the first is the requests.

    Args:
        rows: Rows of one segment.
        course: Acceptance over the trace; its depth is that of the result.
        seed: Of the lots.
    """
    n, depth = len(rows), course.conditional.shape[1]
    reach = np.zeros((n, depth + 1), dtype=np.int64)
    known = _known(rows)
    reach[:, : known.shape[1]] = known
    rates = course.conditional[course.blocks(rows.segment, rows.block)]
    starts = np.flatnonzero(np.diff(rows.block, prepend=-1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), n], strict=True):
        bits = np.random.Philox(key=seed, counter=[0, 0, rows.segment, int(rows.block[start])])
        _go_on(np.random.Generator(bits), reach[start:end], rates[start:end], rows.drafts[start:end])
    return reach


def _go_on(generator: np.random.Generator, reach: Ints, rates: Floats, drafts: Ints) -> None:
    """Draw what lies beyond each row's own drafts, in place."""
    for d in range(1, reach.shape[1]):
        beyond = np.flatnonzero(drafts < d)
        if len(beyond):
            reach[beyond, d] = generator.binomial(reach[beyond, d - 1], rates[beyond, d - 1])


def _known(rows: ReplayRows) -> Ints:
    """Requests of one step by accepted drafts, as far as each row's own drafts go."""
    reached = rows.reached
    if rows.counted.all() and (rows.steps == 1).all():
        return reached
    steps = rows.steps[:, None]
    share = np.where(rows.counted[:, None], reached / steps, _spread(rows))
    # Whole requests whose sums are those of the shares: each prefix is rounded.
    sums = np.floor(np.cumsum(share[:, 1:], axis=1) + 0.5).astype(np.int64)
    whole = np.diff(sums, axis=1, prepend=0)
    whole = np.minimum(-np.sort(-whole, axis=1), rows.batch_size[:, None])
    requests = np.maximum(1, np.round(rows.requests / rows.steps)).astype(np.int64)
    exact = rows.counted & (rows.steps == 1)
    found: Ints = np.where(exact[:, None], reached, np.concatenate([requests[:, None], whole], axis=1))
    return found


def _spread(rows: ReplayRows) -> Floats:
    """Requests of one step by accepted drafts, of rows with a sum: the same acceptance at every position."""
    depth = rows.reached.shape[1] - 1
    requests, mean = rows.requests / rows.steps, rows.accepted / np.maximum(1, rows.requests)
    powers = RATES[:, None] ** np.arange(1, depth + 1)
    totals = np.cumsum(powers, axis=1)
    rate = np.zeros(len(rows))
    for k in range(1, depth + 1):
        at = rows.drafts == k
        rate[at] = np.interp(mean[at], totals[:, k - 1], RATES)
    within = np.arange(depth + 1) <= rows.drafts[:, None]
    found: Floats = np.where(within, requests[:, None] * rate[:, None] ** np.arange(depth + 1), 0.0)
    return found
