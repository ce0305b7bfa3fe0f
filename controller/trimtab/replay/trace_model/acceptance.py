"""Acceptance over the course of a trace: of every position in every block, and how sure that is.

The first position is followed as in the policies' cascade (`policies/cascade.py`): a scalar Kalman filter on a random
walk with the same drift and the same way with surprises. How far the acceptance of every further position, given
those before it, lies from that of the one before is followed alike, with a slower drift and 0 as the first guess:
when the load changes, all positions move together, and deep ones are seen too seldom to follow by themselves. A
position that was never offered is taken from the deepest that was.

Each filter runs once forwards and once backwards through the blocks; the two are put together by their precisions (a
two-filter smoother: Fraser and Potter, "The optimum linear smoother as a combination of two optimum linear filters",
1969), so that a block learns from what came after it as well.

Requests of one batch may share their luck. By how much their counts scatter more than independent ones would
(`dispersion`) is measured, and counts are worth that much less.

Rows with only a sum of accepted drafts get the one acceptance, the same at every position, that explains the sum
in a window of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.policies.cascade import (
    DRIFT_A_STEP,
    FIRST_GUESS,
    NEIGHBOUR_SD,
    SMALLEST_SPREAD,
    SURPRISE,
    UNKNOWN_VAR,
)
from trimtab.replay.arrays import Floats, Ints, Mask
from trimtab.replay.trace_model.survey import BlockSums

# Requests that a window for rows with only a sum must have.
WINDOW_REQUESTS = 1_000
MOST_DISPERSION = 256.0
# Drift of the difference between two positions, over that of the first position.
DIFFERENCE_DRIFT = 0.25
LEAST_RATE = 0.005
LEAST_VARIANCE = 1e-3
HALVINGS = 50


@dataclass(frozen=True, slots=True)
class AcceptanceCourse:
    """Acceptance by block. Shapes: B blocks of all segments in turn, D depths.

    Attributes:
        first_block: Of every segment.
        conditional: P(draft d + 1 accepted | those before it were); shape `(B, D)`.
        own_sd: Standard deviation of it by the counts around the block; shape `(B, D)`. Blocks far apart err
            independently.
        lean_sd: The same for what is taken from the position before; all blocks err alike.
        dispersion: By how much counts scatter more than those of independent requests, at least 1; shape `(D,)`.
        by_sum: The one acceptance at every position that explains rows with only a sum; shape `(B,)`.
    """

    first_block: Ints
    conditional: Floats
    own_sd: Floats
    lean_sd: Floats
    dispersion: Floats
    by_sum: Floats

    def blocks(self, segment: int, block: Ints) -> Ints:
        """Numbers of a segment's blocks along these arrays."""
        return np.asarray(self.first_block[segment] + block)


def follow_acceptance(sums: BlockSums, engines: Sequence[str], depth: int) -> AcceptanceCourse:
    """Acceptance over the whole trace.

    Args:
        sums: How drafts fared in every block.
        engines: Engine of every segment; runs of one engine go on from each other.
        depth: Positions to follow; beyond those ever offered they are taken from the deepest.
    """
    by_sum = _same_acceptance(*_windowed(sums))
    offered, accepted = _with_sums(sums, by_sum)
    dispersion = _dispersion(sums)
    seen = offered.shape[1]
    widths = ((0, 0), (0, depth - seen))
    requests, positive = np.pad(offered / dispersion, widths), np.pad(accepted / dispersion, widths)
    shape = len(offered), depth
    conditional, own_var, lean_var = np.empty(shape), np.empty(shape), np.empty(shape)
    for blocks in _runs(sums.first_block, engines):
        found = _followed(requests[blocks], positive[blocks], sums.steps[blocks])
        conditional[blocks], own_var[blocks], lean_var[blocks] = found
    return AcceptanceCourse(
        first_block=sums.first_block,
        conditional=conditional,
        own_sd=np.sqrt(own_var),
        lean_sd=np.sqrt(lean_var),
        dispersion=np.concatenate([dispersion, np.full(depth - seen, dispersion[-1] if seen else 1.0)]),
        by_sum=by_sum,
    )


