"""Step rows for tests: single ones by hand, and those of a small made-up engine under a table."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from trimtab.domain import DepthCounts, Mode, StepRow, speculate


def step_row(
    mode: Mode | None = None,
    batch_size: int = 4,
    accepted: int = 6,
    step_ns: int | None = 8_000_000,
    depths: DepthCounts | None = None,
    **fields: Any,
) -> StepRow:
    """One row; accepted drafts all count at the first depth unless `depths` says otherwise."""
    mode = mode or speculate(3)
    counts = depths or (DepthCounts((batch_size,), (accepted,)) if mode.steps else DepthCounts())
    return StepRow(
        **{
            "launch_id": 1,
            "step": 1,
            "result_ns": 1,
            "mode": mode,
            "batch_size": batch_size,
            "emitted_tokens": batch_size + sum(counts.accepted),
            "fresh_requests": batch_size,
            "fresh": counts,
            "step_ns": step_ns,
            **fields,
        }
    )


def depth_counts(runs: list[int], steps: int) -> DepthCounts:
    """Counts by depth when each request would have had `runs[i]` drafts in a row accepted."""
    offered = tuple(sum(run >= depth for run in runs) for depth in range(steps))
    accepted = tuple(sum(run > depth for run in runs) for depth in range(steps))
    return DepthCounts(offered, accepted)


class MadeUpEngine:
    """Plays decode steps: batch size and acceptance wander, a step costs more with batch and drafts."""

    def __init__(self, seed: int, largest_batch: int = 64) -> None:
        self._random = random.Random(seed)
        self._largest = largest_batch
        self._batch_size = 1 + self._random.randrange(largest_batch)
        self._chance = 0.6
        self._step = 0

    def report(self, mode_at: Callable[[int], Mode], steps: int = 25) -> list[StepRow]:
        """The rows of one report interval under a table."""
        if self._random.random() < 0.2:
            self._chance = self._random.choice([0.2, 0.5, 0.8, 0.95])
        return [self._row(mode_at) for _ in range(steps)]

    def _row(self, mode_at: Callable[[int], Mode]) -> StepRow:
        moved = self._batch_size + self._random.choice([-4, -1, 0, 0, 1, 4])
        self._batch_size = min(self._largest, max(1, moved))
        self._step += 1
        mode = mode_at(self._batch_size)
        step_ms = (
            (5 + 0.5 * mode.steps) * (1 + 0.004 * self._batch_size * (1 + mode.steps)) * self._random.uniform(1, 1.1)
        )
        return step_row(
            mode,
            self._batch_size,
            step_ns=round(step_ms * self._random.uniform(1e6, 1.1e6)),
            depths=depth_counts([self._run() for _ in range(self._batch_size)], mode.steps),
            step=self._step,
            launch_id=self._step,
            result_ns=self._step * 10_000_000,
        )

    def _run(self) -> int:
        run = 0
        while run < 10 and self._random.random() < self._chance:
            run += 1
        return run
