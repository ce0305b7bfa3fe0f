"""What does a change of mode cost, and how long does a load last? Learnt from the engine itself."""

from __future__ import annotations

from collections.abc import Iterable

FIRST_COST_MS = 0.5
FIRST_STAY_MS = 5_000.0
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

    @property
    def price_ms(self) -> float:
        """Time lost by one switch."""
        return max(0.0, self._price.mean)

    @property
    def visit_ms(self) -> float:
        """Mean time that the load stays within one band."""
        return self._visit.mean

    def add_prices(self, prices_ms: Iterable[float]) -> None:
        """Take in what switches cost."""
        for price in prices_ms:
            self._price.add(price)

    def add_visit(self, visit_ms: float) -> None:
        """The load left a band after this long."""
        self._visit.add(visit_ms)

    def state(self) -> list[list[float]]:
        """Plain values for a snapshot."""
        return [self._price.state(), self._visit.state()]

    def set_state(self, state: Iterable[Iterable[float]]) -> None:
        """Go on from a `state`."""
        price, visit = state
        self._price.set_state(price)
        self._visit.set_state(visit)
