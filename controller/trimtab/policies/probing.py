"""When is a look at another mode worth its price, how long does it last, and where does it fall?

A probe runs inside a lease: one block of `dwell` steps of the coming interval, at a place drawn at random, runs the
other mode. Each of the B blocks of an interval is that one with probability 1/B, which is the propensity that the
lease carries; the seed is drawn until exactly one of them is (systematic sampling), so a probe is neither missed
nor doubled. Where an interval has no room for two blocks the whole interval is the probe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trimtab.policies.cost import NOISE
from trimtab_sglang.lease import uniform

# Outcomes of the first position that tell low from high acceptance, and steps that a time needs.
REQUESTS_A_PROBE = 32
SHORTEST_DWELL = 5
LONGEST_DWELL = 16
# The longer nothing has changed, the longer nothing will: the wait grows with the age of the present state.
SHORTEST_WAIT_STEPS = 32
WAIT_SHARE_OF_AGE = 1 / 6
# Probes may take this share of the engine's time. Out of plain, one in four may find another acceptance.
MOST_TIME_SHARE = 0.05
CHANCE_TO_PAY = 0.25
# Variance of what one request's step and of what one step time say about the logarithm of goodput.
OUTCOME_VAR = 0.35**2
PATIENCE_REPORTS = 4
MOST_TRIES = 64


@dataclass(frozen=True, slots=True)
class Probe:
    """A look at `mode` in `band`. `probability` 1 is a whole interval, less is that of one block of `dwell` steps."""

    band: int
    mode: int
    probability: float
    dwell: int
    seed: int
    waited: int = 0


@dataclass(frozen=True, slots=True)
class Price:
    """What a probe costs and can win, in ms of the present mode's time."""

    steps: int
    step_ms: float
    loss: float
    switch_ms: float
    gain: float
    stay_ms: float

    @property
    def cost_ms(self) -> float:
        """Two switches, and the worse mode while it runs."""
        return 2 * self.switch_ms + self.steps * self.step_ms * max(0.0, self.loss)

    @property
    def pays(self) -> bool:
        """Whether the expected gain over a stay outweighs the cost."""
        return self.gain * self.stay_ms > self.cost_ms

    def favours_whole(self, interval_steps: int) -> bool:
        """Whether a whole interval is cheaper: with a chance the engine stays in the mode and saves two switches."""
        longer_ms = (interval_steps - self.steps) * self.step_ms * max(0.0, self.loss)
        return longer_ms < CHANCE_TO_PAY * 2 * self.switch_ms

    @property
    def wait_ms(self) -> float:
        """Time between such probes that keeps them within their share."""
        return self.cost_ms / MOST_TIME_SHARE


class ProbeClock:
    """How long ago the last probe was, and how old the present state is. Owned by one policy."""

    def __init__(self, bands: int) -> None:
        self._since_steps = 0
        self._since_ms = 0.0
        self._age = [0] * bands

    def advance(self, band: int, steps: int, passed_ms: float) -> None:
        """Let time pass in this band."""
        self._since_steps += steps
        self._since_ms += passed_ms
        self._age[band] += steps

    def age(self, band: int) -> int:
        """Steps since the state of this band was new."""
        return self._age[band]

    def changed(self, band: int | None = None) -> None:
        """The state of a band, or of all, is new."""
        for i in range(len(self._age)) if band is None else (band,):
            self._age[i] = 0

    def probed(self) -> None:
        """A probe was made."""
        self._since_steps, self._since_ms = 0, 0.0

    def due(self, band: int, price: Price) -> bool:
        """Whether the wait is over."""
        wait = max(SHORTEST_WAIT_STEPS, WAIT_SHARE_OF_AGE * self._age[band])
        return self._since_steps >= wait and self._since_ms >= price.wait_ms

    def state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        return {"since_steps": self._since_steps, "since_ms": self._since_ms, "age": self._age.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of as many bands."""
        age = [int(a) for a in state["age"]]
        if len(age) != len(self._age):
            raise ValueError("the probe clock is of other bands")
        self._since_steps, self._since_ms, self._age = int(state["since_steps"]), float(state["since_ms"]), age


def dwell_for(batch_size: float) -> int:
    """Steps of a probe at this batch size: the first one only pays the switch."""
    needed = math.ceil(REQUESTS_A_PROBE / max(1.0, batch_size)) + 1
    return min(LONGEST_DWELL, max(SHORTEST_DWELL, needed))


def worth_of_a_look(gain: float, sd: float, dwell: int, batch_size: float) -> float:
    """Expected gain from a probe after which the better mode is taken: the knowledge gradient.

    With g and s the mean and standard deviation of the gain and v the variance of what the probe will say, the
    mean will move by `m = s^2 / sqrt(s^2 + v)`, and the worth is `m phi(g / m) + g Phi(g / m)` for `g < 0`
    (Frazier, Powell, Dayanik, "A knowledge-gradient policy for sequential information collection", 2008).
    """
    if sd <= 0 or gain <= -0.99:
        return 0.0
    noise = OUTCOME_VAR / (dwell * max(1.0, batch_size)) + NOISE**2 / dwell
    move = sd * sd / math.sqrt(sd * sd + noise)
    z = min(0.0, gain) / move
    if z < -5.0:
        return 0.0
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return move * (density + z * (1 + math.erf(z / math.sqrt(2))) / 2)


def plan_probe(band: int, mode: int, dwell: int, interval_steps: int, last_step: int, seed: int) -> Probe:
    """A probe in the interval after `last_step` that is expected to have `interval_steps` steps."""
    blocks = interval_steps // dwell
    if blocks < 2:
        return Probe(band, mode, 1.0, dwell, seed)
    first = last_step // dwell + 1
    probability = 1 / blocks
    for attempt in range(seed, seed + MOST_TRIES):
        drawn = sum(uniform(attempt, block) >= 1 - probability for block in range(first, first + blocks))
        if drawn == 1:
            return Probe(band, mode, probability, dwell, attempt)
    return Probe(band, mode, 1.0, dwell, seed)


def probe_state(probe: Probe | None) -> dict[str, Any] | None:
    """Plain values for a snapshot."""
    return None if probe is None else asdict(probe)


def probe_from(state: Mapping[str, Any] | None) -> Probe | None:
    """The probe of a `probe_state`."""
    return None if state is None else Probe(**state)
