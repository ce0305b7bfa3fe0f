"""Any bytes as a program: a reader that never runs dry, so that every input means something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Program:
    """Reads numbers and choices off the bytes; behind their end everything is 0.

    Attributes:
        over: Whether all bytes were read.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def over(self) -> bool:
        """Whether all bytes were read."""
        return self._at >= len(self._data)

    def byte(self) -> int:
        """The next byte."""
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def number(self, high: int) -> int:
        """A number in `[0, high]`."""
        value = 0
        for _ in range((high.bit_length() + 7) // 8):
            value = value << 8 | self.byte()
        return value % (high + 1)

    def pick(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[self.byte() % len(items)]

    def chance(self, one_in: int) -> bool:
        """True once in so many times."""
        return self.byte() % one_in == one_in - 1