def _runs(first_block: Ints, engines: Sequence[str]) -> list[Ints]:
    """The blocks of each engine, its runs in turn."""
    found: dict[str, list[Ints]] = {}
    for i, engine in enumerate(engines):
        found.setdefault(engine, []).append(np.arange(first_block[i], first_block[i + 1]))
    return [np.concatenate(parts) for parts in found.values()]


# -- rows with only a sum ----------------------------------------------------------------------------


def _windowed(sums: BlockSums) -> tuple[Floats, Floats]:
    """Requests by drafts and accepted drafts around every block: the least window with enough requests."""
    n = len(sums.sum_accepted)
    requests, accepted = sums.sum_requests.copy(), sums.sum_accepted.copy()
    together = np.concatenate([np.zeros((1, requests.shape[1])), np.cumsum(sums.sum_requests, axis=0)])
    accepted_together = np.concatenate([[0.0], np.cumsum(sums.sum_accepted)])
    reach = 1
    while reach < n and (few := np.flatnonzero(requests.sum(axis=1) < WINDOW_REQUESTS)).size:
        low, high = np.maximum(0, few - reach), np.minimum(n, few + reach + 1)
        requests[few] = together[high] - together[low]
        accepted[few] = accepted_together[high] - accepted_together[low]
        reach *= 2
    return requests, accepted


def _same_acceptance(requests: Floats, accepted: Floats) -> Floats:
    """The p with `sum over k of requests[k] (p + ... + p^k) = accepted`, by halving; shape `(n,)`."""
    # Requests that were offered a draft at each depth.
    offered = np.cumsum(requests[:, ::-1], axis=1)[:, ::-1][:, 1:]
    low, high = np.zeros(len(accepted)), np.ones(len(accepted))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        total, power = np.zeros(len(accepted)), np.ones(len(accepted))
        for d in range(offered.shape[1]):
            power = power * middle
            total += offered[:, d] * power
        below = total < accepted
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.where(offered.sum(axis=1) > 0, (low + high) / 2, FIRST_GUESS)


def _with_sums(sums: BlockSums, by_sum: Floats) -> tuple[Floats, Floats]:
    """Counts by depth, with what rows with only a sum would have counted."""
    offered, accepted = sums.offered.copy(), sums.accepted.copy()
    drafted = np.cumsum(sums.sum_requests[:, ::-1], axis=1)[:, ::-1][:, 1:]
    for d in range(offered.shape[1]):
        more = drafted[:, d] * by_sum**d
        offered[:, d] += more
        accepted[:, d] += more * by_sum
    return offered, accepted


# -- rows with counts by depth -----------------------------------------------------------------------


def _dispersion(sums: BlockSums) -> Floats:
    """Scatter of the rows' counts around their block's rate, over that of independent requests; shape `(D,)`."""
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = sums.accepted / sums.offered
        scatter = sums.squares - 2 * rate * sums.accepted + rate**2 * sums.offered
        spread = rate * (1 - rate)
    told: Mask = (spread > LEAST_VARIANCE) & (sums.rows > 1)
    free = np.where(told, sums.rows - 1, 0.0).sum(axis=0)
    total = np.where(told, scatter / np.where(told, spread, 1.0), 0.0).sum(axis=0)
    found: Floats = np.clip(np.where(free > 0, total / np.maximum(1.0, free), 1.0), 1.0, MOST_DISPERSION)
    return found


