"""Seeded prompts for the tiny models, whose acceptance is known in advance."""

from __future__ import annotations

import random

EASY_TOKENS = range(256)
HARD_TOKENS = range(256, 512)
ALL_TOKENS = range(512)


def prompts(count: int, tokens: range, seed: int, longest: int = 20) -> list[list[int]]:
    """This many prompts of 1 to `longest` tokens from the range, the same for the same seed."""
    source = random.Random(seed)
    return [[source.choice(tokens) for _ in range(source.randint(1, longest))] for _ in range(count)]
