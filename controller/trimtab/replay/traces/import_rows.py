"""Step rows from CSV, JSON lines and Parquet as rows of a trace.

Columns go by their names in a trace; every one but `mode` and `batch_size` may be missing. Then `engine` is the name
that the import was given, `run` is 0, `step_ns` comes from `step_ms`, `accepted_tokens` from the counts by depth, and
`result_ns` goes on from row to row by `wall_gap_ns` or else `step_ns`. Other columns are ignored, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trimtab.errors import DataError
from trimtab.replay.arrays import Ints
from trimtab.replay.traces.input_file import InputFile, LeftOut, Progress
from trimtab.replay.traces.reader import PARQUET_FAULTS, open_parquet, read_info
from trimtab.replay.traces.row_checks import Columns, RowChecks, read_lists, sum_of_lists
from trimtab.replay.traces.schema import COLUMNS, COUNTS, FRACTIONS, INTEGERS, WORDS, TraceEngine
from trimtab.replay.traces.source import Block, csv_batches
from trimtab.wire.rows import MAX_STEP_NS

IDENTITY = frozenset({"engine", "run", "result_ns"})
INDISPENSABLE = ("batch_size", "mode")
JSON_BLOCK_ROWS = 20_000
PARQUET_BLOCK_ROWS = 50_000
FAR_MS = 9e12
INT32, INT64 = 1 << 31, 1 << 63
KNOWN = frozenset({*COLUMNS, "step_ms"})
NOT_IN_ORDER = "the rows are not in their order"


class StepRows:
    """Step rows of one file; see `TraceSource`. Subclasses say how they come out of the file."""

    kind = "step_rows"

    def __init__(self, path: Path, engine: str, progress: Progress) -> None:
        self.rows = 0
        self.left_out = LeftOut()
        self.ignored_columns: tuple[str, ...] = ()
        self._path = path
        self._default_engine = engine
        self._progress = progress
        self._checks = RowChecks(self._place, self.left_out)
        self._engines: dict[tuple[str, int], TraceEngine] = {}
        self._seen: set[tuple[str, int]] = set()
        self._present: tuple[str, int] | None = None
        self._last = {"result_ns": -(1 << 63), "step": -1}
        self._clock_ns: int | None = None

    def blocks(self) -> Iterator[Block]:
        """All rows that can be in a trace."""
        for line, given in self._read():
            self.rows += len(line)
            columns, line = self._checks.checked(self._completed(given, len(line)), line)
            yield from self._split(columns, line)

    def _read(self) -> Iterator[tuple[Ints, Columns]]:
        """The rows of the file in stretches, with the number of each row's line."""
        raise NotImplementedError

    def _place(self, line: int) -> str:
        return f"{self._path}:{line}"

    def _check_header(self, names: Sequence[str]) -> list[str]:
        """The columns to read of those that there are."""
        missing = [name for name in INDISPENSABLE if name not in names]
        if missing:
            raise DataError(str(self._path), f"has no column {missing[0]}")
        self.ignored_columns = tuple(name for name in names if name not in KNOWN)
        return [name for name in names if name in KNOWN]

    def _completed(self, given: Columns, n: int) -> Columns:
        """The columns with those that every trace has."""
        found = dict(given)
        step_ms = found.pop("step_ms", None)
        if "step_ns" not in found and step_ms is not None:
            found["step_ns"] = _ns_of_ms(step_ms)
        found.setdefault("engine", pa.array([self._default_engine] * n, pa.string()))
        found.setdefault("run", pa.array(np.zeros(n, dtype=np.int64)))
        if "accepted_tokens" not in found and "fresh_accepted" in found:
            counts = [found[name] for name in ("fresh_accepted", "stale_accepted") if name in found]
            total = sum(sum_of_lists(column) for column in counts)
            found["accepted_tokens"] = pa.array(total, mask=counts[0].is_null().to_numpy(zero_copy_only=False))
        if "result_ns" not in found:
            found["result_ns"] = self._times(found, n)
        return found

    def _times(self, columns: Columns, n: int) -> Any:
        """Times of the results where the file does not say them."""
        took = [columns[name] for name in ("wall_gap_ns", "step_ns") if name in columns]
        if not took:
            raise DataError(str(self._path), "says no times: it has none of result_ns, wall_gap_ns, step_ns, step_ms")
        ns = pc.coalesce(*map(_if_it_can_be, took), 0)
        ends = np.cumsum(ns.to_numpy(zero_copy_only=False)) + (self._clock_ns or 0)
        # The first result is the beginning.
        ends = ends - (int(ns[0].as_py()) if self._clock_ns is None and n else 0)
        self._clock_ns = int(ends[-1]) if n else self._clock_ns
        return pa.array(ends)

    def _split(self, columns: Columns, line: Ints) -> Iterator[Block]:
        """The rows by run of an engine."""
        engines, runs = columns.pop("engine").dictionary_encode(), columns.pop("run").to_numpy(zero_copy_only=False)
        codes = engines.indices.to_numpy(zero_copy_only=False)
        changes = np.flatnonzero((np.diff(codes) != 0) | (np.diff(runs) != 0)) + 1
        bounds = [0, *changes.tolist(), len(line)]
        for start, stop in pairwise(bounds):
            if start == stop:
                continue
            part = {name: column.slice(start, stop - start) for name, column in columns.items()}
            key = str(engines.dictionary[int(codes[start])]), int(runs[start])
            self._enter(key, int(line[start]))
            for name in ("result_ns", "step"):
                self._check_order(name, part.get(name), line[start:stop])
            yield Block(self._engines.get(key) or TraceEngine(*key), part)

    def _enter(self, key: tuple[str, int], line: int) -> None:
        if key == self._present:
            return
        if key in self._seen:
            problem = f"{key[0]} run {key[1]} comes in two places: {NOT_IN_ORDER}"
            raise DataError(self._place(line), problem)
        self._present = key
        self._seen.add(key)
        self._last = {"result_ns": -(1 << 63), "step": -1}

    def _check_order(self, name: str, column: Any, line: Ints) -> None:
        if column is None:
            return
        if column.null_count:
            known = column.is_valid()
            column, line = column.filter(known), line[known.to_numpy(zero_copy_only=False)]
        values = column.to_numpy(zero_copy_only=False)
        if not len(values):
            return
        falls = np.flatnonzero(np.concatenate([values[:1] < self._last[name], values[1:] < values[:-1]]))
        if len(falls):
            what = "time goes backwards" if name == "result_ns" else "the step counter goes backwards"
            raise DataError(self._place(int(line[falls[0]])), f"{what}: {NOT_IN_ORDER}")
        self._last[name] = int(values[-1])


