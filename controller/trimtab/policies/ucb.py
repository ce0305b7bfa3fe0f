"""Discounted upper confidence bounds over modes in each band, with goodput as the reward.

The rule is discounted UCB (Garivier and Moulines, "On Upper-Confidence Bound Policies for Switching Bandit
Problems", ALT 2011): play the arm with the largest `X(i) + 2 B sqrt(xi log(n) / N(i))`, where `X(i)` and
`N(i)` are the mean reward and the number of plays of arm i with weights that fade with age, and `n` is the
sum of all `N(i)`. Here a play is a decode step, the reward is emitted tokens a second, age is the band's own
step time, and `B` is taken relative to the band's best mean, so that the bonus has the reward's scale:
`exploration` stands for `2 B sqrt(xi)` as a share of that mean.

Three things are added for an engine: a band knows nothing at first, so it borrows the relative values of its
neighbours; an arm that was never tried is tried only next to the best one known (goodput has one peak in the
number of steps); and an arm keeps the band for a while and loses it only by a margin, because a switch costs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec

from trimtab.domain import Mode, StepRow
from trimtab.errors import PolicyError
from trimtab.policies.contract import (
    BandDecision,
    Candidate,
    Decision,
    PolicyContext,
    is_informative,
    probability_in,
)
from trimtab.policies.offer import choosable
from trimtab.policies.snapshots import seal, unseal

NEGLIGIBLE_PLAYS = 0.5


class UcbParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast UCB forgets and how hard it looks around.

    Attributes:
        half_life_s: Step time in a band after which what was seen there counts half.
        exploration: Coefficient of the bonus, as a share of the band's best mean.
        margin: Share by which another mode's bound must beat the band's present mode.
        stay_s: Step time for which a band keeps a mode, at least.
        neighbour_s: Step time that the neighbouring bands' opinion of a mode is worth, at most.
    """

    half_life_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 2.0
    exploration: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.2
    margin: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.02
    stay_s: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 0.5
    neighbour_s: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 0.25


@dataclass(slots=True)
class Arm:
    """What was seen of one mode in one band, faded with age. Owned by `BandArms`."""

    tokens: float = 0.0
    accepted: float = 0.0
    requests: float = 0.0
    time_s: float = 0.0
    plays: float = 0.0

    @property
    def goodput_tps(self) -> float:
        """Emitted tokens a second of step time; 0 if never seen."""
        return self.tokens / self.time_s if self.time_s > 0 else 0.0

    def fade(self, factor: float) -> None:
        """Let everything count `factor` times as much."""
        self.tokens *= factor
        self.accepted *= factor
        self.requests *= factor
        self.time_s *= factor
        self.plays *= factor


class BandArms:
    """All modes in one band, and the mode that holds it."""

    __slots__ = ("arms", "held", "held_s")

    def __init__(self, n_modes: int, held: int) -> None:
        self.arms = [Arm() for _ in range(n_modes)]
        self.held = held
        self.held_s = math.inf

    def add(self, mode: int, row: StepRow, step_s: float, fade: float) -> None:
        """Take in one decode step."""
        for arm in self.arms:
            arm.fade(fade)
        arm = self.arms[mode]
        arm.tokens += row.emitted_tokens
        arm.accepted += row.accepted_tokens
        arm.requests += row.fresh_requests + row.stale_requests
        arm.time_s += step_s
        arm.plays += 1
        self.held_s += step_s

    def hold(self, mode: int) -> None:
        """Give the band to this mode."""
        if mode != self.held:
            self.held, self.held_s = mode, 0.0

    @property
    def best_tps(self) -> float:
        """Largest mean reward of an arm that was played; 0 without any."""
        return max((arm.goodput_tps for arm in self.arms if arm.plays >= NEGLIGIBLE_PLAYS), default=0.0)


@dataclass(frozen=True, slots=True)
class Estimate:
    """One mode in one band, relative to the best mean of the band. `value` None: nobody knows."""

    value: float | None
    bonus: float

    @property
    def index(self) -> float:
        """Upper bound by which modes are compared."""
        return -math.inf if self.value is None else self.value + self.bonus


