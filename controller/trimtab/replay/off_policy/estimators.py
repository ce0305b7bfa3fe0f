"""What would a candidate have earned on recorded states? Estimates from what a log chose at random.

**What is estimated.** For recorded decode steps i = 1..n with their states x_i (batch, context, time), and modes m:

    tokens per step   V = 1/n sum_i sum_m pi(m | x_i) E[tokens | x_i, m]
    ms per step       S = 1/n sum_i sum_m pi(m | x_i) E[ms | x_i, m]
    goodput           1000 V / S

where pi is the candidate's probability of the mode. Every step keeps the state in which it was recorded: this is the
value of choosing its mode by the candidate for the length of one draw, not that of a server that the candidate has run
for hours, where other batches would have formed. What went before a step, and so whether it paid for a switch, stays
as it was. What is not recorded in the state is averaged over.

**Estimators**, with the weight `w = pi(m) / p` of the mode that ran with probability p, y tokens or ms, and q the
model's expectation (`reward_model.py`):

    ips    1/n sum w y                     inverse propensity score (Horvitz and Thompson, 1952)
    snips  sum w y / sum w                 self-normalised (Swaminathan and Joachims, 2015)
    dm     1/n sum_i sum_m pi(m) q(x, m)   direct method: as good as the model
    dr     dm + 1/n sum w (y - q)          doubly robust (Dudik, Langford and Li, 2011)

The goodput of `snips` is that of `ips`: the weights cancel.

**Intervals** come from the blocks of steps that one draw chose the mode for (`statistics/bootstrap.py`). The states
are taken as given, so a block counts with what its draw and its luck made of it and not with how busy it was: from
every block's contribution the model's expectation under the candidate is taken, and the sum of these expectations,
which no draw moves, is added as a constant. A bad model makes intervals wider, never narrower. The interval of `dm`
is that of its fit (each block's influence on it) and knows nothing of what is wrong with the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from trimtab.domain import Mode
from trimtab.replay.arrays import Floats
from trimtab.replay.off_policy.choices import Choices
from trimtab.replay.off_policy.reward_model import Expected, expect
from trimtab.replay.off_policy.support import Support, model_fails, support_of, unusable, weights_fail
from trimtab.replay.statistics.bootstrap import BlockBootstrap
from trimtab.replay.statistics.interval import Interval

MS_PER_S = 1e3


class Estimate(msgspec.Struct, frozen=True):
    """What one estimator says, or why it says nothing. Intervals are of 95%.

    Attributes:
        estimator: `ips`, `snips`, `dm` or `dr`.
        tokens_per_s: Goodput.
        tokens_per_step: Tokens of a decode step.
        step_ms: Its time.
        refused: Why there is no estimate; None if there is one.
    """

    estimator: str
    tokens_per_s: Interval | None = None
    tokens_per_step: Interval | None = None
    step_ms: Interval | None = None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """What blocks contribute to an estimate. Shapes: B blocks.

    Attributes:
        rewards: Tokens and ms; shape `(2, B)`.
        steps: Steps that these are of; shape `(B,)`.
    """

    rewards: Floats
    steps: Floats


@dataclass(frozen=True, slots=True)
class Ground:
    """What all estimators build on. Shapes: N stretches."""

    choices: Choices
    expected: Expected

    def constant(self, values: Floats) -> Floats:
        """The sum over all stretches, shared by the blocks alike."""
        blocks = len(self.choices.block_starts)
        return np.repeat(values.sum(axis=-1, keepdims=True) / blocks, blocks, axis=-1)

    def around(self, drawn: Floats, given: Floats) -> Floats:
        """Blocks of what was drawn less what was to be expected of them, on the level of what was drawn."""
        return self.choices.by_block(drawn - given) + self.constant(given)


def _ips(ground: Ground) -> Parts:
    choices = ground.choices
    rewards = ground.around(choices.weights * choices.rewards, ground.expected.under(choices))
    return Parts(rewards, ground.constant(choices.steps))


def _snips(ground: Ground) -> Parts:
    choices = ground.choices
    return Parts(_ips(ground).rewards, ground.around(choices.weights * choices.steps, choices.steps))


def _dm(ground: Ground) -> Parts:
    choices, expected = ground.choices, ground.expected
    influence = choices.by_block(expected.influence)
    level = ground.constant(expected.under(choices))
    return Parts(influence - influence.mean(axis=1, keepdims=True) + level, ground.constant(choices.steps))


def _dr(ground: Ground) -> Parts:
    choices, expected = ground.choices, ground.expected
    surprise = choices.by_block(choices.weights * (choices.rewards - expected.of_own(choices)))
    return Parts(surprise + ground.constant(expected.under(choices)), ground.constant(choices.steps))


ESTIMATORS: dict[str, Callable[[Ground], Parts]] = {"ips": _ips, "snips": _snips, "dm": _dm, "dr": _dr}


def estimate_choices(
    choices: Choices, modes: Sequence[Mode], estimators: Sequence[str] = tuple(ESTIMATORS), seed: int = 0
) -> tuple[Support, tuple[Estimate, ...]]:
    """What each estimator says of the candidate, and how far the log supports it.

    Args:
        choices: The log.
        modes: What the numbers of modes stand for.
        estimators: Keys of `ESTIMATORS`.
        seed: Of the resampling.
    """
    if (fault := unusable(choices)) is not None:
        return Support(), tuple(Estimate(name, refused=fault) for name in estimators)
    unknown = np.isnan(choices.probability)
    known = choices.where(~unknown)
    expected = expect(known)
    support = support_of(known, expected.under(known), float(choices.steps[unknown].sum()))
    weights_fault, model_fault = weights_fail(known, support, modes), model_fails(known, modes)
    bootstrap = BlockBootstrap(support.blocks, seed)
    ground = Ground(known, expected)
    found = []
    for name in estimators:
        fault = model_fault if name == "dm" else weights_fault
        found.append(Estimate(name, refused=fault) if fault else _estimate(name, ground, bootstrap))
    return support, tuple(found)


def _estimate(name: str, ground: Ground, bootstrap: BlockBootstrap) -> Estimate:
    parts = ESTIMATORS[name](ground)
    tokens, ms = parts.rewards
    return Estimate(
        name,
        tokens_per_s=bootstrap.ratio(tokens * MS_PER_S, ms),
        tokens_per_step=bootstrap.ratio(tokens, parts.steps),
        step_ms=bootstrap.ratio(ms, parts.steps),
    )
