"""Step times as a real host shows them: noise, reports that are slow as a whole, slow patches, and stalls."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from trimtab.replay.simulation.drivers import SessionDriver, StepResult

STEP_SD, REPORT_SD = 0.04, 0.012
STEPS_A_REPORT = 40
SLOW_PATCH_CHANCE, SLOW_PATCH_STEPS, SLOW_BY = 1 / 1_500, (100, 600), (0.05, 0.18)
STALL_CHANCE, STALL_TIMES = 1 / 1_000, (2.0, 30.0)


class NoisyDriver(SessionDriver):
    """A policy that sees noisy times of steps that took what the case says.

    Spreads and chances are those of step times of SGLang on an H200, seen from its scheduler.

    Args:
        arguments: As of `SessionDriver`.
        level: By how much noisier than that it is.
        noise_seed: Of the noise.
        options: As of `SessionDriver`.
    """

    def __init__(self, *arguments: Any, level: float = 1.0, noise_seed: int = 0, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._rng = np.random.default_rng(noise_seed)
        self._level = level
        self._steps = self._slow_until = 0
        self._report = self._slow = 1.0

    def finish(self, result: StepResult) -> None:
        """Tell the policy of another time than the one that passed."""
        super().finish(dataclasses.replace(result, step_ms=result.step_ms * self._times()))

    def _times(self) -> float:
        rng, level = self._rng, self._level
        self._steps += 1
        if self._steps % STEPS_A_REPORT == 0:
            self._report = float(np.exp(rng.normal(0, REPORT_SD * level)))
        if self._steps > self._slow_until and rng.random() < SLOW_PATCH_CHANCE:
            self._slow_until = self._steps + int(rng.integers(*SLOW_PATCH_STEPS))
            self._slow = 1 + level * rng.uniform(*SLOW_BY)
        times = float(np.exp(rng.normal(0, STEP_SD * level))) * self._report
        times *= self._slow if self._steps < self._slow_until else 1.0
        return times * (rng.uniform(*STALL_TIMES) if rng.random() < STALL_CHANCE * level else 1.0)
