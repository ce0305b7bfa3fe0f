"""Reads a trace, a stretch of rows at a time, in bounded memory, and notices what is wrong with the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from trimtab.domain import Mode
from trimtab.errors import DataError
from trimtab.profile_file import read_mode
from trimtab.replay.arrays import Ints
from trimtab.replay.traces.columns import DepthArrays, Segment, StepColumns
from trimtab.replay.traces.input_file import InputFile
from trimtab.replay.traces.schema import ABSENT, COLUMNS, COUNTS, FORMAT_VERSION, METADATA_KEY, SCHEMA, TraceInfo
from trimtab.wire.bounds import MAX_STEPS

BATCH_ROWS = 100_000
PARQUET_MAGIC = b"PAR1"
# What reading a damaged file can end in; names that are no text are among it.
PARQUET_FAULTS = (OSError, pa.ArrowException, UnicodeDecodeError)
# Read with every batch: what belongs where, and in which order.
_ALWAYS = ("engine", "run", "result_ns")


class Trace:
    """An open trace; close it, or use it as a context manager.

    Args:
        path: A Parquet file that Trimtab wrote.
        progress: Told with every batch how many rows have been read.
        temporary: Whether to delete the file when the trace is closed.

    Attributes:
        info: What the trace says of itself.
        rows: Rows that it has.
        modes: Modes of its rows, ascending.

    Raises:
        DataError: The file is no trace, or not a whole one.
    """

    def __init__(self, path: Path, progress: Callable[[int], None] | None = None, temporary: bool = False) -> None:
        self.path = path
        self._progress = progress or (lambda rows: None)
        self._temporary = temporary
        self._file = open_parquet(path)
        try:
            info = read_info(path, self._file)
            if info is None:
                raise DataError(str(path), "is Parquet but no trace; `trimtab trace import` makes one of it")
            self.info = info
            _check_columns(path, self._file.schema_arrow)
            self.modes: tuple[Mode, ...] = tuple(mode_within_bounds(str(path), m) for m in self.info.modes)
            self._deepest = max((mode.steps for mode in self.modes), default=0)
            self.rows = int(self._file.metadata.num_rows)
            self._segments = _segments(path, self.info, self.rows)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
        if self._temporary:
            self.path.unlink(missing_ok=True)

    def segments(self) -> list[Segment]:
        """The runs of engines in the order of the file."""
        return list(self._segments)

    def batches(self, columns: Sequence[str] | None = None, rows: int = BATCH_ROWS) -> Iterator[StepColumns]:
        """The rows in their order, never of two segments at once.

        Args:
            columns: What is wanted besides `result_ns`; None for all. Counts by depth come in whole: any name of
                them brings offered and accepted, fresh or stale.
            rows: Most rows of a batch.

        Raises:
            DataError: A part of the file cannot be read, or rows do not stand where they should; the error names
                the row.
        """
        wanted = _with_pairs(COLUMNS if columns is None else columns)
        segments = iter(self._segments)
        segment, read, last_ns = Segment("", 0, 0, 0), 0, None
        for batch in self._record_batches(wanted, rows):
            start = 0
            while start < batch.num_rows:
                if read == segment.end:
                    segment, last_ns = next(s for s in segments if s.rows), None
                part = batch.slice(start, min(batch.num_rows - start, segment.end - read))
                found = self._columns(segment, read, part, wanted)
                last_ns = self._check_order(found, last_ns)
                start, read = start + len(found), read + len(found)
                yield found
            self._progress(read)

    def _record_batches(self, wanted: Sequence[str], rows: int) -> Iterator[Any]:
        read = 0
        batches = self._file.iter_batches(batch_size=rows, columns=list(wanted))
        while True:
            try:
                batch = next(batches, None)
            except PARQUET_FAULTS as error:
                raise DataError(f"{self.path}: row {read + 1}", f"cannot be read: {error}") from error
            if batch is None:
                return
            read += batch.num_rows
            yield batch

    def _columns(self, segment: Segment, first_row: int, batch: Any, wanted: Sequence[str]) -> StepColumns:
        self._check_segment(segment, first_row, batch)
        arrays = {
            name: self._mode_codes(batch.column(name), first_row) if name == "mode" else to_numpy(batch.column(name))
            for name in wanted
            if name not in COUNTS and name != "engine"
        }
        return StepColumns(
            segment,
            first_row,
            self.modes,
            arrays,
            self._depths(batch, "fresh", wanted, first_row),
            self._depths(batch, "stale", wanted, first_row),
        )

    def _mode_codes(self, column: Any, first_row: int) -> Ints:
        names = column.dictionary.to_pylist()
        known = {name: code for code, name in enumerate(self.info.modes)}
        codes = np.array([known.get(name, ABSENT) for name in names] or [ABSENT], dtype=np.int64)
        found: Ints = codes[column.indices.to_numpy(zero_copy_only=False)]
        if len(found) and found.min() < 0:
            at = int(np.argmin(found))
            raise DataError(f"{self.path}: row {first_row + at + 1}", "ran in a mode that the trace does not list")
        return found

    def _depths(self, batch: Any, which: str, wanted: Sequence[str], first_row: int) -> DepthArrays | None:
        if f"{which}_offered" not in wanted:
            return None
        offered, accepted = batch.column(f"{which}_offered"), batch.column(f"{which}_accepted")
        depths = _lengths(offered)
        unlike = np.flatnonzero(depths != _lengths(accepted))
        if len(unlike):
            row = first_row + int(unlike[0]) + 1
            raise DataError(f"{self.path}: row {row}", f"{which} drafts were offered and accepted at other depths")
        width = max(self._deepest, int(depths.max(initial=0)))
        if width > MAX_STEPS:
            row = first_row + int(depths.argmax()) + 1
            raise DataError(f"{self.path}: row {row}", f"has counts of {width:,} drafts a step, at most {MAX_STEPS}")
        return DepthArrays(_dense(offered, width), _dense(accepted, width), depths)

    def _check_segment(self, segment: Segment, first_row: int, batch: Any) -> None:
        engines, runs = batch.column("engine"), batch.column("run").to_numpy()
        names = np.array([name == segment.engine for name in engines.dictionary.to_pylist()] or [False])
        right = names[engines.indices.to_numpy(zero_copy_only=False)] & (runs == segment.run)
        if not right.all():
            row = first_row + int(np.argmin(right)) + 1
            raise DataError(
                f"{self.path}: row {row}", f"is not of {segment.engine} run {segment.run}: the rows are not in order"
            )

    def _check_order(self, found: StepColumns, last_ns: int | None) -> int:
        result_ns = found.ints("result_ns")
        falls = np.flatnonzero(np.diff(result_ns, prepend=result_ns[0] if last_ns is None else last_ns) < 0)
        if len(falls):
            row = found.first_row + int(falls[0]) + 1
            raise DataError(f"{self.path}: row {row}", "time goes backwards: the rows are not in their order")
        return int(result_ns[-1])


def is_parquet(path: Path) -> bool:
    """Whether the file begins as Parquet does; `DataError` if it cannot be read."""
    with InputFile(path, whole_lines=False) as file:
        return file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC


def mode_within_bounds(place: str, name: str) -> Mode:
    """The mode with this name; `DataError` names `place` if there is none, or if it has too many steps."""
    mode = read_mode(place, name)
    if mode.steps > MAX_STEPS:
        raise DataError(place, f"mode {name!r} has more than {MAX_STEPS} drafts a step")
    return mode


def open_parquet(path: Path) -> Any:
    """The Parquet file, with its checksums looked at; `DataError` says what is wrong with it."""
    try:
        # Read ahead, it would keep what it has read: as much memory as the file is long.
        return pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
    except FileNotFoundError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror or error}") from error
    except PARQUET_FAULTS as error:
        problem = f"is not a whole Parquet file: {error}"
        raise DataError(str(path), problem) from error


def read_info(path: Path, file: Any) -> TraceInfo | None:
    """What an open Parquet file says of itself as a trace; None if it does not."""
    written = (file.metadata.metadata or {}).get(METADATA_KEY)
    if written is None:
        return None
    try:
        version = msgspec.json.decode(written)["format"]
        if version != FORMAT_VERSION:
            raise DataError(str(path), f"is a trace of format {version}; this version reads {FORMAT_VERSION}")
        return msgspec.json.decode(written, type=TraceInfo)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise DataError(str(path), f"says of itself what cannot be read: {error}") from error


def _check_columns(path: Path, schema: Any) -> None:
    for field in SCHEMA:
        at = schema.get_field_index(field.name)
        if at < 0:
            raise DataError(str(path), f"has no column {field.name}")
        if schema.field(at).type != field.type:
            raise DataError(str(path), f"column {field.name} is {schema.field(at).type}, not {field.type}")


def _segments(path: Path, info: TraceInfo, rows: int) -> tuple[Segment, ...]:
    listed = sum(engine.rows for engine in info.engines)
    if listed != rows:
        raise DataError(str(path), f"lists {listed:,} rows and has {rows:,}: something else changed it")
    ends = accumulate((engine.rows for engine in info.engines), initial=0)
    return tuple(
        Segment(engine.engine, engine.run, first, engine.rows)
        for engine, first in zip(info.engines, ends, strict=False)
    )


def _with_pairs(columns: Sequence[str]) -> list[str]:
    """The columns to read for these, in the order of the file."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise ValueError(f"a trace has no column {unknown[0]!r}")
    wanted = {*columns, *_ALWAYS}
    for name in COUNTS:
        if name in columns:
            which = name.split("_")[0]
            wanted |= {f"{which}_offered", f"{which}_accepted"}
    return [name for name in COLUMNS if name in wanted]


def to_numpy(column: Any) -> npt.NDArray[Any]:
    """Integers as int64 with -1 for null; fractions as float64 with NaN for null."""
    if pa.types.is_floating(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
    if column.null_count:
        column = column.fill_null(ABSENT)
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def _lengths(column: Any) -> npt.NDArray[np.int32]:
    """Entries of every list; -1 for null."""
    lengths: npt.NDArray[np.int32] = np.diff(column.offsets.to_numpy()).astype(np.int32)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = ABSENT
    return lengths


def _dense(column: Any, width: int) -> npt.NDArray[np.int32]:
    """The lists as rows, shape `(n_rows, width)`; 0 beyond their ends."""
    lengths = _lengths(column)
    dense = np.zeros((len(lengths), width), dtype=np.int32)
    if width:
        dense[np.arange(width) < lengths[:, None]] = column.flatten().to_numpy()
    return dense
