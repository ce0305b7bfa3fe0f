"""Reads the step log that the engine's test plugin writes: which steps every decode step ran with."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One decode step. `at_ns` is CLOCK_MONOTONIC at its result, which all processes share."""

    at_ns: int
    steps: int
    batch_size: int
    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """One decode launch of a rank; `requests` is 0 where the rank was idle and others were not."""

    number: int
    steps: int
    requests: int


class StepLogReader:
    """The decode steps of one engine so far, oldest first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0
        self._steps: list[LoggedStep] = []

    def all(self) -> list[LoggedStep]:
        """Every step up to now."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                new, newline, _ = file.read().rpartition(b"\n")
            self._read_bytes += len(new) + len(newline)
            self._steps += [_parse(line) for line in new.decode().splitlines()]
        return list(self._steps)

    def since(self, at_ns: int) -> list[LoggedStep]:
        """Steps that ended at this time or later."""
        return [step for step in self.all() if step.at_ns >= at_ns]

    def wait_for(
        self, condition: Callable[[Sequence[LoggedStep]], bool], since_ns: int, timeout_s: float
    ) -> list[LoggedStep]:
        """Steps since then, as soon as they fulfil the condition; `AssertionError` if they do not in time."""
        deadline = time.monotonic() + timeout_s
        while not condition(steps := self.since(since_ns)):
            if time.monotonic() > deadline:
                last = ", ".join(f"{step.steps}" for step in steps[-30:])
                raise AssertionError(f"not within {timeout_s:g} s; {len(steps)} steps ran, the last: {last or 'none'}")
            time.sleep(0.02)
        return steps


def read_launches(path: Path) -> list[Launch]:
    """The launches of one rank so far, as its log has them."""
    if not path.exists():
        return []
    lines = path.read_text().rpartition("\n")[0].splitlines()
    return [Launch(*map(int, line.split())) for line in lines]


def changes(steps: Sequence[LoggedStep]) -> int:
    """How often the number of steps changed."""
    return sum(before.steps != after.steps for before, after in itertools.pairwise(steps))


def share_with(steps: Sequence[LoggedStep], wanted: Callable[[int], bool]) -> float:
    """Share of the decode steps whose number of steps is wanted."""
    return sum(wanted(step.steps) for step in steps) / max(1, len(steps))


def _parse(line: str) -> LoggedStep:
    at_ns, steps, batch_size, request_ids = line.split()
    return LoggedStep(int(at_ns), int(steps), int(batch_size), tuple(request_ids.split(",")))
