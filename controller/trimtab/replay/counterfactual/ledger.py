"""Sums up what one policy made of a trace: time, tokens and steps, and how what is not known would move the time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trimtab.replay.arrays import Floats, Ints
from trimtab.replay.trace_model.environment import Stretch, TraceEnvironment
from trimtab.replay.trace_model.outcomes import SLOPE_SD, Evidence

# Blocks of rows whose acceptance errs alike: about the memory of the cascade.
ALIKE_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class Doubts:
    """How the time moves with what is not known, in ms; every entry for one standard deviation.

    Attributes:
        cost: Of the profile's times: those that stand alone by batch size and mode, then what they share; one row.
        own: Of acceptance as counted, by group of blocks and position; shape `(T, D)`.
        lean: Of acceptance taken from the position before; shape `(D,)`.
        slope: Of how acceptance changes from position to position where only sums are known.
        price: Of what a change of mode costs.
        luck_var: Variance from the luck of requests that go on, in ms squared.
    """

    cost: Floats
    own: Floats
    lean: Floats
    slope: float
    price: float
    luck_var: float

    def vector(self) -> Floats:
        """All entries but luck in one row; sources err independently of each other."""
        return np.concatenate([self.cost, self.own.ravel(), self.lean, [self.slope, self.price]])


class Ledger:
    """Sums over the course of one policy. Owned by whoever plays it.

    Attributes:
        work_ms: Time of decode steps by bin, without switches; shape `(n_bins,)`.
        switch_ms: Time of switches by bin.
        tokens: Tokens by evidence and bin; shape `(3, n_bins)`.
        steps: Steps by bin and mode; shape `(n_bins, M)`.
        switches: Changes of mode by bin; shape `(n_bins,)`.
    """

    def __init__(self, environment: TraceEnvironment) -> None:
        self._environment = environment
        n, m = len(environment.bins), len(environment.modes)
        self.work_ms = np.zeros(n)
        self.switch_ms = np.zeros(n)
        self.tokens = np.zeros((3, n))
        self.steps = np.zeros((n, m))
        self.switches = np.zeros(n)
        blocks, depth = environment.course.conditional.shape
        self._cost = np.zeros(environment.costs.own_sd.size)
        self._own = np.zeros((blocks // ALIKE_BLOCKS + 1, depth))
        self._lean = np.zeros(depth)
        self._slope = 0.0
        self._luck_var = 0.0

    def add(self, stretch: Stretch, row: Ints, mode: Ints, share: Floats) -> None:
        """Take in parts of rows.

        Args:
            stretch: Where the rows are.
            row: Numbers of rows within the stretch; shape `(n,)`.
            mode: Places of the modes that ran; shape `(n,)`.
            share: Share of each row's tokens that came out.
        """
        n, m = len(self.work_ms), len(self._environment.modes)
        bins = stretch.bin[row]
        steps = stretch.steps[row, mode] * share
        work_ms = steps * stretch.step_ms[row, mode]
        group = stretch.outcomes.group[row]
        tokens = stretch.rows.tokens[row] * share
        evidence = stretch.outcomes.evidence[group, mode]
        self.work_ms += np.bincount(bins, work_ms, minlength=n)
        self.steps += np.bincount(bins * m + mode, steps, minlength=n * m).reshape(n, m)
        self.tokens += np.bincount(evidence * n + bins, tokens, minlength=3 * n).reshape(3, n)
        self._doubt_costs(stretch, row, mode, work_ms)
        by_group = np.bincount(group * m + mode, work_ms, minlength=len(stretch.outcomes.block) * m)
        self._doubt_outcomes(stretch, np.asarray(by_group, dtype=np.float64).reshape(-1, m))

    def add_recorded(self, stretch: Stretch) -> None:
        """Take in rows as they ran."""
        n, m = len(self.work_ms), len(self._environment.modes)
        bins, rows = stretch.bin, stretch.rows
        self.work_ms += np.bincount(bins, stretch.recorded_ms, minlength=n)
        self.steps += np.bincount(bins * m + stretch.own, rows.steps, minlength=n * m).reshape(n, m)
        self.tokens[Evidence.OBSERVED] += np.bincount(bins, rows.tokens, minlength=n)
        self.switches += np.bincount(bins, rows.switched, minlength=n)

    def add_switches(self, bins: Ints, ms: float) -> None:
        """Take in one change of mode in each of these bins, that took so long."""
        counts = np.bincount(bins, minlength=len(self.switches))
        self.switches += counts
        self.switch_ms += counts * ms

    def doubts(self) -> Doubts:
        """How the time moves with what is not known."""
        costs = self._environment.costs
        alone = self._cost.reshape(costs.own_sd.shape)
        return Doubts(
            cost=np.concatenate([(alone * costs.own_sd).ravel(), np.tensordot(alone, costs.sources, 2)]),
            own=self._own,
            lean=self._lean,
            slope=self._slope * SLOPE_SD,
            price=float(self.switches.sum()) * costs.price.sd_ms,
            luck_var=self._luck_var,
        )

    def _doubt_costs(self, stretch: Stretch, row: Ints, mode: Ints, work_ms: Floats) -> None:
        """Time by the profile's entries that it is proportional to, and inversely proportional to."""
        m, own = len(self._environment.modes), stretch.own[row]
        other = (mode != own) | ~stretch.rows.cost[row]
        size, n = stretch.size[row][other] * m, len(self._cost)
        self._cost += np.bincount(size + mode[other], work_ms[other], minlength=n)
        over = other & stretch.rows.cost[row]
        self._cost -= np.bincount(stretch.size[row][over] * m + own[over], work_ms[over], minlength=n)

    def _doubt_outcomes(self, stretch: Stretch, work_ms: Floats) -> None:
        """`work_ms` by group of rows and mode."""
        outcomes, course = stretch.outcomes, self._environment.course
        by_rate = np.einsum("gm,gmd->gd", work_ms, outcomes.slopes)
        np.add.at(self._own, outcomes.block // ALIKE_BLOCKS, by_rate * course.own_sd[outcomes.block])
        self._lean += (by_rate * course.lean_sd[outcomes.block]).sum(axis=0)
        self._slope += float((work_ms * outcomes.by_slope).sum())
        self._luck_var += float((work_ms**2 * outcomes.luck_var).sum())