def _ns_of_ms(ms: Any) -> Any:
    """Milliseconds as whole nanoseconds; what does not go into 64 bits stays far out of range."""
    known = pc.if_else(pc.is_nan(ms), None, ms)
    within = pc.min_element_wise(pc.max_element_wise(known, -FAR_MS, skip_nulls=False), FAR_MS, skip_nulls=False)
    return pc.cast(pc.round(pc.multiply(within, 1e6)), pa.int64())


def _if_it_can_be(ns: Any) -> Any:
    """The times that a row can have taken; null for the others."""
    return pc.if_else(pc.and_(pc.greater(ns, 0), pc.less_equal(ns, MAX_STEP_NS)), ns, None)


class CsvRows(StepRows):
    """Step rows as CSV with a header; lists as `[4, 3, 1]`."""

    def __init__(self, path: Path, engine: str, header: Sequence[str], progress: Progress) -> None:
        super().__init__(path, engine, progress)
        self._header = header
        self._columns = self._check_header(header)

    def _read(self) -> Iterator[tuple[Ints, Columns]]:
        types = {name: _csv_type(name) for name in self._columns}
        with InputFile(self._path, self._progress) as file:
            for batch in csv_batches(file, self._header, types):
                first = self.rows + 2
                found = {name: batch.column(name) for name in self._columns}
                for name in COUNTS:
                    if name in found:
                        found[name] = read_lists(name, found[name], first, self._place)
                yield np.arange(first, first + len(batch), dtype=np.int64), found


def _csv_type(name: str) -> Any:
    if name in INTEGERS:
        return pa.int64()
    return pa.float64() if name in FRACTIONS or name == "step_ms" else pa.string()


class ModeObject(msgspec.Struct):
    """A mode as an object; prints as its name."""

    kind: str
    steps: int = 0

    def __str__(self) -> str:
        return f"{self.kind}({self.steps})" if self.steps else self.kind


