"""What does a change of mode cost, and how long does a load last? Learnt from the engine itself.

Leaving native plain costs more than a switch: the draft model reads what it missed first, which takes longer the more
that is. What it missed is bounded, because the engine lets it catch up now and then.
"""

from __future__ import annotations

from collections.abc import Iterable

FIRST_COST_MS = 0.5
FIRST_STAY_MS = 5_000.0
# Time to read one token of each request into the draft model, and the most of them that pile up.
FIRST_CATCH_UP_MS = 0.4
MOST_UNREAD = 64.0
# Weight of the newest sample, and how much the first guesses count against it.
SLOWEST_WEIGHT = 0.1


class RunningMean:
    """A mean that starts from a guess worth `guess_samples` and later follows with a fixed weight."""

    def __init__(self, guess: float, guess_samples: float) -> None:
        self.mean = guess
        self._samples = guess_samples

    def add(self, value: float) -> None:
        """Take in one sample."""
        self._samples += 1
        self.mean += max(SLOWEST_WEIGHT, 1 / self._samples) * (value - self.mean)

    def state(self) -> list[float]:
        """Plain values for a snapshot."""
        return [self.mean, self._samples]

    def set_state(self, state: Iterable[float]) -> None:
        """Go on from a `state`."""
        self.mean, self._samples = map(float, state)


class SwitchingCost:
    """Price of a switch, and how long the load stays within one band."""

    def __init__(self) -> None:
        self._price = RunningMean(FIRST_COST_MS, 0.5)
        self._visit = RunningMean(FIRST_STAY_MS, 2.0)
        # How long a catch-up takes differs by an order between engines: the first one counts for all.
        self._catch_up = RunningMean(FIRST_CATCH_UP_MS, 0.01)

    @property
    def price_ms(self) -> float:
        """Time lost by one switch."""
        return max(0.0, self._price.mean)

    def catch_up_ms(self, unread: float = MOST_UNREAD) -> float:
        """Time lost on the way out of native plain, with so many unread tokens of each request."""
        return max(0.0, self._catch_up.mean) * min(unread, MOST_UNREAD)

    @property
    def visit_ms(self) -> float:
        """Mean time that the load stays within one band."""
        return self._visit.mean

    def add_prices(self, prices_ms: Iterable[float]) -> None:
        """Take in what switches cost."""
        for price in prices_ms:
            self._price.add(price)

    def add_catch_ups(self, catch_ups: Iterable[tuple[float, float]]) -> None:
        """Take in what catch-ups took, and the tokens of each request that they read."""
        for took_ms, tokens in catch_ups:
            self._catch_up.add(took_ms / tokens)

    def add_visit(self, visit_ms: float) -> None:
        """The load left a band after this long."""
        self._visit.add(visit_ms)

    def state(self) -> list[list[float]]:
        """Plain values for a snapshot."""
        return [self._price.state(), self._visit.state(), self._catch_up.state()]

    def set_state(self, state: Iterable[Iterable[float]]) -> None:
        """Go on from a `state`."""
        price, visit, catch_up = state
        self._price.set_state(price)
        self._visit.set_state(visit)
        self._catch_up.set_state(catch_up)
