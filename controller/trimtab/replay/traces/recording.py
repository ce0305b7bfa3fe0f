"""Whatever holds recorded steps, opened as a trace: a trace, a file that one can be made of, or a journal.

    with open_recording(path) as trace:
        for columns in trace.batches(["mode", "batch_size", "step_ns"]):
            ...

See `schema.py` for what a trace holds and `columns.py` for how its rows come.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimtab.replay.journals.summary import is_journal
from trimtab.replay.traces.exporting import Wanted, export_trace
from trimtab.replay.traces.importing import import_traces
from trimtab.replay.traces.reader import Trace, is_parquet


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

    def entries(done: int, total: int) -> None:
        if progress is not None:
            progress(done / max(1, total))

    return _made(lambda exported: export_trace(path, exported, Wanted(), entries))


def read_trace(
    path: Path,
    progress: Callable[[int], None] | None = None,
    importing: Callable[[int], None] | None = None,
) -> Trace:
    """The trace in a file that is no journal.

    Args:
        path: A trace, or a file that `trimtab trace import` makes one of; it is then imported into a temporary file,
            which goes when the trace is closed.
        progress: Told with every batch how many rows have been read.
        importing: Told how many bytes have been imported of a file that is no trace.

    Raises:
        DataError: The file cannot be read or used; the error names the place.
    """
    if is_parquet(path):
        return Trace(path, progress)
    return _made(lambda imported: import_traces([path], imported, progress=importing), progress)


def _made(make: Callable[[Path], Any], progress: Callable[[int], None] | None = None) -> Trace:
    """The trace that is made in a temporary file, which goes with it."""
    handle, name = tempfile.mkstemp(prefix="trimtab-", suffix=".parquet")
    os.close(handle)
    path = Path(name)
    try:
        make(path)
        return Trace(path, progress, temporary=True)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
