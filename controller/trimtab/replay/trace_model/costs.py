"""What steps and switches of a trace cost, by a profile, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trimtab.domain import Mode
from trimtab.policies.profile import CostProfile
from trimtab.replay.arrays import Floats, Ints
from trimtab.replay.profiles.fit import MIN_CELL_STEPS, fit_profile
from trimtab.replay.profiles.samples import StepSamples
from trimtab.replay.profiles.table import ProfileTable
from trimtab.replay.trace_model.survey import SwitchSamples
from trimtab.replay.trace_model.unmeasured_costs import completed

# Rows of a batch size and mode from which its time counts as measured, and that err alike.
MEASURED_ROWS = 10
PATTERN_ROWS = 10
# Standard deviations of the logarithm of a time: measured in a few rows; in a profile from elsewhere (engine starts
# differ by up to 9%, most of which is common to all modes); of a mode that such a profile does not list.
FEW_ROWS_SD = 0.05
ELSEWHERE_SD = 0.03
UNLISTED_SD = 0.15
# Changes of mode that tell their price, and the share of the dearest and of the cheapest that is not looked at.
FEWEST_SWITCHES = 5
TRIMMED = 0.25
# Standard error of such a mean over that of a mean of what it looks at, for normal times.
TRIMMED_NOISE = 2.0


@dataclass(frozen=True, slots=True)
class SwitchPrice:
    """What one change of mode costs. `seen` changes told it; 0: nobody knows, or it was given."""

    ms: float = 0.0
    sd_ms: float = 0.0
    seen: int = 0


@dataclass(frozen=True, slots=True)
class ReplayCosts:
    """Step times for whole columns of rows. Shapes: S listed batch sizes, M modes, W sources of doubt.

    Attributes:
        profile: What steps cost.
        table: The same, for columns.
        level: What times of the trace are to those of the profile, over all.
        rows: Rows by batch size and mode that tell the cost; shape `(S, M)`.
        own_sd: Standard deviation of the logarithm of the profile's times that each shares with no other, up to a
        factor
            common to all; shape `(S, M)`.
        sources: How the logarithm of times moves with what they share, by one standard deviation; shape `(S, M, W)`.
        price: Of a change of mode.
        listed: Modes that a profile from elsewhere lists; empty where it was fitted on the trace.
    """

    profile: CostProfile
    table: ProfileTable
    level: float
    rows: Floats
    own_sd: Floats
    sources: Floats
    price: SwitchPrice
    listed: frozenset[Mode] = frozenset()

    def knows(self, place: int, mode: Mode) -> bool:
        """Whether anybody ever measured what this mode costs, at whatever batch size."""
        return mode in self.listed or bool((self.rows[:, place] >= MEASURED_ROWS).any())


def fitted_costs(
    samples: StepSamples, switches: SwitchSamples, modes: Sequence[Mode], switch_ms: float | None = None
) -> ReplayCosts:
    """Costs by a profile that is fitted on the trace.

    Args:
        samples: Times of the trace that are a cost.
        switches: Times around changes of mode.
        modes: Modes that may run, ascending.
        switch_ms: Price of a change of mode; None learns it.

    Raises:
        DataError: There is too little to learn from.
    """
    profile = fit_profile(samples)
    rows = _rows_by_cell(ProfileTable(profile, modes), samples, modes)
    whole = completed(profile, modes, np.where(rows >= MIN_CELL_STEPS, rows, 0.0))
    held = _held_against(whole.profile, samples, modes)
    return _costs(whole.profile, held, np.hypot(held.sd, whole.own_sd), whole.sources, switches, modes, switch_ms)


def given_costs(
    profile: CostProfile,
    samples: StepSamples,
    switches: SwitchSamples,
    modes: Sequence[Mode],
    switch_ms: float | None = None,
) -> ReplayCosts:
    """Costs by a profile from elsewhere, held against the times of the trace; see `fitted_costs`."""
    held = _held_against(profile, samples, modes)
    listed = {mode for point in profile.points for mode in point.ms}
    unlisted = np.array([0.0 if mode in listed else UNLISTED_SD for mode in modes])
    own_sd = np.hypot(np.where(held.rows >= MEASURED_ROWS, held.sd, ELSEWHERE_SD), unlisted)
    costs = _costs(profile, held, own_sd, np.zeros((*own_sd.shape, 0)), switches, modes, switch_ms)
    return replace(costs, listed=frozenset(listed))


@dataclass(frozen=True, slots=True)
class _Held:
    """A profile held against a trace: rows, mean ratio and standard deviation of the ratio's logarithm; `(S, M)`."""

    table: ProfileTable
    level: float
    rows: Floats
    mean: Floats
    sd: Floats


