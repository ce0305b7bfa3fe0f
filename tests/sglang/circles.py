"""The tokens that the target of `echo` goes through, in circles."""

from __future__ import annotations

DIGITS = 16
TOKENS = DIGITS * DIGITS
PERIOD = 32


def circle(start: int, length: int, skip: int = 0) -> list[int]:
    """`length` tokens of the circle through place `start`, from `skip` tokens behind it on.

    There are `TOKENS` places, `PERIOD` to a circle.
    """
    first, at = start - start % PERIOD, start % PERIOD + skip
    return [_scattered(first + (at + i) % PERIOD) for i in range(length)]


def _scattered(place: int) -> int:
    """Neighbours on a circle share no digit: multiplication by an odd number is a permutation of the tokens."""
    return (place * 37 + 11) % TOKENS
