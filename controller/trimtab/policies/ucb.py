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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec

from trimtab.domain import Mode, StepRow
from trimtab.errors import PolicyError
from trimtab.policies.arms import Arm, ArmTable, first_mode
from trimtab.policies.contract import BandDecision, Candidate, Decision, PolicyContext, probability_in
from trimtab.policies.offer import choosable
from trimtab.policies.snapshots import seal, unseal


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
        self._held = [first_mode(context, self._modes)] * len(context.bands)
        self._decision: Decision | None = None
        self.forget()

    def learn(self, rows: Sequence[StepRow]) -> None:
        """Credit every informative row to its band and mode."""
        self._arms.learn(rows)

    def choose(self) -> Decision:
        """The mode with the largest bound in every band; one more look where the engine is."""
        shares = [_shares(self._arms, band) for band in range(len(self._context.bands))]
        self._decision = Decision(tuple(self._choose_in(band, shares) for band in range(len(shares))))
        return self._decision

    def _choose_in(self, band: int, shares: Sequence[Sequence[float | None]]) -> BandDecision:
        estimates = list(self._estimates(band, shares))
        reason = "probe" if self._take_best(band, estimates) else "exploit"
        held, best_tps = self._held[band], self._arms.best_tps(band)
        if reason == "exploit" and _is_bet(estimates, held):
            reason = "explore"
        candidates = tuple(
            _candidate(mode, arm, estimate, best_tps)
            for mode, arm, estimate in zip(self._modes, self._arms.bands[band], estimates, strict=True)
        )
        return BandDecision(self._context.bands[band], self._modes[held], reason, candidates=candidates)

    def _take_best(self, band: int, estimates: Sequence[Estimate]) -> bool:
        """Give the band to another mode if one is due; whether that one was never tried."""
        here, held = band == self._arms.current, self._held[band]
        best = max(range(len(estimates)), key=lambda m: (estimates[m].index, m == held))
        stayed_s = self._arms.seconds[band] - self._since_s[band]
        if estimates[best].value is None or (here and stayed_s < self._parameters.stay_s):
            return False
        untried = _untried_neighbour(estimates, best) if here else None
        if untried is not None:
            best = untried
        elif estimates[best].index < estimates[held].index * (1 + self._parameters.margin):
            best = held
        if best != held:
            self._held[band], self._since_s[band] = best, self._arms.seconds[band]
        return untried is not None

    def _estimates(self, band: int, shares: Sequence[Sequence[float | None]]) -> Iterator[Estimate]:
        """Own rewards of the band, filled up with what the neighbours think of each mode."""
        parameters, arms, best_tps = self._parameters, self._arms.bands[band], self._arms.best_tps(band)
        all_plays = sum(arm.plays for arm in arms)
        plays_a_second = all_plays / max(1e-9, sum(arm.time_s for arm in arms))
        log_plays = math.log(max(math.e, all_plays))
        for m, arm in enumerate(arms):
            opinion, weight_s = _opinion(shares, band, m)
            weight_s *= parameters.neighbour_s
            own_s = arm.time_s if best_tps and arm.known else 0.0
            if own_s + weight_s <= 0:
                yield Estimate(None, 0.0)
                continue
            own = arm.goodput_tps / best_tps if own_s else 0.0
            value = (own * own_s + opinion * weight_s) / (own_s + weight_s)
            plays = max(1.0, (own_s + weight_s) * plays_a_second)
            # Only the band that the engine is in can show anything: elsewhere uncertainty is no reason to look.
            bonus = parameters.exploration * math.sqrt(log_plays / plays) if band == self._arms.current else 0.0
            yield Estimate(value, bonus)

    def probability_of(self, batch_size: int, mode: Mode) -> float:
        """1 for the band's mode: UCB draws no lots."""
        return probability_in(self._decision, batch_size, mode)

    def forget(self) -> None:
        """Begin again from the modes that hold the bands: rewards are made of acceptance."""
        self._arms = ArmTable(self._context, self._modes, self._parameters.half_life_s)
        self._since_s = [-math.inf] * len(self._context.bands)

    def snapshot(self) -> dict[str, Any]:
        """What was earned, the mode that holds each band and since when."""
        since_s = [s if math.isfinite(s) else None for s in self._since_s]
        state = {"arms": self._arms.state(), "held": self._held.copy(), "since_s": since_s}
        return seal(self.name, self._context, state)

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        state = unseal(self.name, self._context, snapshot)
        try:
            held = [int(mode) for mode in state["held"]]
            since_s = [-math.inf if s is None else float(s) for s in state["since_s"]]
            if not len(held) == len(since_s) == len(self._held) or not set(held) <= set(range(len(self._modes))):
                raise ValueError("it is of other bands or modes")
            self._arms.set_state(state["arms"])
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyError(f"the snapshot of policy {self.name!r} cannot be read: {error}") from error
        self._held, self._since_s = held, since_s


def _shares(arms: ArmTable, band: int) -> list[float | None]:
    """Each mode's mean reward as a share of the band's best; None where it was never played."""
    best = arms.best_tps(band)
    return [arm.goodput_tps / best if best and arm.known else None for arm in arms.bands[band]]


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
