"""A trace as CSV, for people and small tools. Reading it back as step rows gives the same rows."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from trimtab.errors import DataError
from trimtab.replay.traces.reader import open_parquet
from trimtab.replay.traces.schema import COLUMNS, COUNTS, WORDS
from trimtab.whole_file import written_whole

# More is slow to read and fills disks.
MAX_CSV_ROWS = 200_000


def write_csv(trace_path: Path, output: Path) -> None:
    """Write a trace as CSV, at once and as a whole; lists as `[4, 3, 1]`.

    Raises:
        DataError: It has more than `MAX_CSV_ROWS`, or the file cannot be written.
    """
    with closing(open_parquet(trace_path)) as trace:
        rows = trace.metadata.num_rows
        if rows > MAX_CSV_ROWS:
            raise DataError(str(output), f"would have {rows:,} rows, at most {MAX_CSV_ROWS:,}: write Parquet instead")
        with written_whole(output) as beside, beside.open("wb") as file:
            _write(trace, file)


def _write(trace: Any, file: IO[bytes]) -> None:
    file.write(",".join(COLUMNS).encode() + b"\n")
    options = pa_csv.WriteOptions(include_header=False)
    for batch in trace.iter_batches(columns=list(COLUMNS)):
        table = pa.table({name: _as_text(name, batch.column(name)) for name in COLUMNS})
        pa_csv.write_csv(table, file, options)


def _as_text(name: str, column: Any) -> Any:
    if name in WORDS:
        return column.cast(pa.string())
    if name not in COUNTS:
        return column
    entries = pa.ListArray.from_arrays(column.offsets, column.values.cast(pa.string()), mask=column.is_null())
    return pc.binary_join_element_wise("[", pc.binary_join(entries, ", "), "]", "")
