"""The policy that wins: acceptance as a cascade, cost as measured, exploration only where blind.

For every band the mode with the most tokens a second by `valuation.py`, from `cascade.py` (how many drafts will be
accepted, shared by all modes) and `cost.py` (what a step takes, profile times residual). A band changes its mode
(`planner.py`) when the gain beats a margin and its own uncertainty, once staying has cost as much as a switch.
Exploration (`probing.py`):

* one tier up or down where a look may be expected to pay;
* out of plain, which shows no acceptance, by probes whose distance grows with the age of the present state;
* a small randomised share between neighbouring modes, so that logs carry propensities.

Nothing is ever probed that could not win with every draft accepted. All state changes in `learn` and `forget`;
`choose` only puts the present state into words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from trimtab.domain import PLAIN_NATIVE, Mode, StepRow
from trimtab.errors import PolicyError
from trimtab.policies.acceptance import Acceptance
from trimtab.policies.arms import first_mode
from trimtab.policies.bands import DEFAULT_LARGEST
from trimtab.policies.cascade import Floats
from trimtab.policies.contract import BandDecision, Candidate, Decision, PolicyContext, probability_in
from trimtab.policies.cost import CostModel
from trimtab.policies.guard import Guard
from trimtab.policies.limits import Limits
from trimtab.policies.offer import choosable
from trimtab.policies.place import Places
from trimtab.policies.planner import SHARE_DWELL_STEPS, Caution, Planner, Scene
from trimtab.policies.row_reader import ReportSums, RowReader
from trimtab.policies.snapshots import seal, unseal
from trimtab.policies.valuation import Valuation

MIN_DWELL_STEPS = 4
# By how many standard deviations a step may be faster than expected, when asking whether a mode could win at all.
CEILING_SD = 2.0
ONE_SIDED_95 = 1.64
LOG_MS_A_SECOND = math.log(1e3)
# Weight of the newest report in the share of time that goes to decoding.
SHARE_WEIGHT = 0.2


class GoodputParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How careful, how curious, and within which limits.

    Attributes:
        margin: Share by which another mode must be better.
        doubt: Standard deviations of the comparison that the gain must exceed on top.
        random_share: Probability with which a block of steps runs a neighbouring mode; 0 for none.
        random_loss: Only neighbours within this share of the best are drawn.
        step_ms_p95: Limit of the 95th percentile of the step time; None for none.
        token_ms: Limit of the time per token of a request; None for none.
    """

    margin: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.003
    doubt: Annotated[float, msgspec.Meta(ge=0, le=5)] = 0.25
    random_share: Annotated[float, msgspec.Meta(ge=0, le=0.5)] = 0.01
    random_loss: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.1
    step_ms_p95: Annotated[float, msgspec.Meta(gt=0)] | None = None
    token_ms: Annotated[float, msgspec.Meta(gt=0)] | None = None