def _followed(offered: Floats, accepted: Floats, steps: Floats) -> tuple[Floats, Floats, Floats]:
    """Acceptance of every position in the blocks of one engine, and its variances by counts and by belief; `(B, D)`."""
    found, own, lean = np.empty(offered.shape), np.empty(offered.shape), np.empty(offered.shape)
    before, before_own, before_lean = np.zeros(len(steps)), np.zeros(len(steps)), np.zeros(len(steps))
    belief, drift = UNKNOWN_VAR, DRIFT_A_STEP**2
    for d in range(offered.shape[1]):
        told = offered[:, d] > 0
        rate = np.where(told, accepted[:, d] / np.where(told, offered[:, d], 1.0), 0.0)
        spread = np.maximum(SMALLEST_SPREAD, _shrunk(offered[:, d], accepted[:, d]))
        noise = np.where(told, spread / np.where(told, offered[:, d], 1.0) + before_own + before_lean, math.inf)
        walk = Walk(start=FIRST_GUESS if d == 0 else 0.0, start_var=belief, most_var=belief, drift_a_step=drift)
        mean, var = walk.smoothed(rate - before, noise, steps)
        found[:, d] = before = np.clip(mean + before, LEAST_RATE, 1 - LEAST_RATE)
        # What is left of the belief: the share that it has in the estimate.
        by_belief = var**2 / belief
        own[:, d] = before_own = before_own + np.maximum(0.0, var - by_belief)
        lean[:, d] = before_lean = before_lean + by_belief
        belief, drift = NEIGHBOUR_SD**2, (DIFFERENCE_DRIFT * DRIFT_A_STEP) ** 2
    return found, own, lean


def _shrunk(offered: Floats, accepted: Floats) -> Floats:
    """Variance of one request's outcome, of which a block with few requests says little by itself."""
    rate = (accepted + 1) / (offered + 2)
    found: Floats = rate * (1 - rate)
    return found


@dataclass(frozen=True, slots=True)
class Walk:
    """A level that moves like a random walk.

    Attributes:
        start: What is believed of it before anything was seen.
        start_var: With this variance.
        most_var: Beyond this variance it is unknown.
        drift_a_step: Growth of its variance in a decode step.
    """

    start: float
    start_var: float
    most_var: float
    drift_a_step: float

    def smoothed(self, observed: Floats, noise: Floats, steps: Floats) -> tuple[Floats, Floats]:
        """Mean and variance in every block, by what was observed before, in and after it; shapes `(B,)`.

        Args:
            observed: The level as every block shows it.
            noise: Variance of that; infinite where a block shows nothing.
            steps: Decode steps of every block.
        """
        grown = self.drift_a_step * steps
        mean, var = self._filtered(observed, noise, grown, self.start_var)
        # What comes after, told back to front; the belief has been counted already.
        after_mean, after_var = self._filtered(observed[::-1], noise[::-1], grown[::-1], math.inf)
        after_mean, after_var = np.append(after_mean[::-1][1:], 0.0), np.append(after_var[::-1][1:], math.inf)
        after_var = after_var + np.append(grown[1:], 0.0)
        precision = 1 / var + 1 / after_var
        weighed = mean / var + np.where(np.isfinite(after_var), after_mean / after_var, 0.0)
        return weighed / precision, 1 / precision

    def _filtered(self, observed: Floats, noise: Floats, grown: Floats, var: float) -> tuple[Floats, Floats]:
        """What the blocks up to each one say, that one included."""
        mean, most = self.start, self.most_var
        means, variances = [], []
        for value, noise_var, more in zip(observed.tolist(), noise.tolist(), grown.tolist(), strict=True):
            var = var if var >= most else min(most, var + more)
            if noise_var < math.inf:
                mean, var = _updated(mean, var, value, noise_var, most)
            means.append(mean)
            variances.append(var)
        return np.array(means), np.array(variances)


def _updated(mean: float, var: float, value: float, noise_var: float, most: float) -> tuple[float, float]:
    """A level after one more observation. A surprise means that it has moved, not drifted."""
    if var == math.inf:
        return value, noise_var
    surprise = (value - mean) ** 2
    if surprise > SURPRISE**2 * (var + noise_var):
        var = min(most, max(var, surprise))
    gain = var / (var + noise_var)
    return mean + gain * (value - mean), var * (1 - gain)
