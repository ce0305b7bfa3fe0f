"""What would have been accepted with fewer or more drafts than were run?

Every request of a row has a run: how many drafts in a row the target would have accepted, were the chain long enough.

* Fewer drafts than were run: runs are cut off, which is exact where the row has counts by depth ("truncated").
* More drafts: only requests that had everything accepted can get further. They go on with the conditional acceptance
  of the time around them (`acceptance.py`; "modelled").
* A row with only a sum: runs have the one acceptance at every position that explains the sums around it ("modelled").
* Where a draft may be accepted after a rejected one (block verification), the counts do not say what fewer drafts
  would have yielded: runs are cut off all the same, but count as modelled.

A row stands for the tokens that came out of it. With `a(k)` accepted drafts a request and step with k drafts, the
mode that ran there with K needs `(1 + a(K)) / (1 + a(k))` steps of k drafts for the tokens of one of its own. `a` is
the mean over the rows of the same block and mode (and of the blocks around, where these are few): the ratio of means,
not the mean of ratios row by row. The two are not the same: with one request, half of the drafts accepted and 3
drafts run, a step of one draft carries 1.5 tokens, so 3-draft steps of 1.875 tokens take 1.25 of them; row by row it
would come to 1.19, since a row of 3 tokens takes two such steps and not one and a half. What is left of that in the
ratio of the means of a few rows is taken out by Beale's correction (Beale, "Some uses of computers in operational
research", 1962).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from trimtab.domain import Mode
from trimtab.replay.arrays import Floats, Ints, Mask
from trimtab.replay.trace_model.acceptance import AcceptanceCourse
from trimtab.replay.trace_model.rows import ReplayRows

# How much acceptance may rise or fall from one position to the next where only sums are known.
SLOPE_SD = 0.05
SLOPE_PROBE = 1e-3
# A group with fewer rows is looked at together with so many blocks on each side, the least that is enough.
FEW_ROWS = 8
WIDER_BLOCKS = (1, 2)


class Evidence(IntEnum):
    """Where the accepted drafts of a row under a mode are known from."""

    OBSERVED = 0
    TRUNCATED = 1
    MODELLED = 2


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Steps that rows take under every mode. Shapes: G groups of rows of one block and mode, M modes, D depths.

    Attributes:
        group: Group of every row; shape `(n_rows,)`.
        block: Number of each group's block along the acceptance course; shape `(G,)`.
        ratio: Steps for each step that was run; shape `(G, M)`; 1 for the mode that ran.
        evidence: `Evidence` by group and mode; shape `(G, M)`.
        slopes: Derivative of `log ratio` by the conditional acceptance of each position; shape `(G, M, D)`.
        by_slope: Derivative of `log ratio` by how acceptance changes from position to position, where only sums are
            known; shape `(G, M)`.
        luck_var: Variance of `log ratio` from the luck of the requests that go on; shape `(G, M)`.
    """

    group: Ints
    block: Ints
    ratio: Floats
    evidence: Ints
    slopes: Floats
    by_slope: Floats
    luck_var: Floats


def outcomes_of(
    rows: ReplayRows, course: AcceptanceCourse, modes: Sequence[Mode], mode_of: Ints, exact: bool = True
) -> Outcomes:
    """The outcomes of these rows.

    Args:
        rows: Rows of one segment.
        course: Acceptance over the trace, at least as deep as the modes.
        modes: Modes that may run; shape `(M,)`.
        mode_of: Place along `modes` of every mode of the trace.
        exact: Whether fewer drafts yield what the counts say of them.
    """
    group, first = _groups(rows)
    block = course.blocks(rows.segment, rows.block[first])
    own = mode_of[rows.mode[first]]
    counted = rows.counted[first]
    drafts = np.array([mode.steps for mode in modes])
    around = _Around(block, 2 * drafts[own] + counted, np.bincount(group))
    chain = _chains(rows, group, course, block, drafts[own], counted, around)
    # Accepted drafts a request with each mode.
    accepted = chain.accepted[:, drafts]
    with_own = np.take_along_axis(accepted, own[:, None], axis=1)
    ratio = (1 + with_own) / (1 + accepted) * _beale(rows, group, chain, drafts, own, around)
    same = np.arange(len(modes)) == own[:, None]
    fewer = (drafts[None, :] <= drafts[own][:, None]) & (exact | (drafts == 0))
    evidence = np.where(
        same, Evidence.OBSERVED, np.where(fewer & counted[:, None], Evidence.TRUNCATED, Evidence.MODELLED)
    )
    scale = -1 / (1 + accepted)
    by_slope = np.where(same | counted[:, None], 0.0, _by_slope(course.by_sum[block], drafts[own], drafts))
    return Outcomes(
        group=group,
        block=block,
        ratio=ratio,
        evidence=evidence.astype(np.int64),
        slopes=scale[:, :, None] * chain.slopes(drafts),
        by_slope=by_slope,
        luck_var=scale**2 * chain.luck(drafts, course.dispersion),
    )