class GoodputPolicy:
    """The mode with the most tokens a second in every band, learnt with as little exploration as possible."""

    name: ClassVar[str] = "goodput"
    summary: ClassVar[str] = "expected tokens a second from a cascade of acceptance and a model of step time"
    Parameters = GoodputParameters

    def __init__(self, context: PolicyContext, parameters: GoodputParameters | None = None) -> None:
        p = self._parameters = parameters or GoodputParameters()
        self._context = context
        self._modes = choosable(context.modes)
        steps = [mode.steps for mode in self._modes]
        largest = max(
            context.graph_batch_sizes[-1] if context.graph_batch_sizes else DEFAULT_LARGEST, context.bands[-1]
        )
        self._log_width = np.log1p(np.array(steps, dtype=float))
        self._reader = RowReader(self._modes, context.bands, context.profile)
        self._acceptance = Acceptance(steps, context.block_verification)
        native = self._modes.index(PLAIN_NATIVE) if PLAIN_NATIVE in self._modes else None
        self._cost = CostModel(steps, len(context.bands), largest, context.profile is not None, native)
        self._places = Places(context.bands, largest)
        self._guard = Guard()
        self._limits = Limits(self._modes, p.step_ms_p95, p.token_ms, context.kv_capacity_tokens)
        caution = Caution(p.margin, p.doubt, p.random_share, p.random_loss)
        first = first_mode(context, self._modes)
        self._planner = Planner(steps, len(context.bands), first, caution, context.seed, native)
        self._decode_share = 1.0
        self._valuation: Valuation | None = None
        self._decision: Decision | None = None
        if context.profile is not None:
            self._planner.obey(self._value())

    def learn(self, rows: Sequence[StepRow]) -> None:
        """Take in one report and plan again."""
        sums = self._reader.read(rows)
        if not sums.steps:
            return
        self._places.learn(sums)
        changed = self._acceptance.learn(sums)
        self._cost.observe({key: tally.observation() for key, tally in sums.tallies.items()}, sums.steps)
        self._limits.learn(sums)
        if sums.decode_share is not None:
            self._decode_share += SHARE_WEIGHT * (sums.decode_share - self._decode_share)
        self._valuation = self._decision = None
        self._watch(sums)
        self._planner.review(sums, self._scene(sums), changed)

    def choose(self) -> Decision:
        """The plan in words. The same until the next `learn`."""
        if self._decision is None:
            self._decision = self._put_into_words(self._value())
        return self._decision

    def forget(self) -> None:
        """Acceptance starts over; what steps cost is kept."""
        self._acceptance.forget()
        self._valuation = self._decision = None

    def probability_of(self, batch_size: int, mode: Mode) -> float:
        """Probability with which the last decision runs `mode` at this batch size."""
        return probability_in(self._decision, batch_size, mode)

    # -- worth -----------------------------------------------------------------------------------

    def _value(self) -> Valuation:
        """What every mode is worth in every band, as of the last report."""
        if self._valuation is None:
            self._valuation = self._evaluate()
        return self._valuation

    def _evaluate(self) -> Valuation:
        places = self._places
        accepted, loadings = self._acceptance.curve()
        outlook = self._cost.predict(places.places(), places.kind)
        log_ms = outlook.log_ratio
        if self._context.profile is not None:
            log_ms = log_ms + self._log_expected_ms()
        log_tokens = np.log(places.batch_size)[:, None] + LOG_MS_A_SECOND - log_ms
        log_tps = log_tokens + np.log1p(accepted)
        allowed = self._limits.allowed(log_ms, accepted, self._guard.closed)
        return Valuation(
            accepted=accepted,
            log_ms=log_ms,
            log_any_tps=log_tps,
            log_tps=np.where(allowed, log_tps, -np.inf),
            log_ceiling=np.where(
                allowed, log_tokens + self._log_width + CEILING_SD * np.sqrt(outlook.variance), -np.inf
            ),
            spread=np.sqrt(outlook.variance + np.einsum("ij,ij->i", loadings, loadings)),
            loadings=loadings,
            outlook=outlook,
            decode_share=self._decode_share,
        )

    def _log_expected_ms(self) -> Floats:
        """Logarithm of the profile's step times; shape `(n_bands, n_modes)`."""
        places = self._places
        expected: Floats = np.log(
            [
                [self._reader.expected_ms(m, round(size), places.context_tokens) for m in range(len(self._modes))]
                for size in places.batch_size
            ]
        )
        return expected

    def _watch(self, sums: ReportSums) -> None:
        """Tell the guard what came out under drafting modes and what plain would have made of the time."""
        before = self._guard.closed
        self._guard.wait(sums.decode_ms + sums.prefill_ms)
        for band, settled in sums.settled.items():
            plain_ms = self._known_plain_ms(band)
            if not self._modes[self._planner.table[band]].steps:
                self._guard.fade(settled.ms)
            elif plain_ms is not None:
                plain_tokens = settled.ms / plain_ms * settled.requests / settled.rows
                self._guard.add(settled.ms, settled.tokens, plain_tokens)
        if self._guard.closed != before:
            self._valuation = None

    def _known_plain_ms(self, band: int) -> float | None:
        """What a plain step takes, if that was measured or is in the profile."""
        plain = [m for m, mode in enumerate(self._modes) if mode.steps == 0]
        if self._context.profile is None:
            plain = [m for m in plain if self._cost.knows((band, m, self._places.kind))]
        return float(np.exp(self._value().log_ms[band, plain].min())) if plain else None

    def _scene(self, sums: ReportSums) -> Scene:
        value, band = self._value(), self._places.current
        held = self._planner.table[band]
        calm = not self._limits.in_danger(value.log_ms, value.accepted, band, held)
        return Scene(
            value=value,
            band=band,
            batch_size=self._places.batch_size[band],
            explore=calm and not self._guard.closed,
            interval_steps=sums.steps,
            last_step=sums.last_step,
            unread=sums.unread,
        )

    # -- words -----------------------------------------------------------------------------------

    def _put_into_words(self, value: Valuation) -> Decision:
        probe = self._planner.probe
        candidates = self._candidates(value)
        bands = tuple(self._band(i, candidates[i]) for i in range(len(self._context.bands)))
        return Decision(
            bands,
            min_dwell_steps=MIN_DWELL_STEPS,
            exploration_seed=probe.seed if probe else self._context.seed,
            exploration_dwell_steps=probe.dwell if probe else SHARE_DWELL_STEPS,
            alarms=("acceptance_drift",) if self._acceptance.drift_alarm else (),
        )

    def _band(self, i: int, candidates: tuple[Candidate, ...]) -> BandDecision:
        planner, edge = self._planner, self._context.bands[i]
        held, probe = self._modes[planner.table[i]], planner.probe
        if self._guard.closed:
            return BandDecision(edge, held, "guard", candidates=candidates)
        if probe is not None and probe.band == i:
            other = self._modes[probe.mode]
            if probe.probability >= 1:
                return BandDecision(edge, other, "probe", candidates=candidates)
            rest = 1 - probe.probability
            return BandDecision(edge, held, "probe", rest, ((other, probe.probability),), candidates)
        partner = planner.partners[i]
        if probe is None and partner is not None:
            share = self._parameters.random_share
            return BandDecision(edge, held, "exploit", 1 - share, ((self._modes[partner], share),), candidates)
        return BandDecision(edge, held, "exploit", candidates=candidates)

    def _candidates(self, value: Valuation) -> list[tuple[Candidate, ...]]:
        accepted = value.accepted.tolist()
        log_tps = value.log_any_tps
        spread = ONE_SIDED_95 * value.spread
        figures = np.exp(np.stack([value.log_ms, log_tps, log_tps - spread, log_tps + spread], axis=2)).tolist()
        return [tuple(map(Candidate, self._modes, accepted, *zip(*band, strict=True))) for band in figures]

    # -- snapshots -------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Everything learnt and planned."""
        return seal(
            self.name,
            self._context,
            {part: getattr(self, f"_{part}").state() for part in _PARTS} | {"decode_share": self._decode_share},
        )

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        state = unseal(self.name, self._context, snapshot)
        fresh = GoodputPolicy(self._context, self._parameters)
        try:
            for part in _PARTS:
                getattr(fresh, f"_{part}").set_state(state[part])
            fresh._decode_share = float(state["decode_share"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise PolicyError(f"the snapshot of policy {self.name!r} cannot be read: {error}") from error
        self.__dict__.update(fresh.__dict__)


_PARTS = ("reader", "acceptance", "cost", "places", "guard", "limits", "planner")
