"""Makes Trimtab's plugin fail on one rank, for tests. Nothing of it is there without the variable.

SGLANG_CPU_TRIMTAB_FAULT=KIND:RANK[:STEP]

    missing          the rank has no plugin
    other-version    the rank's plugin has another digest
    choosing         choosing the mode fails at STEP, once
    choosing-always  ... from STEP on
    forged           the rank notes another batch size at STEP than it had
    own-clock        the rank chooses by its own clock from STEP on: what must never happen

SGLANG_CPU_TRIMTAB_UNGUARDED=1: the plugin's guard finds no lease harmful.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

FAULT = "SGLANG_CPU_TRIMTAB_FAULT"
UNGUARDED = "SGLANG_CPU_TRIMTAB_UNGUARDED"
OWN_CLOCK_NS = 50_000_000


def register() -> None:
    """Called by SGLang; everything was done when this module was loaded, before any plugin ran."""


def tp_rank() -> int | None:
    """The rank of the scheduler that loads its plugins at this moment; None in other processes."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "run_scheduler_process":
            return int(frame.f_locals["tp_rank"])
        frame = frame.f_back
    return None


def arm(kind: str, step: int) -> None:
    """Put the fault into this process."""
    from trimtab_sglang import lease, plugin, settings, shared_words

    machines: Any = lease.LeaseMachine
    words_class: Any = shared_words.SharedWords
    of_this_process: Any = plugin
    choose, noter = machines.choose, words_class.noter
    failed: list[int] = []

    def failing(machine: Any, batch_size: int) -> Any:
        due = machine.step + 1 >= step
        if due and (kind == "choosing-always" or not failed):
            failed.append(step)
            raise RuntimeError("made to fail by a test")
        return choose(machine, batch_size)

    def by_own_clock(machine: Any, batch_size: int) -> Any:
        chosen = choose(machine, batch_size)
        return chosen if machine.step < step else lease.speculate(1 + 4 * (time.monotonic_ns() // OWN_CLOCK_NS % 2))

    def forging(words: Any, rank: int) -> Callable[..., bool]:
        note = noter(words, rank)

        def forge(at: int, mode: Any, steps: int, size: int) -> bool:
            return bool(note(at, mode, steps, size + (at == step)))

        return forge

    match kind:
        case "missing":
            of_this_process.read_settings = lambda: settings.PluginSettings(mode=settings.PluginMode.OFF)
        case "other-version":
            of_this_process.digest = lambda: "another-version"
        case "choosing" | "choosing-always":
            machines.choose = failing
        case "forged":
            words_class.noter = forging
        case "own-clock":
            machines.choose = by_own_clock
        case _:
            raise ValueError(f"{FAULT}: there is no fault {kind!r}")


def _load() -> None:
    if os.environ.get(UNGUARDED) == "1" and tp_rank() is not None:
        from trimtab_sglang import guard

        of_this_process: Any = guard
        of_this_process.HARMFUL_SHARE = 0.0
    kind, _, where = os.environ.get(FAULT, "").partition(":")
    rank, _, step = where.partition(":")
    if kind and tp_rank() == int(rank):
        arm(kind, int(step or 0))


_load()
