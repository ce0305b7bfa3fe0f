"""What a decode step is expected to take before anybody watched this engine: a cost profile.

A profile comes from a start-up sweep, a file, a fitted trace or a case's own cost table. It is a table of
measured points; a batch costs what the next larger listed size costs, as batches are padded to captured sizes.
Context comes in either by points of their own or as a cost a token on top of all points.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from trimtab.domain import PLAIN_WARM, Mode


@dataclass(frozen=True, slots=True)
class ProfilePoint:
    """Step times of the modes at one batch size, for requests of up to `context_tokens` each (None: any)."""

    batch_size: int
    ms: Mapping[Mode, float]
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ContextCost:
    """What a token of context more adds to a step in every mode.

    Attributes:
        reference_tokens: Context of each request that the points speak for.
        ms_per_token: For every token of the batch.
        ms_per_longest_token: For every token of the longest request, on top.
    """

    reference_tokens: float
    ms_per_token: float
    ms_per_longest_token: float = 0.0

    def more_ms(self, batch_size: int, context_tokens: float, longest_tokens: float) -> float:
        """What a batch takes more than at the reference; negative below it."""
        in_batch = self.ms_per_token * batch_size * (context_tokens - self.reference_tokens)
        return in_batch + self.ms_per_longest_token * (longest_tokens - self.reference_tokens)


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Predicts the time of a decode step from mode, batch size and context.

    Attributes:
        points: By ascending batch size, and by ascending context within one size.
        context: What context costs beside the points; None: nothing that they do not say.
    """

    points: tuple[ProfilePoint, ...]
    context: ContextCost | None = None
    _sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _by_size: tuple[tuple[ProfilePoint, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        groups = [(size, tuple(group)) for size, group in groupby(self.points, key=lambda p: p.batch_size)]
        object.__setattr__(self, "_sizes", tuple(size for size, _ in groups))
        object.__setattr__(self, "_by_size", tuple(group for _, group in groups))
        if not groups or list(self._sizes) != sorted(set(self._sizes)):
            raise ValueError(f"a profile needs points by ascending batch size, has {list(self._sizes)}")
        for point in self.points:
            if not point.ms or min(point.ms.values()) <= 0:
                raise ValueError(
                    f"a profile needs step times above 0 at every point, not at batch size {point.batch_size}"
                )

    def step_ms(
        self,
        mode: Mode,
        batch_size: int,
        context_tokens: float | None = None,
        longest_tokens: float | None = None,
    ) -> float:
        """Expected time of a step.

        Plain kinds that were not measured take the time of plain with a warm draft cache, steps that were not
        measured lie on the line through their neighbours. Beyond the largest listed batch size or context the
        last point counts.

        Args:
            mode: Mode of the step.
            batch_size: Requests in the batch.
            context_tokens: Tokens of context of a request, on average; None or 0 if unknown.
            longest_tokens: Those of the longest request; None: like the others.
        """
        at = min(bisect_left(self._sizes, batch_size), len(self._sizes) - 1)
        point = self._point(self._by_size[at], context_tokens)
        found = point.ms.get(mode)
        ms = _between(point.ms, mode.steps) if found is None else found
        if self.context is None or not context_tokens:
            return ms
        longest = context_tokens if longest_tokens is None else longest_tokens
        return max(ms / 10, ms + self.context.more_ms(batch_size, context_tokens, longest))

    @staticmethod
    def _point(points: tuple[ProfilePoint, ...], context_tokens: float | None) -> ProfilePoint:
        for point in points:
            if point.context_tokens is None or (context_tokens or 0) <= point.context_tokens:
                return point
        return points[-1]


def _between(ms: Mapping[Mode, float], steps: int) -> float:
    """Time at a number of steps that was not measured; never less than a tenth of the shortest measured."""
    known = {mode.steps: value for mode, value in ms.items() if mode.steps or mode == PLAIN_WARM}
    known = known or {mode.steps: value for mode, value in ms.items()}
    if steps in known or len(known) == 1:
        return known.get(steps, next(iter(known.values())))
    ladder = sorted(known)
    above = min(max(1, bisect_left(ladder, steps)), len(ladder) - 1)
    low, high = ladder[above - 1], ladder[above]
    value = known[low] + (steps - low) / (high - low) * (known[high] - known[low])
    return max(value, min(known.values()) / 10)


def profile_of(points: Iterable[ProfilePoint], context: ContextCost | None = None) -> CostProfile:
    """A profile of points in any order; of several for one size and context the last counts."""
    unique = {(p.batch_size, p.context_tokens): p for p in points}
    unbounded = float("inf")
    ordered = sorted(
        unique.values(), key=lambda p: (p.batch_size, unbounded if p.context_tokens is None else p.context_tokens)
    )
    return CostProfile(tuple(ordered), context)
