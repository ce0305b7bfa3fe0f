"""SGLang plugin that writes down which steps every decode launch ran with, on every rank, for tests.

With SGLANG_CPU_LAUNCH_LOG=FILE, rank r appends one line a launch to FILE.r:

    <number of the launch> <steps> <requests on this rank>

Idle launches of data-parallel attention are among them; prefills are not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TextIO

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

LAUNCH_LOG = "SGLANG_CPU_LAUNCH_LOG"


class LaunchLog:
    """Appends a line for each launch of this rank; lines are flushed one by one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._launches = 0
        self._file: TextIO | None = None

    def around_forward(self, forward: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """AROUND hook: the worker is set to the launch's steps while it runs."""
        prefill, requests = batch.forward_mode.is_extend() or batch.is_extend_in_batch, len(batch.reqs)
        result = forward(worker, batch, *args, **kwargs)
        if not prefill:
            self._launches += 1
            self._open().write(f"{self._launches} {worker.speculative_num_steps} {requests}\n")
        return result

    def _open(self) -> TextIO:
        if self._file is None:
            import torch.distributed as distributed

            rank = distributed.get_rank() if distributed.is_initialized() else 0
            self._file = open(f"{self._path}.{rank}", "a", buffering=1)  # noqa: SIM115
        return self._file


def register() -> None:
    """Called by SGLang in each of its processes."""
    path = os.environ.get(LAUNCH_LOG)
    if path:
        HookRegistry.register(
            "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.forward_batch_generation",
            LaunchLog(path).around_forward,
            HookType.AROUND,
        )
