"""Whatever holds recorded steps, opened as a trace: a trace, a file that one can be made of, or a journal."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from trimtab.replay.journal_summary import is_journal
from trimtab.replay.trace import Trace, read_trace
from trimtab.replay.trace_export import Wanted, export_trace


def open_recording(path: Path, progress: Callable[[float], None] | None = None) -> Trace:
    """The trace in a file. What is made for it goes when the trace is closed.

    Args:
        path: A trace, a journal or its directory, or a file that `trimtab trace import` takes.
        progress: Told now and then which share of a journal has been read.

    Raises:
        DataError: The file cannot be read or used.
    """
    if not is_journal(path):
        return read_trace(path)
    handle, name = tempfile.mkstemp(prefix="trimtab-", suffix=".parquet")
    os.close(handle)
    exported = Path(name)

    def entries(done: int, total: int) -> None:
        if progress is not None:
            progress(done / max(1, total))

    try:
        export_trace(path, exported, Wanted(), entries)
        return Trace(exported, temporary=True)
    except BaseException:
        exported.unlink(missing_ok=True)
        raise
