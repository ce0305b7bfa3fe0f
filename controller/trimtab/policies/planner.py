"""Which mode holds each band, and what is tried meanwhile? All changes of mind happen here, once a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trimtab.policies.cascade import FIRST_GUESS
from trimtab.policies.probing import (
    CHANCE_TO_PAY,
    PATIENCE_REPORTS,
    Price,
    Probe,
    ProbeClock,
    dwell_for,
    plan_probe,
    probe_from,
    probe_state,
    worth_of_a_look,
)
from trimtab.policies.row_reader import ReportSums
from trimtab.policies.switching import FIRST_STAY_MS, SwitchingCost
from trimtab.policies.valuation import Valuation

# The randomised share may cost this part of the engine's time.
SHARE_COST = 0.002
SHARE_DWELL_STEPS = 16
# Expected gain below which a probe is not worth its trouble.
LEAST_WORTH = 0.005
# What acceptance may be after a time in plain, when nothing is known of it.
GUESSES = (0.5, FIRST_GUESS, 0.9)


@dataclass(frozen=True, slots=True)
class Caution:
    """How sure a change of mode must be, and how curious the planner is; see `GoodputParameters`."""

    margin: float
    doubt: float
    random_share: float
    random_loss: float


@dataclass(frozen=True, slots=True)
class Scene:
    """What the planner looks at.

    Attributes:
        value: Goodput of every mode in every band.
        band: The band the engine is in.
        batch_size: Its batch size.
        explore: Whether anything may be tried.
        interval_steps: Decode steps of the last report.
        last_step: Decode step counter of its last row.
    """

    value: Valuation
    band: int
    batch_size: float
    explore: bool
    interval_steps: int
    last_step: int


class Planner:
    """Holds a mode for every band. Owned by one policy.

    Args:
        steps: Drafts of each mode, ascending.
        bands: Number of bands.
        start: Mode that all bands begin with.
        caution: Parameters.
        seed: Seed of probes and of the randomised share.

    Attributes:
        table: Mode of every band.
        partners: Mode that shares a band at random, or None.
        probe: Probe under way, or None.
    """

    def __init__(self, steps: Sequence[int], bands: int, start: int, caution: Caution, seed: int) -> None:
        self._steps = np.array(steps)
        self._caution = caution
        self._seed = seed
        self._probes = 0
        self.table = [start] * bands
        self.partners: list[int | None] = [None] * bands
        self.probe: Probe | None = None
        # Band and mode that a whole interval's probe left: to come back there is no change of state.
        self._left: tuple[int, int] | None = None
        self._band = 0
        self._regret_ms = np.zeros(len(self._steps))
        self._visit_ms = 0.0
        self._switching = SwitchingCost()
        self._clock = ProbeClock(bands)

    def review(self, sums: ReportSums, scene: Scene, changed: bool) -> None:
        """Decide again after a report."""
        passed_ms = sums.decode_ms
        self._switching.add_prices(sums.switch_ms)
        self._follow_band(scene.band, passed_ms)
        self._clock.advance(scene.band, sums.steps, passed_ms)
        if changed:
            self._clock.changed()
            self._regret_ms[:] = 0.0
        self._close_probe(sums, scene)
        self._settle_here(scene, passed_ms)
        self._settle_elsewhere(scene)
        self._pair(scene)
        if self.probe is None and scene.explore:
            self.probe = self._next_probe(scene)

    def obey(self, value: Valuation) -> None:
        """Leave modes that are not allowed, before anything was seen."""
        for band, mode in enumerate(self.table):
            if value.log_tps[band, mode] == -np.inf:
                self.table[band] = int(value.log_tps[band].argmax())

    def _follow_band(self, band: int, passed_ms: float) -> None:
        self._visit_ms += passed_ms
        if band != self._band:
            self._switching.add_visit(self._visit_ms)
            if self.table[band] != self.table[self._band]:
                self._regret_ms[:] = 0.0
            self._band, self._visit_ms = band, 0.0

    def _close_probe(self, sums: ReportSums, scene: Scene) -> None:
        probe = self.probe
        if probe is None:
            return
        seen = sums.modes.get(probe.mode, 0) > 0
        if seen and probe.probability >= 1 and probe.band == scene.band:
            # The engine is in that mode now: to go back is a change like any other.
            self._left = (probe.band, self.table[probe.band])
            self.table[probe.band] = probe.mode
            self._regret_ms[:] = 0.0
        if seen or not scene.explore or probe.band != scene.band or probe.waited + 1 >= PATIENCE_REPORTS:
            self.probe = None
            self._clock.probed()
        else:
            self.probe = replace(probe, waited=probe.waited + 1)

    def _settle_here(self, scene: Scene, passed_ms: float) -> None:
        """Change the mode of the engine's own band once staying has cost as much as a switch would have.

        That is the rule of the ski rental problem: whatever comes, it costs at most twice what hindsight would
        (Karlin et al., "Competitive snoopy caching", 1988). Where switches are cheap it changes at once.
        """
        value, band, held = scene.value, scene.band, self.table[scene.band]
        if value.log_tps[band, held] == -np.inf:
            self._hold(band, int(value.log_tps[band].argmax()))
            return
        others = value.against(band, held)
        surplus = others.gain - self._caution.doubt * others.sd - self._caution.margin
        self._regret_ms = np.maximum(0.0, self._regret_ms + surplus * passed_ms)
        due = (self._regret_ms > self._switching.price_ms) & (surplus > 0)
        if due.any():
            self._hold(band, int(np.where(due, surplus, -np.inf).argmax()))

    def _hold(self, band: int, mode: int) -> None:
        self.table[band] = mode
        self._regret_ms[:] = 0.0
        if self._left != (band, mode):
            self._clock.changed(band)
        self._left = None
        self.probe = None

    def _settle_elsewhere(self, scene: Scene) -> None:
        """The best mode of every other band, or the present one where a visit would not pay for the switch."""
        value, here = scene.value, self.table[scene.band]
        log_tps = value.log_tps
        best = log_tps.argmax(axis=1)
        # A visit has to pay for the switches into and out of it.
        fee = self._caution.margin + 2 * self._switching.price_ms / max(1.0, self._switching.visit_ms)
        for band, mode in enumerate(best.tolist()):
            if band == scene.band:
                continue
            top = log_tps[band, mode]
            if top - log_tps[band, here] < fee:
                self.table[band] = here
            elif top - log_tps[band, self.table[band]] > self._caution.margin:
                self.table[band] = mode

    def _pair(self, scene: Scene) -> None:
        """Give every band a neighbouring mode that costs next to nothing to run now and then."""
        caution, price_ms = self._caution, self._switching.price_ms
        log_tps = scene.value.log_tps.tolist()
        step_ms = np.exp(scene.value.log_ms[np.arange(len(log_tps)), self.table]).tolist()
        for band, mode in enumerate(self.table):
            worth = log_tps[band]
            floor = worth[mode] - caution.random_loss
            near = [m for m in (mode + 1, mode - 1) if 0 <= m < len(worth) and worth[m] > floor]
            partner = self.partners[band]
            if partner not in near:
                partner = near[0] if near else None
            overhead = caution.random_share * 2 * price_ms / (SHARE_DWELL_STEPS * step_ms[band])
            cheap = scene.explore and caution.random_share > 0 and overhead < SHARE_COST
            self.partners[band] = partner if cheap else None

    # -- probes ----------------------------------------------------------------------------------

    def _next_probe(self, scene: Scene) -> Probe | None:
        target = self._target(scene)
        if target is None:
            return None
        mode, price = target
        if not price.pays or not self._clock.due(scene.band, price):
            return None
        self._probes += 1
        seed = self._seed + 1_000 * self._probes
        if price.favours_whole(scene.interval_steps):
            return Probe(scene.band, mode, 1.0, price.steps, seed)
        return plan_probe(scene.band, mode, price.steps, scene.interval_steps, scene.last_step, seed)

    def _target(self, scene: Scene) -> tuple[int, Price] | None:
        """The mode most worth a look, and the price of looking."""
        value, band, held = scene.value, scene.band, self.table[scene.band]
        others = value.against(band, held)
        gains, sd = others.gain.tolist(), others.sd.tolist()
        could_win = (value.log_ceiling[band] > value.log_tps[band, held]).tolist()
        dwell, best, target = dwell_for(scene.batch_size), LEAST_WORTH, None
        for side in (range(held + 1, len(gains)), range(held - 1, -1, -1)):
            for mode in side:
                worth = worth_of_a_look(gains[mode], sd[mode], dwell, scene.batch_size) if could_win[mode] else 0.0
                if worth > LEAST_WORTH:
                    # The nearest tier that is worth it: what lies beyond shows no more.
                    if worth > best:
                        best, target = worth, mode
                    break
        if target is not None:
            return target, self._price(scene, -gains[target], best)
        if self._steps[held] > 0:
            return None
        return self._out_of_plain(scene, could_win, gains)

    def _out_of_plain(
        self, scene: Scene, could_win: Sequence[bool], gains: Sequence[float]
    ) -> tuple[int, Price] | None:
        """Plain shows no acceptance: look with the fewest drafts, if any number of drafts could win."""
        value, band, held = scene.value, scene.band, self.table[scene.band]
        drafting = np.flatnonzero((self._steps > 0) & ~np.isneginf(value.log_tps[band]))
        if not any(could_win[m] for m in drafting.tolist()):
            return None
        gain = 0.0
        for guess in GUESSES:
            accepted = (1 - guess ** self._steps[drafting]) / (1 - guess) * guess
            worth = np.log1p(accepted) - value.log_ms[band, drafting] + value.log_ms[band, held]
            gain += CHANCE_TO_PAY * max(0.0, float(np.expm1(worth.max()))) / len(GUESSES)
        mode = int(drafting[0])
        return mode, self._price(scene, -gains[mode], gain)

    def _price(self, scene: Scene, loss: float, gain: float) -> Price:
        step_ms = float(np.exp(scene.value.log_ms[scene.band, self.table[scene.band]]))
        # What has lasted so long may be expected to last as long again.
        stay_ms = max(FIRST_STAY_MS, self._clock.age(scene.band) * step_ms)
        return Price(dwell_for(scene.batch_size), step_ms, loss, self._switching.price_ms, gain, stay_ms)

    # -- snapshots -------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        return {
            "table": self.table.copy(),
            "partners": self.partners.copy(),
            "probe": probe_state(self.probe),
            "left": self._left,
            "probes": self._probes,
            "band": self._band,
            "regret_ms": self._regret_ms.tolist(),
            "visit_ms": self._visit_ms,
            "switching": self._switching.state(),
            "clock": self._clock.state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of as many bands and modes; `ValueError` otherwise."""
        table = [int(mode) for mode in state["table"]]
        partners = [None if mode is None else int(mode) for mode in state["partners"]]
        regret_ms = [float(ms) for ms in state["regret_ms"]]
        named = [*table, *(mode for mode in partners if mode is not None)]
        if len(table) != len(self.table) or len(partners) != len(table):
            raise ValueError("the plan is of other bands")
        if len(regret_ms) != len(self._steps) or not all(0 <= mode < len(self._steps) for mode in named):
            raise ValueError("the plan is of other modes")
        self._clock.set_state(state["clock"])
        self._switching.set_state(state["switching"])
        self.table, self.partners, self.probe = table, partners, probe_from(state["probe"])
        self._left = None if state["left"] is None else (int(state["left"][0]), int(state["left"][1]))
        self._probes, self._band = int(state["probes"]), int(state["band"])
        self._regret_ms, self._visit_ms = np.array(regret_ms), float(state["visit_ms"])
