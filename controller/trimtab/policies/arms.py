"""What was earned with each mode in each band, faded with age: the memory of the plain bandits.

A play is a decode step, the reward is emitted tokens a second of step time, age is the band's own step time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from trimtab.domain import Mode, StepRow
from trimtab.policies.bands import band_of
from trimtab.policies.contract import Candidate, PolicyContext, is_informative

NEGLIGIBLE_PLAYS = 0.5


@dataclass(slots=True)
class Arm:
    """Sums over the plays of one mode in one band; `squared` is of tokens a second, by play. Owned by `ArmTable`."""

    tokens: float = 0.0
    accepted: float = 0.0
    requests: float = 0.0
    time_s: float = 0.0
    plays: float = 0.0
    squared: float = 0.0

    @property
    def known(self) -> bool:
        """Whether there is anything left of its plays."""
        return self.plays >= NEGLIGIBLE_PLAYS

    @property
    def goodput_tps(self) -> float:
        """Emitted tokens a second of step time; 0 if never seen."""
        return self.tokens / self.time_s if self.time_s > 0 else 0.0

    @property
    def sd_tps(self) -> float:
        """Standard deviation of a play's reward."""
        if self.plays <= 0:
            return 0.0
        return math.sqrt(max(0.0, self.squared / self.plays - self.goodput_tps**2))

    def fade(self, factor: float) -> None:
        """Let everything count `factor` times as much."""
        self.tokens *= factor
        self.accepted *= factor
        self.requests *= factor
        self.time_s *= factor
        self.plays *= factor
        self.squared *= factor

    def add(self, row: StepRow, step_s: float) -> None:
        """Take in one play."""
        self.tokens += row.emitted_tokens
        self.accepted += row.accepted_tokens
        self.requests += row.fresh_requests + row.stale_requests
        self.time_s += step_s
        self.plays += 1
        self.squared += (row.emitted_tokens / step_s) ** 2


class ArmTable:
    """All modes in all bands.

    Attributes:
        bands: Arms of every band, one a mode.
        current: Band of the newest row.
        seconds: Step time ever spent in each band.
    """

    def __init__(self, context: PolicyContext, modes: Sequence[Mode], half_life_s: float) -> None:
        self._edges = context.bands
        self._number = {mode: i for i, mode in enumerate(modes)}
        self._half_life_s = half_life_s
        self.bands = [[Arm() for _ in modes] for _ in context.bands]
        self.current = 0
        self.seconds = [0.0] * len(context.bands)

    def learn(self, rows: Sequence[StepRow]) -> list[tuple[int, int, StepRow]]:
        """Credit every informative row; those rows with their bands and modes."""
        taken = []
        for row in rows:
            mode = self._number.get(row.mode)
            if mode is None or row.step_ns is None or not is_informative(row):
                continue
            band = self.current = band_of(self._edges, row.batch_size)
            step_s = row.step_ns / 1e9
            fade = 0.5 ** (step_s / self._half_life_s)
            for arm in self.bands[band]:
                arm.fade(fade)
            self.bands[band][mode].add(row, step_s)
            self.seconds[band] += step_s
            taken.append((band, mode, row))
        return taken

    def best_tps(self, band: int) -> float:
        """Largest mean reward of a known arm; 0 without any."""
        return max((arm.goodput_tps for arm in self.bands[band] if arm.known), default=0.0)

    def nearest_known(self, band: int) -> int:
        """The band itself if anything is known there, else the nearest band where something is."""
        known = [i for i, arms in enumerate(self.bands) if any(arm.known for arm in arms)]
        return min(known, key=lambda i: (abs(i - band), i), default=band)

    def state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        arms = [[list(astuple(arm)) for arm in band] for band in self.bands]
        return {"arms": arms, "current": self.current, "seconds": self.seconds.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of the same bands and modes; `ValueError` otherwise."""
        bands = [[Arm(*map(float, sums)) for sums in band] for band in state["arms"]]
        seconds = [float(s) for s in state["seconds"]]
        current = int(state["current"])
        widths = {len(self._number)}
        if len(bands) != len(self.bands) or len(seconds) != len(bands) or {len(band) for band in bands} != widths:
            raise ValueError("the arms are of other bands or modes")
        if not 0 <= current < len(bands):
            raise ValueError(f"there is no band {current}")
        self.bands, self.seconds, self.current = bands, seconds, current


def measured(mode: Mode, arm: Arm) -> Candidate:
    """The arm as it was measured, with an interval of 90%."""
    if not arm.known:
        return Candidate(mode)
    half_width = 1.64 * arm.sd_tps / arm.plays**0.5
    return Candidate(
        mode,
        accepted_drafts=arm.accepted / arm.requests if arm.requests > 0 else None,
        step_ms=arm.time_s / arm.plays * 1e3,
        goodput_tps=arm.goodput_tps,
        goodput_low_tps=max(0.0, arm.goodput_tps - half_width),
        goodput_high_tps=arm.goodput_tps + half_width,
    )


def first_mode(context: PolicyContext, modes: Sequence[Mode]) -> int:
    """Begin with what runs, else with the steps nearest to what the engine was started with."""
    if context.incumbent in modes:
        return modes.index(context.incumbent)
    return min(range(len(modes)), key=lambda m: (abs(modes[m].steps - context.initial_steps), m))
