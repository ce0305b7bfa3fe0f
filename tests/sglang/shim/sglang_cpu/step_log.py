"""SGLang plugin that writes down every decode step, for tests: what really ran, whoever decided it.

With SGLANG_CPU_STEP_LOG=FILE, rank r appends one line a decode result to FILE.r:

    <CLOCK_MONOTONIC, ns> <steps> <batch size> <request ids, comma-separated>

`steps` is the number of drafts that the step was launched with, taken from the result itself; -1 in an
engine without speculation.
"""

from __future__ import annotations

import os
import time
from typing import Any, TextIO

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

STEP_LOG = "SGLANG_CPU_STEP_LOG"
NO_SPECULATION = -1


class StepLog:
    """Appends a line for each decode result; lines are flushed one by one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: TextIO | None = None

    def before_result(self, _scheduler: Any, batch: Any, result: Any, *_args: Any, **_kwargs: Any) -> None:
        """BEFORE hook: the batch still holds every request of the step."""
        if batch.forward_mode.is_decode():
            width = getattr(result, "speculative_num_draft_tokens", None)
            steps = NO_SPECULATION if width is None else int(width) - 1
            requests = ",".join(str(request.rid) for request in batch.reqs)
            self._open().write(f"{time.monotonic_ns()} {steps} {len(batch.reqs)} {requests}\n")

    def _open(self) -> TextIO:
        """The file of this rank; opened late, when the process is a scheduler and knows its rank."""
        if self._file is None:
            import torch.distributed as distributed

            rank = distributed.get_rank() if distributed.is_initialized() else 0
            self._file = open(f"{self._path}.{rank}", "a", buffering=1)  # noqa: SIM115
        return self._file


def register() -> None:
    """Called by SGLang in each of its processes."""
    path = os.environ.get(STEP_LOG)
    if path:
        HookRegistry.register(
            "sglang.srt.managers.scheduler.Scheduler.process_batch_result",
            StepLog(path).before_result,
            HookType.BEFORE,
        )