Int64 = Annotated[int, msgspec.Meta(ge=-INT64, le=INT64 - 1)]
Int32 = Annotated[int, msgspec.Meta(ge=-INT32, le=INT32 - 1)]
_OPTIONAL: dict[str, Any] = {
    **dict.fromkeys(INTEGERS, Int64 | None),
    **dict.fromkeys((*FRACTIONS, "step_ms"), float | None),
    **dict.fromkeys(COUNTS, list[Int32] | None),
    "engine": str | None,
}
_NEEDED: dict[str, Any] = {"batch_size": Int64, "mode": str | ModeObject}
RowObject: Any = msgspec.defstruct(
    "RowObject",
    [*_NEEDED.items(), *((name, kind, None) for name, kind in _OPTIONAL.items() if name not in _NEEDED)],
)


class JsonRows(StepRows):
    """Step rows as JSON objects, one a line; `mode` as a name or as `kind` and `steps`."""

    def _read(self) -> Iterator[tuple[Ints, Columns]]:
        identity: frozenset[str] | None = None
        for line, rows in self._objects():
            names = _names_in(rows)
            has = frozenset(names) & IDENTITY
            # What a row belongs to, and when it was, all rows say or none does.
            identity = has if identity is None else identity
            for name in has - identity:
                at = next(i for i, row in enumerate(rows) if getattr(row, name) is not None)
                raise DataError(self._place(line[at]), f"has {name}, which the rows before have not")
            yield np.array(line, dtype=np.int64), {name: _json_column(name, rows) for name in names | identity}

    def _objects(self) -> Iterator[tuple[list[int], list[Any]]]:
        decoder = msgspec.json.Decoder(RowObject)
        lines, rows = list[int](), list[Any]()
        with InputFile(self._path, self._progress, whole_lines=False) as file:
            for number, text in enumerate(file.text_lines(), start=1):
                try:
                    rows.append(decoder.decode(text))
                except msgspec.MsgspecError as error:
                    raise DataError(self._place(number), f"is no step row: {error}") from error
                lines.append(number)
                if len(rows) == JSON_BLOCK_ROWS:
                    yield lines, rows
                    lines, rows = [], []
        if rows:
            yield lines, rows


def _names_in(rows: Sequence[Any]) -> frozenset[str]:
    return frozenset(
        name for name in RowObject.__struct_fields__ if any(getattr(row, name) is not None for row in rows)
    )


def _json_column(name: str, rows: Sequence[Any]) -> Any:
    values = [getattr(row, name) for row in rows]
    if name == "mode":
        return pa.array(map(str, values), pa.string())
    return pa.array(values, pa.list_(pa.int32()) if name in COUNTS else _csv_type(name))


class ParquetRows(StepRows):
    """Step rows as Parquet: a trace, or columns of one that something else wrote."""

    def __init__(self, path: Path, engine: str, progress: Progress) -> None:
        super().__init__(path, engine, progress)
        self._file = open_parquet(path)
        self._columns = self._check_header(self._file.schema_arrow.names)
        info = read_info(path, self._file)
        if info is not None:
            self.kind = info.source
            self._engines = {(engine.engine, engine.run): engine for engine in info.engines}

    def _place(self, line: int) -> str:
        return f"{self._path}: row {line}"

    def _read(self) -> Iterator[tuple[Ints, Columns]]:
        total = max(1, self._file.metadata.num_rows)
        with self._file:
            batches = self._file.iter_batches(batch_size=PARQUET_BLOCK_ROWS, columns=self._columns)
            while True:
                try:
                    batch = next(batches, None)
                    if batch is None:
                        return
                    found = {name: _plain(name, batch.column(name)) for name in self._columns}
                except PARQUET_FAULTS as error:
                    raise DataError(self._place(self.rows + 1), f"cannot be read: {error}") from error
                yield np.arange(self.rows + 1, self.rows + 1 + len(batch), dtype=np.int64), found
                self._progress(self.rows / total)


def _plain(name: str, column: Any) -> Any:
    """The column in the types that checks take."""
    if name in WORDS:
        return column.cast(pa.string())
    return column.cast(pa.list_(pa.int32()) if name in COUNTS else _csv_type(name))
