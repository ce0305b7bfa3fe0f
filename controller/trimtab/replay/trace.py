"""Traces: recorded decode steps in one file, to be read a stretch at a time.

    with read_trace(path) as trace:
        for columns in trace.batches(["mode", "batch_size", "step_ns"]):
            ...

See `trace_schema.py` for what a trace holds and `trace_columns.py` for how its rows come.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from trimtab.replay.trace_columns import DepthArrays, Segment, StepColumns
from trimtab.replay.trace_import import import_traces
from trimtab.replay.trace_reader import Trace, is_parquet
from trimtab.replay.trace_schema import ABSENT, COLUMNS, SCHEMA, TraceEngine, TraceInfo
from trimtab.replay.trace_writer import TraceWriter

__all__ = [
    "ABSENT", "COLUMNS", "SCHEMA", "DepthArrays", "Segment", "StepColumns", "Trace", "TraceEngine", "TraceInfo",
    "TraceWriter", "read_trace",
]  # fmt: skip


def read_trace(
    path: Path,
    progress: Callable[[int], None] | None = None,
    importing: Callable[[int], None] | None = None,
) -> Trace:
    """The trace in a file.

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
    handle, name = tempfile.mkstemp(prefix="trimtab-", suffix=".parquet")
    os.close(handle)
    imported = Path(name)
    try:
        import_traces([path], imported, progress=importing)
    except BaseException:
        imported.unlink()
        raise
    return Trace(imported, progress, temporary=True)