def _groups(rows: ReplayRows) -> tuple[Ints, Ints]:
    """Group of every row, and the first row of every group."""
    code = (rows.block - rows.block[0]) * (2 * (int(rows.mode.max()) + 1)) + 2 * rows.mode + rows.counted
    _, first, group = np.unique(code, return_index=True, return_inverse=True)
    return group.astype(np.int64), first.astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Chains:
    """How far chains of drafts get. Shapes: G groups, D depths.

    Attributes:
        accepted: Accepted drafts a request with 0 to D drafts; shape `(G, D + 1)`.
        rates: Conditional acceptance; shape `(G, D)`.
        ran: Drafts that were run; shape `(G,)`.
        going_on: Share of requests that had all of them accepted; shape `(G,)`.
        requests: Requests; shape `(G,)`.
    """

    accepted: Floats
    rates: Floats
    ran: Ints
    going_on: Floats
    requests: Floats

    def slopes(self, drafts: Ints) -> Floats:
        """Derivative of the accepted drafts with so many drafts by each position's rate; shape `(G, M, D)`."""
        depth = np.arange(self.rates.shape[1])
        beyond = depth >= self.ran[:, None]
        # With p of position d, all that is accepted from d on goes as p.
        from_here = self.accepted[:, drafts][:, :, None] - self.accepted[:, None, :-1]
        told = beyond[:, None, :] & (depth < drafts[:, None])[None]
        return np.where(told, from_here / self.rates[:, None, :], 0.0)

    def luck(self, drafts: Ints, dispersion: Floats) -> Floats:
        """Variance of the mean accepted drafts a request, of what goes on beyond what was run; shape `(G, M)`."""
        depth = np.arange(self.rates.shape[1])
        beyond = depth >= self.ran[:, None]
        # P(a request that had everything accepted gets so many drafts further).
        further = np.where(beyond, np.cumprod(np.where(beyond, self.rates, 1.0), axis=1), 0.0)
        place = np.maximum(0, depth + 1 - self.ran[:, None])
        mean = np.cumsum(further, axis=1)
        square = np.cumsum((2 * place - 1) * further, axis=1)
        var = np.concatenate([np.zeros((len(mean), 1)), square - mean**2], axis=1)[:, drafts]
        share = (self.going_on / np.maximum(1.0, self.requests))[:, None]
        found: Floats = share * np.maximum(0.0, var) * float(dispersion.max(initial=1.0))
        return found


class _Around:
    """Adds to the sums of a group those of its kind in the blocks around, where it has few rows by itself.

    Args:
        block: Of every group; shape `(G,)`.
        kind: Groups of one kind ran the same mode and have the same kind of counts; shape `(G,)`.
        rows: Rows of every group; shape `(G,)`.
    """

    def __init__(self, block: Ints, kind: Ints, rows: Ints) -> None:
        self._first, self._last = int(block.min()), int(block.max())
        self._block = block
        self._kinds = [np.flatnonzero(kind == one) for one in np.unique(kind).tolist()]
        self._reach = np.zeros(len(block), dtype=np.int64)
        known = rows.astype(float)
        for reach in WIDER_BLOCKS:
            self._reach[known < FEW_ROWS] = reach
            known = self.sums(rows.astype(float)[:, None])[:, 0]

    def sums(self, own: Floats) -> Floats:
        """Sums by group, those around included; shape `(G, n_columns)`."""
        found = own.copy()
        for mine in self._kinds:
            few = mine[self._reach[mine] > 0]
            if not len(few):
                continue
            dense = np.zeros((self._last - self._first + 2, own.shape[1]))
            dense[self._block[mine] - self._first + 1] = own[mine]
            together = np.cumsum(dense, axis=0)
            low = np.maximum(0, self._block[few] - self._first - self._reach[few])
            high = np.minimum(self._last - self._first, self._block[few] - self._first + self._reach[few]) + 1
            found[few] = together[high] - together[low]
        return found


def _chains(
    rows: ReplayRows, group: Ints, course: AcceptanceCourse, block: Ints, ran: Ints, counted: Mask, around: _Around
) -> _Chains:
    n, depth = len(block), course.conditional.shape[1]
    rates = course.conditional[block]
    within = np.arange(1, depth + 1) <= ran[:, None]
    # Requests that got at least d drafts accepted, d from 0.
    own = np.zeros((n, depth + 1))
    for d in range(rows.reached.shape[1]):
        own[:, d] = np.bincount(group, rows.reached[:, d], minlength=n)
    reached = around.sums(own)
    share = reached[:, 1:] / np.maximum(1.0, reached[:, :1])
    by_sum = np.cumprod(np.broadcast_to(course.by_sum[block][:, None], (n, depth)), axis=1)
    share = np.where(within, np.where(counted[:, None], share, by_sum), 0.0)
    last = np.take_along_axis(np.concatenate([np.ones((n, 1)), share], axis=1), ran[:, None], axis=1)
    share = np.where(within, share, last * np.cumprod(np.where(within, 1.0, rates), axis=1))
    accepted = np.concatenate([np.zeros((n, 1)), np.cumsum(share, axis=1)], axis=1)
    return _Chains(accepted, rates, ran, last[:, 0], own[:, 0])


