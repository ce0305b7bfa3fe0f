"""Does a log support a candidate: did it choose, often enough and with known probabilities, what the candidate wants?

What is not supported is said in words, as data: an estimate without support is refused, it never raises.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from trimtab.domain import Mode
from trimtab.replay.arrays import Floats
from trimtab.replay.off_policy.choices import Choices

# Steps without a known probability that may be left out: the first ones of an engine, before its first lease.
MOST_UNKNOWN = 0.05
# Steps in which the candidate may want what the log could not choose.
MOST_UNSUPPORTED = 0.005
# Equally heavy blocks that an estimate has to rest on; from here on the intervals are tested.
LEAST_EFFECTIVE = 100
# Weight that one block may have among all.
MOST_OF_ONE = 0.05
# Blocks in a mode that a model of it takes.
LEAST_OF_MODE = 20
# Standard errors that the mean weight may be below 1.
WEIGHT_DOUBT = 4.0


class Support(msgspec.Struct, frozen=True):
    """How much of a log speaks for a candidate.

    Attributes:
        steps: Decode steps with a known probability.
        unknown_steps: Others.
        blocks: Draws that chose the mode of these steps.
        effective_blocks: Equally heavy blocks that would be as sure: the least of `(sum x)^2 / sum x^2` for x the
            weight of each block, and the tokens and the time that it stands for.
        largest_share: Part of the weight that the heaviest block has.
        mean_weight: Mean weight of a step; around 1 where the log could choose all that the candidate wants.
        unsupported_share: Steps in which the candidate wants a mode that the log could not choose or never chose.
    """

    steps: float = 0.0
    unknown_steps: float = 0.0
    blocks: int = 0
    effective_blocks: float = 0.0
    largest_share: float = 0.0
    mean_weight: float = 0.0
    unsupported_share: float = 0.0


def nothing_known(share: float = 1.0) -> str:
    """That so much of a log cannot be used."""
    return (
        f"{share:.1%} of the steps do not say with which probability their mode was chosen, at most "
        f"{MOST_UNKNOWN:.0%} may; record under a policy that explores, and export the journal"
    )


def unusable(choices: Choices) -> str | None:
    """Why nothing can be said on this log, whatever the candidate; None if something can."""
    steps = choices.steps.sum()
    if not steps:
        return "there is no timed decode step"
    unknown = np.isnan(choices.probability)
    if (share := choices.steps[unknown].sum() / steps) > MOST_UNKNOWN:
        return nothing_known(share)
    known = choices.where(~unknown)
    if (bad := (known.probability <= 0) | (known.probability > 1)).any():
        return (
            f"{known.steps[bad].sum():,.0f} steps ran a mode that is said to have had the probability "
            f"{known.probability[bad][0]:g}: the record contradicts itself"
        )
    if (blocks := len(known.block_starts)) < LEAST_EFFECTIVE:
        return f"only {blocks} blocks of steps were chosen apart from each other, it takes {LEAST_EFFECTIVE}"
    return None


def support_of(choices: Choices, expected: Floats | None, unknown_steps: float) -> Support:
    """What the log says for the candidate.

    Args:
        choices: Stretches with known probabilities.
        expected: Tokens and ms expected under the candidate, shape `(2, N)`; None if unknown.
        unknown_steps: Steps that were left out.
    """
    weight = choices.weights * choices.steps
    per_step = [] if expected is None else list(np.maximum(0.0, expected) * choices.weights)
    by_block = choices.by_block(weight)
    return Support(
        steps=float(choices.steps.sum()),
        unknown_steps=unknown_steps,
        blocks=len(by_block),
        effective_blocks=min(_effective(choices.by_block(x)) for x in [weight, *per_step]),
        largest_share=float(by_block.max() / max(1e-300, by_block.sum())),
        mean_weight=float(weight.sum() / choices.steps.sum()),
        unsupported_share=float(_missing_by_mode(choices).sum()),
    )


def _effective(x: Floats) -> float:
    square = float((x**2).sum())
    return float(x.sum()) ** 2 / square if square else 0.0


def _missing_by_mode(choices: Choices) -> Floats:
    """Share of the steps in which the candidate wants this mode and the log could not or never did choose it."""
    # A mode that had no alternative: all else was out of reach.
    reachable = (choices.probability < 1)[:, None] | (np.arange(choices.wanted.shape[1]) == choices.mode[:, None])
    drawn = np.bincount(choices.mode, minlength=choices.wanted.shape[1]) > 0
    lost = choices.wanted * ~(reachable & drawn)
    found: Floats = choices.steps @ lost / choices.steps.sum()
    return found


def weights_fail(choices: Choices, support: Support, modes: Sequence[Mode]) -> str | None:
    """Why estimates that weigh what was chosen cannot speak; None if they can."""
    if support.unsupported_share > MOST_UNSUPPORTED:
        missing = _missing_by_mode(choices)
        mode = modes[int(missing.argmax())]
        return (
            f"in {support.unsupported_share:.1%} of the steps the candidate wants a mode that the log could not choose "
            f"there, {mode} above all; at most {MOST_UNSUPPORTED:.1%} may"
        )
    by_block = choices.by_block((choices.weights - 1) * choices.steps)
    doubt = WEIGHT_DOUBT * by_block.std() / np.sqrt(len(by_block)) / choices.by_block(choices.steps).mean()
    if support.mean_weight + doubt < 1 - MOST_UNSUPPORTED:
        return (
            f"the mean weight of a step is {support.mean_weight:.3f} and not 1: the candidate wants modes where the "
            "log hardly ever chose them"
        )
    if support.effective_blocks < LEAST_EFFECTIVE:
        return (
            f"what the candidate wants was chosen too rarely: {support.blocks:,} blocks are worth "
            f"{support.effective_blocks:.0f}, it takes {LEAST_EFFECTIVE}"
        )
    if support.largest_share > MOST_OF_ONE:
        return f"one block has {support.largest_share:.1%} of all weight, at most {MOST_OF_ONE:.0%} may"
    return None


def model_fails(choices: Choices, modes: Sequence[Mode]) -> str | None:
    """Why a model of what modes bring cannot speak for the candidate; None if it can."""
    wanted = choices.steps @ choices.wanted / choices.steps.sum()
    number = np.cumsum(np.diff(choices.block, prepend=-1) != 0)
    for mode in np.flatnonzero(wanted > MOST_UNSUPPORTED).tolist():
        blocks = len(np.unique(number[choices.mode == mode]))
        if blocks < LEAST_OF_MODE:
            return (
                f"the candidate wants {modes[mode]} in {wanted[mode]:.1%} of the steps, which ran in {blocks} blocks; "
                f"a model of it takes {LEAST_OF_MODE}"
            )
    return None
