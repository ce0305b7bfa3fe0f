"""What every kind of file that traces are made from has in common."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv

from trimtab.errors import DataError
from trimtab.replay.traces.input_file import InputFile, LeftOut
from trimtab.replay.traces.schema import TraceEngine

BLOCK_BYTES = 2 << 20
WHAT_THERE_IS = (
    "is none of: a step log (CSV with t_s, num_steps, batch_size, accepted_drafts), step rows (CSV or JSON lines with "
    "batch_size and mode), a log of SGLang (with `Decode batch` lines), a trace (Parquet)"
)
_FIELDS = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
_VALUE = re.compile(r"CSV column #(\d+): Row #(\d+): CSV conversion error to (\w+): (.*)")
_BAD_VALUE = re.compile(r"invalid value '(.*)'")


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one run of an engine that follow each other.

    Attributes:
        engine: The run. Blocks of one run follow each other.
        columns: Columns as `TraceWriter.write` takes them.
    """

    engine: TraceEngine
    columns: Mapping[str, Any]


class TraceSource(Protocol):
    """One file. Reading it can fail with a `DataError` that names the file and the line.

    Attributes:
        kind: What it is; see `TraceInfo.source`.
        rows: Rows read so far.
        left_out: Those that cannot be rows of a trace.
        ignored_columns: Columns that a trace has no place for.
    """

    kind: str
    rows: int
    left_out: LeftOut
    ignored_columns: tuple[str, ...]

    def blocks(self) -> Iterator[Block]:
        """All rows that can be in a trace, once."""
        ...


def csv_batches(file: InputFile, header: Sequence[str], types: Mapping[str, Any]) -> Iterator[Any]:
    """Columns of a CSV file, as record batches.

    Args:
        file: The file.
        header: Names of all its columns, which its first line says.
        types: The columns to read, and as what.

    Raises:
        DataError: A line has too few or too many fields, or a field cannot be read.
    """
    try:
        yield from pa_csv.open_csv(
            file,
            read_options=pa_csv.ReadOptions(
                use_threads=False, block_size=BLOCK_BYTES, column_names=list(header), skip_rows=1
            ),
            parse_options=pa_csv.ParseOptions(ignore_empty_lines=False),
            convert_options=pa_csv.ConvertOptions(
                column_types=types, include_columns=list(types), strings_can_be_null=True
            ),
        )
    except pa.ArrowException as error:
        raise _csv_error(file, header, str(error)) from error


def _csv_error(file: InputFile, header: Sequence[str], text: str) -> DataError:
    if found := _FIELDS.search(text):
        line, wanted, got = found.groups()
        return DataError(f"{file.path}:{line}", f"has {got} fields, not {wanted}")
    if found := _VALUE.search(text):
        column, line, kind, rest = found.groups()
        value = _BAD_VALUE.search(rest)
        what = "whole number" if kind.startswith("int") else "number"
        name = header[int(column)]
        return DataError(f"{file.path}:{line}", f"{name} is no {what}: {value[1]!r}" if value else f"{name}: {rest}")
    return file.error(f"cannot be read: {text}")