def _beale(rows: ReplayRows, group: Ints, chain: _Chains, drafts: Ints, own: Ints, around: _Around) -> Floats:
    """What takes the bias out of each ratio of means, shape `(G, M)`; exactly 1 for the mode that ran.

    With x and y the tokens of a row in the mode that ran and in another one, over n rows:
    `(1 + cov(x, y) / (n mean x mean y)) / (1 + var(y) / (n mean y^2))`.
    """
    n, m = len(chain.ran), len(drafts)
    tokens = _tokens_by_mode(rows, group, chain, drafts)
    x = np.take_along_axis(tokens, own[group][:, None], axis=1)
    columns = np.concatenate([np.ones((len(group), 1)), tokens, x * tokens, tokens**2], axis=1)
    sums = around.sums(np.stack([np.bincount(group, column, minlength=n) for column in columns.T], axis=1))
    count, y, xy, yy = sums[:, :1], sums[:, 1 : m + 1], sums[:, m + 1 : 2 * m + 1], sums[:, 2 * m + 1 :]
    total_x = np.take_along_axis(y, own[:, None], axis=1)
    free = np.maximum(1.0, count - 1)
    both, square = np.maximum(1.0, total_x * y), np.maximum(1.0, y**2)
    # Sums in place of means: cov / (n mean x mean y) = n cov / (sum x sum y).
    top = 1 + count * (xy - total_x * y / count) / free / both
    bottom = 1 + count * (yy - y**2 / count) / free / square
    known = rows.counted[np.unique(group, return_index=True)[1]][:, None] & (count > 1)
    found: Floats = np.where(known, top / np.maximum(0.5, bottom), 1.0)
    return found


def _tokens_by_mode(rows: ReplayRows, group: Ints, chain: _Chains, drafts: Ints) -> Floats:
    """Tokens of every row in every mode: counted as far as they go, then what is expected; shape `(N, M)`."""
    reached = rows.reached.astype(float)
    depth = reached.shape[1] - 1
    counted = np.cumsum(reached, axis=1)[:, np.minimum(drafts, depth)]
    last = np.take_along_axis(reached, rows.drafts[:, None], axis=1)
    # Accepted drafts beyond what was run, for each request that got there.
    got_there = np.maximum(1e-12, chain.going_on)[:, None]
    ran = np.take_along_axis(chain.accepted, chain.ran[:, None], axis=1)
    beyond = np.maximum(0.0, chain.accepted[:, drafts] - ran) / got_there
    found: Floats = counted + last * np.where(drafts > chain.ran[:, None], beyond, 0.0)[group]
    return found


def _by_slope(rate: Floats, ran: Ints, drafts: Ints) -> Floats:
    """Derivative of `log ratio` by the slope of acceptance along positions, the sum that was seen kept; `(G, M)`.

    With p(s) at position d taken as `p + s d`, p moves against s so that the accepted drafts of the mode that ran
    stay the same.
    """
    depth = int(max(drafts.max(initial=0), ran.max(initial=0)))
    flat, tilted, raised = (
        _accepted_with(rate + shift, slope, depth)
        for shift, slope in ((0.0, 0.0), (0.0, SLOPE_PROBE), (SLOPE_PROBE, 0.0))
    )
    by_slope, by_rate = (tilted - flat) / SLOPE_PROBE, (raised - flat) / SLOPE_PROBE

    def at(table: Floats) -> Floats:
        return np.take_along_axis(table, ran[:, None], axis=1)

    moved = np.where(at(by_rate) > 0, -at(by_slope) / np.where(at(by_rate) > 0, at(by_rate), 1.0), 0.0)
    total = by_slope[:, drafts] + by_rate[:, drafts] * moved
    found: Floats = -total / (1 + flat[:, drafts])
    return found


def _accepted_with(first: Floats, slope: float, depth: int) -> Floats:
    """Accepted drafts with 0 to `depth` drafts; shape `(G, depth + 1)`."""
    rates = np.clip(first[:, None] + slope * np.arange(depth), 0.0, 1.0)
    return np.concatenate([np.zeros((len(first), 1)), np.cumsum(np.cumprod(rates, axis=1), axis=1)], axis=1)
