"""SGLang's own adaptive rule: how many drafts, from a running mean of accepted drafts alone.

Behaves as `AdaptiveSpeculativeParams` of SGLang 0.5.23 with its default table: batch sizes fall into slots,
each with its own candidates, and a slot asks for one draft more than is accepted on average. It never looks
at cost. Used as the baseline policy, as the stock policy of the demo engine and step by step in simulation.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

EMA_WEIGHT = 0.2
UPDATE_INTERVAL = 5
WARM_UP_BATCHES = 10


@dataclass(frozen=True, slots=True)
class Slot:
    """Candidates from a batch size up, ascending, and by how much the mean must pass a threshold."""

    candidates: tuple[int, ...]
    up_hysteresis: float = 0.0
    down_hysteresis: float = 0.0


DEFAULT_SLOTS: Mapping[int, Slot] = {
    1: Slot((1, 3, 5, 7), down_hysteresis=-0.25),
    8: Slot((0, 1, 3)),
    32: Slot((0, 1)),
    64: Slot((0,)),
}


def slots_for(offered: Iterable[int], slots: Mapping[int, Slot] = DEFAULT_SLOTS) -> dict[int, Slot]:
    """The slots cut down to the steps on offer.

    A slot without any offered candidate keeps the nearest offered steps at or below its largest candidate,
    or the fewest steps on offer where there are none.
    """
    steps = sorted(set(offered))
    return {start: _cut_down(slot, steps) for start, slot in slots.items()}


def _cut_down(slot: Slot, steps: list[int]) -> Slot:
    kept = tuple(k for k in slot.candidates if k in steps)
    if not kept:
        kept = (max((k for k in steps if k <= slot.candidates[-1]), default=steps[0]),)
    return Slot(kept, slot.up_hysteresis, slot.down_hysteresis)


class EmaRule:
    """Decides the steps of every batch from the accepted drafts of the batches before it.

    Args:
        candidates_by_slot: Smallest batch size of each slot and its candidates (`slots_for`).
        initial_steps: Steps the engine was started with.
        graph_batch_sizes: Captured batch sizes, ascending: a batch counts as the size it is padded to.
    """

    def __init__(
        self, candidates_by_slot: Mapping[int, Slot], initial_steps: int, graph_batch_sizes: Sequence[int] = ()
    ) -> None:
        self._starts = sorted(candidates_by_slot)
        self._slots = [EmaSlot(candidates_by_slot[start], initial_steps) for start in self._starts]
        self._graph_batch_sizes = sorted(graph_batch_sizes)

    def steps_for(self, batch_size: int) -> int:
        """Drafts for the next step of a batch of this size."""
        return self._slot(batch_size).steps

    def observe(self, accepted_per_request: float | None, batch_size: int) -> bool:
        """Take in the mean accepted drafts of a batch; whether its slot's steps changed.

        None counts the batch without moving the mean: it ran without drafts although the slot wants some.
        """
        return self._slot(batch_size).update(accepted_per_request)

    def mean_for(self, batch_size: int) -> float:
        """Running mean of accepted drafts a request in the slot of this batch size."""
        return self._slot(batch_size).mean

    def first_batch_sizes(self) -> list[int]:
        """Smallest batch size that each slot serves, ascending from 1; slots that padding skips are left out."""
        firsts: dict[int, int] = {}
        for start in self._starts:
            firsts.setdefault(self._first_padded_to(start), start)
        served = sorted(firsts)
        return [1, *served[1:]]

    def state(self) -> list[tuple[int, float, int]]:
        """Steps, mean and batches seen of every slot."""
        return [(slot.steps, slot.mean, slot.batches) for slot in self._slots]

    def set_state(self, state: Sequence[Sequence[float]]) -> None:
        """Go on from a `state` of the same slots; raises `ValueError` if it is of others."""
        checked = [(int(steps), float(mean), int(batches)) for steps, mean, batches in state]
        fits = len(checked) == len(self._slots) and all(
            values[0] in slot.candidates for slot, values in zip(self._slots, checked, strict=True)
        )
        if not fits:
            raise ValueError("the state is of other slots")
        for slot, (steps, mean, batches) in zip(self._slots, checked, strict=True):
            slot.steps, slot.mean, slot.batches = steps, mean, batches

    def _slot(self, batch_size: int) -> EmaSlot:
        return self._slots[max(0, bisect_right(self._starts, self._padded(batch_size)) - 1)]

    def _padded(self, batch_size: int) -> int:
        sizes = self._graph_batch_sizes
        at = bisect_left(sizes, batch_size)
        return sizes[at] if at < len(sizes) else batch_size

    def _first_padded_to(self, start: int) -> int:
        """Smallest batch size that is padded to `start` or more."""
        sizes = self._graph_batch_sizes
        at = bisect_left(sizes, start)
        if at == len(sizes):
            return start
        return sizes[at - 1] + 1 if at else 1


class EmaSlot:
    """One slot's steps and running mean. The target is one draft more than the rounded mean."""

    __slots__ = ("_down", "_up", "batches", "candidates", "mean", "steps")

    def __init__(self, slot: Slot, initial_steps: int) -> None:
        self.candidates = slot.candidates
        self._up, self._down = slot.up_hysteresis, slot.down_hysteresis
        middle = self.candidates[len(self.candidates) // 2]
        self.steps = initial_steps if initial_steps in self.candidates else middle
        self.mean = float(self.steps - 1)
        self.batches = 0

    def update(self, accepted: float | None) -> bool:
        """Take in one batch; whether the steps changed."""
        if self.steps > 0 and accepted is not None:
            self.mean = (1 - EMA_WEIGHT) * self.mean + EMA_WEIGHT * accepted
        self.batches += 1
        after_warm_up = self.batches - WARM_UP_BATCHES
        if after_warm_up <= 0 or after_warm_up % UPDATE_INTERVAL:
            return False
        old, self.steps = self.steps, self._target()
        return self.steps != old

    def _target(self) -> int:
        at = self.candidates.index(self.steps)
        if self.steps == 0:
            return self._after_plain(at)
        lower = self._fall(at)
        return self.candidates[lower if lower < at else self._rise(at)]

    def _after_plain(self, at: int) -> int:
        """Plain shows no acceptance: after every interval of it the next candidate is tried."""
        target = self.candidates[min(at + 1, len(self.candidates) - 1)]
        if target > 0 and self.mean < 0:
            self.mean = float(target - 1)
        return target

    def _fall(self, at: int) -> int:
        while at > 0 and self.mean <= _drop_threshold(self.candidates[at - 1]) + self._down:
            at -= 1
        return at

    def _rise(self, at: int) -> int:
        while at < len(self.candidates) - 1 and self.mean > self.candidates[at] - 0.5 + self._up:
            at += 1
        return at


def _drop_threshold(fewer_steps: int) -> float:
    """Mean at or below which the next lower candidate does; plain needs less than half an accepted draft."""
    return fewer_steps - 0.5 if fewer_steps else 0.5