class UcbPolicy:
    """Plays, in each band, the mode with the largest upper bound on its goodput."""

    name: ClassVar[str] = "ucb"
    summary: ClassVar[str] = "discounted UCB over modes in each band, goodput as reward"
    Parameters = UcbParameters

    def __init__(self, context: PolicyContext, parameters: UcbParameters | None = None) -> None:
        self._context = context
        self._parameters = parameters or UcbParameters()
        self._modes = choosable(context.modes)
        self._number = {mode: i for i, mode in enumerate(self._modes)}
        start = _first_mode(context, self._modes)
        self._bands = [BandArms(len(self._modes), start) for _ in context.bands]
        self._current = 0
        self._decision: Decision | None = None

    def learn(self, rows: Sequence[StepRow]) -> None:
        """Credit every informative row to its band and mode."""
        for row in rows:
            mode = self._number.get(row.mode)
            if mode is None or row.step_ns is None or not is_informative(row):
                continue
            self._current = max(0, bisect_right(self._context.bands, row.batch_size) - 1)
            step_s = row.step_ns / 1e9
            fade = 0.5 ** (step_s / self._parameters.half_life_s)
            self._bands[self._current].add(mode, row, step_s, fade)

    def choose(self) -> Decision:
        """The mode with the largest bound in every band; one more look where the engine is."""
        shares = [_shares(band) for band in self._bands]
        self._decision = Decision(tuple(self._choose_in(i, shares) for i in range(len(self._bands))))
        return self._decision

    def _choose_in(self, i: int, shares: Sequence[Sequence[float | None]]) -> BandDecision:
        band, parameters = self._bands[i], self._parameters
        estimates = list(self._estimates(i, shares))
        best = max(range(len(estimates)), key=lambda m: (estimates[m].index, m == band.held))
        reason = "exploit"
        may_move = i != self._current or band.held_s >= parameters.stay_s
        if may_move and estimates[best].value is not None:
            untried = _untried_neighbour(estimates, best) if i == self._current else None
            if untried is not None:
                best, reason = untried, "probe"
            elif estimates[best].index < estimates[band.held].index * (1 + parameters.margin):
                best = band.held
            band.hold(best)
        if reason == "exploit" and _is_bet(estimates, band.held):
            reason = "explore"
        candidates = tuple(
            _candidate(mode, arm, estimate, band.best_tps)
            for mode, arm, estimate in zip(self._modes, band.arms, estimates, strict=True)
        )
        return BandDecision(self._context.bands[i], self._modes[band.held], reason, candidates=candidates)

    def _estimates(self, i: int, shares: Sequence[Sequence[float | None]]) -> Iterator[Estimate]:
        """Own rewards of band `i`, filled up with what the neighbours think of each mode."""
        parameters, band = self._parameters, self._bands[i]
        best_tps = band.best_tps
        all_plays = sum(arm.plays for arm in band.arms)
        plays_a_second = all_plays / max(1e-9, sum(arm.time_s for arm in band.arms))
        log_plays = math.log(max(math.e, all_plays))
        for m, arm in enumerate(band.arms):
            opinion, weight_s = _opinion(shares, i, m)
            weight_s *= parameters.neighbour_s
            own_s = arm.time_s if best_tps and arm.plays >= NEGLIGIBLE_PLAYS else 0.0
            if own_s + weight_s <= 0:
                yield Estimate(None, 0.0)
                continue
            own = arm.goodput_tps / best_tps if own_s else 0.0
            value = (own * own_s + opinion * weight_s) / (own_s + weight_s)
            plays = max(1.0, (own_s + weight_s) * plays_a_second)
            # Only the band that the engine is in can show anything: elsewhere uncertainty is no reason to look.
            bonus = parameters.exploration * math.sqrt(log_plays / plays) if i == self._current else 0.0
            yield Estimate(value, bonus)

    def probability_of(self, batch_size: int, mode: Mode) -> float:
        """1 for the band's mode: UCB draws no lots."""
        return probability_in(self._decision, batch_size, mode)

    def forget(self) -> None:
        """Begin again from the modes that hold the bands: rewards are made of acceptance."""
        self._bands = [BandArms(len(self._modes), band.held) for band in self._bands]

    def snapshot(self) -> dict[str, Any]:
        """Sums by band and mode, the mode that holds each band and for how long."""
        bands = [
            {
                "held": band.held,
                "held_s": band.held_s if math.isfinite(band.held_s) else None,
                "arms": [[a.tokens, a.accepted, a.requests, a.time_s, a.plays] for a in band.arms],
            }
            for band in self._bands
        ]
        return seal(self.name, self._context, {"current": self._current, "bands": bands})

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from the sums of a snapshot."""
        state = unseal(self.name, self._context, snapshot)
        try:
            bands = [_band_from(saved, len(self._modes)) for saved in state["bands"]]
            current = int(state["current"])
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyError(f"the snapshot of policy {self.name!r} cannot be read: {error}") from error
        if len(bands) != len(self._bands) or not 0 <= current < len(bands):
            raise PolicyError(f"the snapshot of policy {self.name!r} is of other bands: start afresh")
        self._bands, self._current = bands, current


def _first_mode(context: PolicyContext, modes: Sequence[Mode]) -> int:
    """Begin with what runs, else with the steps nearest to what the engine was started with."""
    if context.incumbent in modes:
        return modes.index(context.incumbent)
    return min(range(len(modes)), key=lambda m: (abs(modes[m].steps - context.initial_steps), m))


def _shares(band: BandArms) -> list[float | None]:
    """Each mode's mean reward as a share of the band's best; None where it was never played."""
    best = band.best_tps
    return [arm.goodput_tps / best if best and arm.plays >= NEGLIGIBLE_PLAYS else None for arm in band.arms]


def _opinion(shares: Sequence[Sequence[float | None]], i: int, mode: int) -> tuple[float, float]:
    """What the bands around `i` think of a mode, and how much that weighs: halved with every band of distance."""
    total = weight = 0.0
    for j, others in enumerate(shares):
        share = others[mode]
        if j != i and share is not None:
            near = 0.5 ** (abs(j - i) - 1)
            total, weight = total + near * share, weight + near
    return (total / weight, min(1.0, weight)) if weight else (0.0, 0.0)


def _untried_neighbour(estimates: Sequence[Estimate], best: int) -> int | None:
    """A mode beside the best one that nobody knows, the one with more steps first."""
    for m in (best + 1, best - 1):
        if 0 <= m < len(estimates) and estimates[m].value is None:
            return m
    return None


def _is_bet(estimates: Sequence[Estimate], held: int) -> bool:
    """Whether the mode holds the band by its bonus rather than by its mean."""
    mine = estimates[held].value
    return mine is None or any(e.value is not None and e.value > mine for e in estimates)


def _candidate(mode: Mode, arm: Arm, estimate: Estimate, best_tps: float) -> Candidate:
    known = estimate.value is not None and best_tps > 0
    goodput = (estimate.value or 0.0) * best_tps
    half_width = estimate.bonus * best_tps
    return Candidate(
        mode,
        accepted_drafts=arm.accepted / arm.requests if arm.requests > 0 else None,
        step_ms=arm.time_s / arm.plays * 1e3 if arm.plays > 0 else None,
        goodput_tps=goodput if known else None,
        goodput_low_tps=max(0.0, goodput - half_width) if known else None,
        goodput_high_tps=goodput + half_width if known else None,
    )


def _band_from(saved: Mapping[str, Any], n_modes: int) -> BandArms:
    arms = [Arm(*(float(x) for x in sums)) for sums in saved["arms"]]
    held = int(saved["held"])
    if len(arms) != n_modes or not 0 <= held < n_modes:
        raise ValueError("it is of other modes")
    band = BandArms(n_modes, held)
    band.arms = arms
    band.held_s = math.inf if saved["held_s"] is None else float(saved["held_s"])
    return band
