"""An SGLang plugin that writes down every decode result, request by request.

TRIMTAB_GPU_FOLDER gets `rounds.log`, a line a result: the tokens that a verify read for each request (1: plain), then
`request:accepted drafts` for each.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TextIO

from plugin_path import FOLDER

FILE = "rounds.log"


class RoundLog:
    """Appends a line for each decode result. The file is opened in the process that decodes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._file: TextIO | None = None

    def after_result(self, _returned: Any, _processor: Any, batch: Any, result: Any) -> None:
        """AFTER hook: the counts are on the host by now."""
        if result.speculative_num_draft_tokens is None:
            return
        self._file = self._file or self._path.open("w", buffering=1 << 16)
        pairs = zip(batch.reqs, result.num_correct_drafts_per_req_cpu, strict=True)
        told = " ".join(f"{request.rid}:{accepted}" for request, accepted in pairs)
        self._file.write(f"{result.speculative_num_draft_tokens} {told}\n")
        # When the last request is done nobody wakes us up again.
        if all(request.finished() for request in batch.reqs):
            self._file.flush()


def register() -> None:
    """SGLang's entry point."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from trimtab_sglang.host import COMPONENTS

    HookRegistry.register(
        f"{COMPONENTS}.batch_result_processor.SchedulerBatchResultProcessor.process_batch_result_decode",
        RoundLog(Path(os.environ[FOLDER])).after_result,
        HookType.AFTER,
    )