def _held_against(profile: CostProfile, samples: StepSamples, modes: Sequence[Mode]) -> _Held:
    table = ProfileTable(profile, modes)
    shape = len(table.sizes), len(modes)
    cell, ratio = _ratios(table, samples, modes)
    level = float(ratio.mean()) if len(ratio) else 1.0
    n = shape[0] * shape[1]
    rows = np.bincount(cell, minlength=n)
    mean = np.bincount(cell, ratio, minlength=n) / np.maximum(1, rows)
    square = np.bincount(cell, ratio**2, minlength=n) / np.maximum(1, rows)
    var = (mean / level - 1) ** 2 + np.maximum(0.0, square - mean**2) / level**2 * PATTERN_ROWS / np.maximum(1, rows)
    few = rows < MEASURED_ROWS
    return _Held(
        table=table,
        level=level,
        rows=rows.reshape(shape).astype(float),
        mean=np.where(few, level, mean).reshape(shape),
        sd=np.where(few & (rows > 0), FEW_ROWS_SD, np.sqrt(np.where(few, 0.0, var))).reshape(shape),
    )


def _costs(
    profile: CostProfile,
    held: _Held,
    own_sd: Floats,
    sources: Floats,
    switches: SwitchSamples,
    modes: Sequence[Mode],
    switch_ms: float | None,
) -> ReplayCosts:
    learnt = SwitchPrice(switch_ms) if switch_ms is not None else _learn_price(held, switches, modes)
    return ReplayCosts(profile, held.table, held.level, held.rows, own_sd, sources, learnt)


def _rows_by_cell(table: ProfileTable, samples: StepSamples, modes: Sequence[Mode]) -> Floats:
    cell, _ = _ratios(table, samples, modes)
    steps = np.bincount(cell, samples.steps, minlength=len(table.sizes) * len(modes))
    return np.asarray(steps, dtype=np.float64).reshape(-1, len(modes))


def _ratios(table: ProfileTable, samples: StepSamples, modes: Sequence[Mode]) -> tuple[Ints, Floats]:
    """Batch size and mode of every sample in one number, and its time over the profile's."""
    places = {mode: i for i, mode in enumerate(modes)}
    mode = np.array([places[m] for m in samples.modes] or [0], dtype=np.int64)[samples.mode]
    size = table.cells(samples.batch_size)
    context = samples.context_sum / np.maximum(1, samples.requests)
    expected = table.step_ms(size, samples.requests, context, samples.context_max)
    own = np.take_along_axis(expected, mode[:, None], axis=1)[:, 0]
    return np.asarray(size * len(modes) + mode), samples.step_ms / own


def _learn_price(held: _Held, switches: SwitchSamples, modes: Sequence[Mode]) -> SwitchPrice:
    """Time around a change of mode beyond what its steps cost by themselves: the mean of the middle half, never below
    0.

    A result comes after the next launch, so a change may slow the row before it, and the rows after it catch up:
    only all of them together tell the price.
    """
    samples = switches.samples
    if not len(samples):
        return SwitchPrice()
    cell, ratio = _ratios(held.table, samples, modes)
    excess = samples.step_ms * (1 - held.mean.ravel()[cell] / ratio)
    number, at = np.unique(switches.switch, return_inverse=True)
    prices = np.sort(np.bincount(at, excess))
    cut = int(TRIMMED * len(number))
    kept = prices[cut : len(prices) - cut]
    if len(kept) < FEWEST_SWITCHES:
        return SwitchPrice(seen=0)
    error_ms = TRIMMED_NOISE * float(kept.std() / np.sqrt(len(kept)))
    return SwitchPrice(max(0.0, float(kept.mean())), error_ms, len(number))
