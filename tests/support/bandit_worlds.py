"""Worlds of decode steps in which it is known what every mode brings: what off-policy estimators are held against.

A world makes logs. Each has blocks of steps whose mode is drawn once, noise that the steps of a block share, and the
truth: what a candidate would have earned on the states of this very log, on average over draws and noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trimtab.domain import speculate
from trimtab.replay.arrays import Floats, Ints, Mask
from trimtab.replay.off_policy.choices import Choices

DRAFTS = np.array([0, 1, 3, 5])
MODES = tuple(speculate(int(steps)) for steps in DRAFTS)
# Steps of a block come in two stretches: in the second the batch has moved on.
STRETCH_STEPS = 8
# Noise that the steps of a block share, and that of a single step, as shares of the expected.
SHARED_NOISE, STEP_NOISE = 0.12, 0.3


@dataclass(frozen=True)
class Scene:
    """States and what is true of them. Shapes: N stretches, two for each block; M modes.

    Attributes:
        batch_size: Shape `(N,)`.
        tokens: Expected tokens of a step; shape `(N, M)`.
        ms: Expected time of a step; shape `(N, M)`.
        chances: Probability of every mode in the log; the same for both stretches of a block.
        wanted: Under the candidate.
        features: What is recorded of the states; shape `(N, F)`.
        seen_tokens: Expected tokens given only what is recorded.
    """

    batch_size: Floats
    tokens: Floats
    ms: Floats
    chances: Floats
    wanted: Floats
    features: Floats
    seen_tokens: Floats


@dataclass(frozen=True)
class KnownLog:
    """A log, and the truth about its candidate."""

    choices: Choices
    tokens_per_step: float
    step_ms: float

    @property
    def tokens_per_s(self) -> float:
        return 1e3 * self.tokens_per_step / self.step_ms


World = Callable[[np.random.Generator], Scene]


def heavy_weights(rng: np.random.Generator) -> Scene:
    """The log tries other modes often at some times and hardly ever at others."""
    blocks = 2600
    batch = _pairs(2 ** np.clip(rng.normal(3, 1, blocks), 0, 7), rng)
    share = rng.choice([0.06, 0.15, 0.4, 0.8], blocks)
    return _scene(batch, _tokens(batch, 0.7), _ms(batch), _favouring(batch, share), _one_of(batch < 10, 2, 1))


def misspecified(rng: np.random.Generator) -> Scene:
    """Two kinds of requests that nobody records, and step times that jump from batch to batch as no spline does."""
    blocks = 1400
    batch = _pairs(2 ** np.clip(rng.normal(3, 1, blocks), 0, 7), rng)
    good, bad = _tokens(batch, 0.9), _tokens(batch, 0.35)
    kind = np.repeat(rng.random(blocks) < 0.5, 2)[:, None]
    cliff = np.where((batch.astype(int) // 3 % 2 == 0)[:, None] & (DRAFTS > 0), 1.15, 1.0)
    chances, wanted = _favouring(batch, np.full(blocks, 0.3)), _one_of(batch < 12, 2, 1)
    return _scene(batch, np.where(kind, good, bad), _ms(batch) * cliff, chances, wanted, (good + bad) / 2)


def drifting(rng: np.random.Generator) -> Scene:
    """Load and acceptance that wander, and a candidate that changes its mode with the batch, also within a block."""
    blocks = 2000
    time = np.linspace(0, 6, blocks) + rng.uniform(0, 6)
    level = 3 + 1.8 * np.sin(time) + np.cumsum(rng.normal(0, 0.03, blocks)) + rng.normal(0, 0.2, blocks)
    batch = _pairs(2 ** np.clip(level, 0, 7.5), rng)
    acceptance = np.repeat(0.6 + 0.3 * np.sin(0.7 * time + rng.uniform(0, 6)), 2)
    chances = _favouring(batch, np.full(blocks, 0.3))
    return _scene(batch, _tokens(batch, acceptance), _ms(batch), chances, _one_of(batch < 12, 2, 1))


def drawing_candidate(rng: np.random.Generator) -> Scene:
    """A candidate that draws lots itself, on a log that draws at the same time."""
    blocks = 700
    batch = _pairs(2 ** np.clip(rng.normal(3, 1, blocks), 0, 7), rng)
    wanted = 0.1 + 0.6 * _one_of(batch < 16, 2, 1)
    return _scene(batch, _tokens(batch, 0.7), _ms(batch), _favouring(batch, np.full(blocks, 0.3)), wanted)


WORLDS: dict[str, World] = {
    world.__name__: world for world in (heavy_weights, misspecified, drifting, drawing_candidate)
}


def play(world: World, seed: tuple[int, ...]) -> KnownLog:
    """One log of the world."""
    rng = np.random.default_rng(seed)
    scene = world(rng)
    n = len(scene.batch_size)
    rows, block = np.arange(n), np.arange(n) // 2
    mode = _draw(scene.chances[::2], rng)[block]
    return KnownLog(
        Choices(
            block=block,
            steps=np.full(n, float(STRETCH_STEPS)),
            mode=mode,
            probability=scene.chances[rows, mode],
            wanted=scene.wanted,
            tokens=STRETCH_STEPS * scene.tokens[rows, mode] * _noise(block, rng),
            ms=STRETCH_STEPS * scene.ms[rows, mode] * _noise(block, rng, 0.4),
            batch_size=scene.batch_size,
            features=scene.features,
        ),
        tokens_per_step=float((scene.wanted * scene.seen_tokens).sum(axis=1).mean()),
        step_ms=float((scene.wanted * scene.ms).sum(axis=1).mean()),
    )


def _scene(
    batch: Floats, tokens: Floats, ms: Floats, chances: Floats, wanted: Floats, seen_tokens: Floats | None = None
) -> Scene:
    features = np.column_stack([np.log2(batch), np.linspace(0, 1, len(batch))])
    return Scene(batch, tokens, ms, chances, wanted, features, tokens if seen_tokens is None else seen_tokens)


def _pairs(batch: Floats, rng: np.random.Generator) -> Floats:
    """The batch of both stretches of every block: a little apart."""
    wandering = rng.normal(0, 0.1, (len(batch), 2))
    found: Floats = np.maximum(1, np.round(batch[:, None] * np.exp(wandering))).ravel()
    return found


def _tokens(batch: Floats, acceptance: Floats | float) -> Floats:
    """What each mode emits: one token a request, and every draft that has all before it accepted."""
    depth = np.arange(1, DRAFTS.max() + 1)
    reached = np.broadcast_to(np.asarray(acceptance), batch.shape)[:, None] ** depth
    accepted = (reached[:, None, :] * (depth <= DRAFTS[:, None])).sum(axis=2)
    found: Floats = batch[:, None] * (1 + accepted)
    return found


def _ms(batch: Floats) -> Floats:
    found: Floats = (6 + 0.02 * batch)[:, None] * (1 + 0.08 * DRAFTS) + 0.015 * batch[:, None] * DRAFTS
    return found


def _favouring(batch: Floats, share: Floats) -> Floats:
    """Chances of a log that runs one mode by the batch of the block, and with this share any of all modes."""
    first = batch[::2]
    favourite = np.select([first < 6, first < 20, first < 60], [3, 2, 1], 0)
    chances = share[:, None] / len(DRAFTS) + (1 - share)[:, None] * np.eye(len(DRAFTS))[favourite]
    return np.repeat(chances, 2, axis=0)


def _one_of(where: Mask, yes: int, no: int) -> Floats:
    """A candidate that runs one of two modes for certain."""
    return np.eye(len(DRAFTS))[np.where(where, yes, no)]


def _draw(chances: Floats, rng: np.random.Generator) -> Ints:
    drawn = (rng.random(len(chances))[:, None] > chances.cumsum(axis=1)).sum(axis=1)
    found: Ints = np.minimum(drawn, chances.shape[1] - 1).astype(np.int64)
    return found


def _noise(block: Ints, rng: np.random.Generator, size: float = 1.0) -> Floats:
    """Factors around 1: what a block shares, and the mean of single steps; skewed to the right."""
    shared = rng.gamma(1 / (size * SHARED_NOISE) ** 2, (size * SHARED_NOISE) ** 2, int(block[-1]) + 1)
    single = rng.normal(0, size * STEP_NOISE / np.sqrt(STRETCH_STEPS), len(block))
    return shared[block] * (1 + single)
