"""A decision kept within the steps that a pin leaves: nothing else is chosen, and nothing else is tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from trimtab.domain import Mode, StepRange
from trimtab.policies.contract import BandDecision, Decision
from trimtab.policies.offer import choosable

# A mode that holds a band is not left for one that promises less than this much more: a switch costs.
MARGIN = 0.02


def confined(decision: Decision, allowed: StepRange, offered: Iterable[Mode], held: Mapping[int, Mode]) -> Decision:
    """The decision with every mode outside the range replaced, and every probability of one given to the band's mode.

    In place of a mode outside comes the one that promises the most tokens a second, by the policy's own candidates;
    without those, the one with the nearest steps.

    Args:
        decision: What the policy chose.
        allowed: The steps that the pin leaves.
        offered: Modes that the engine can be told to run; at least one in the range.
        held: The mode that runs in each band now, by the band's smallest batch size.
    """
    modes = choosable(mode for mode in offered if mode in allowed)
    bands = tuple(_confined_band(band, allowed, modes, held.get(band.min_batch_size)) for band in decision.bands)
    return replace(decision, bands=bands)


def _confined_band(band: BandDecision, allowed: StepRange, modes: Sequence[Mode], held: Mode | None) -> BandDecision:
    if band.mode not in allowed:
        mode = _best(band, modes, held)
        return BandDecision(band.min_batch_size, mode, "pin", candidates=band.candidates)
    kept = tuple((mode, p) for mode, p in band.alternatives if mode in allowed)
    if len(kept) == len(band.alternatives):
        return band
    return msgspec.structs.replace(band, probability=1 - sum(p for _, p in kept), alternatives=kept)


def _best(band: BandDecision, modes: Sequence[Mode], held: Mode | None) -> Mode:
    worth = {c.mode: c.goodput_tps for c in band.candidates if c.mode in modes and c.goodput_tps is not None}
    if not worth:
        return nearest(modes, band.mode.steps)
    best = max(worth, key=lambda mode: worth[mode])
    return held if held in worth and worth[held] * (1 + MARGIN) >= worth[best] else best


def nearest(modes: Sequence[Mode], steps: int) -> Mode:
    """The mode with the nearest number of steps; of two, the one with fewer."""
    return min(modes, key=lambda mode: (abs(mode.steps - steps), mode.steps))
