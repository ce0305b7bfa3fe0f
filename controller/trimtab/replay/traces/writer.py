"""Writes a trace, a stretch of rows at a time; the file appears when it is complete, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trimtab.domain import StepRow
from trimtab.errors import DataError
from trimtab.profile_file import read_mode
from trimtab.replay.traces.schema import COUNTS, METADATA_KEY, REQUIRED, SCHEMA, TraceEngine, trace_info

# Rows that are compressed together: they are what a reader has in memory at least.
GROUP_ROWS = 128_000


class TraceWriter:
    """Writes one trace; leaving the context puts it in place, an exception leaves everything as it was.

    Call `begin` for every run of an engine, then `write` its rows in the order of their results.

    Args:
        path: Where the trace goes. What is there stays until the new one is complete.
        source: What it is made from; see `TraceInfo`.

    Raises:
        DataError: The file cannot be written, or rows are not in their order.
    """

    def __init__(self, path: Path, source: str) -> None:
        self.path = path
        self.rows = 0
        self._source = source
        self._beside = path.with_name(f".{path.name}.{os.getpid()}")
        self._engines: list[TraceEngine] = []
        self._modes: set[str] = set()
        self._last_ns: int | None = None
        self._pending: list[Any] = []
        self._pending_rows = 0

    def __enter__(self) -> Self:
        with self._explained():
            self._file = pq.ParquetWriter(self._beside, SCHEMA, compression="zstd", write_page_checksum=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with self._explained():
                if kind is None:
                    self._finish()
                    self._beside.replace(self.path)
                else:
                    # What was written so far goes; that it cannot be completed does not matter.
                    with suppress(OSError, pa.ArrowException):
                        self._file.close()
        finally:
            self._beside.unlink(missing_ok=True)

    def begin(self, engine: TraceEngine) -> None:
        """The rows from here on are of this run of this engine."""
        if any((e.engine, e.run) == (engine.engine, engine.run) for e in self._engines):
            raise DataError(str(self.path), f"{engine.engine} run {engine.run} comes twice")
        self._engines.append(msgspec.structs.replace(engine, rows=0))
        self._last_ns = None

    def write(self, columns: Mapping[str, Any]) -> None:
        """Add rows of the present run.

        Args:
            columns: Columns by name but `engine` and `run`: Arrow arrays, or numpy arrays without nulls. `mode` as
                strings or as an Arrow dictionary of strings. Columns that are missing are null in every row.
        """
        table = self._table(columns)
        self._check(table)
        engine = self._engines[-1]
        self._engines[-1] = msgspec.structs.replace(engine, rows=engine.rows + table.num_rows)
        self.rows += table.num_rows
        self._pending.append(table)
        self._pending_rows += table.num_rows
        if self._pending_rows >= GROUP_ROWS:
            self._flush()

    def write_rows(
        self,
        rows: Sequence[StepRow],
        probabilities: Sequence[float | None] | None = None,
        dwell_steps: Sequence[int | None] | None = None,
    ) -> None:
        """Add step rows of the present run.

        Args:
            rows: The rows.
            probabilities: With which each row's mode was chosen; None where that is unknown.
            dwell_steps: Steps between two draws of each row's lease; 0 where there is nothing to draw.
        """
        nothing = [None] * len(rows)
        self.write(
            {
                **columns_of(rows),
                "probability": pa.array(probabilities or nothing, pa.float64()),
                "exploration_dwell_steps": pa.array(dwell_steps or nothing, pa.int32()),
            }
        )

    def _table(self, columns: Mapping[str, Any]) -> Any:
        engine = self._engines[-1]
        n = len(columns["result_ns"])
        given = {**columns, "run": np.full(n, engine.run, dtype=np.int32)}
        given["engine"] = pa.DictionaryArray.from_arrays(np.zeros(n, dtype=np.int32), pa.array([engine.engine]))
        arrays = [_array(given.get(field.name), field.type, n) for field in SCHEMA]
        return pa.Table.from_arrays(arrays, schema=SCHEMA)

    def _check(self, table: Any) -> None:
        for name in REQUIRED:
            if table.column(name).null_count:
                raise DataError(str(self.path), f"a row has no {name}")
        result_ns = table.column("result_ns").to_numpy()
        if not len(result_ns):
            return
        first_ns = result_ns[0] if self._last_ns is None else self._last_ns
        falls = np.flatnonzero(np.diff(result_ns, prepend=first_ns) < 0)
        if len(falls):
            raise DataError(
                f"{self.path}: row {self.rows + int(falls[0]) + 1}", "time goes backwards: rows are not in their order"
            )
        self._last_ns = int(result_ns[-1])
        self._modes.update(pc.unique(table.column("mode")).to_pylist())

    def _mode_names(self) -> tuple[str, ...]:
        return tuple(str(mode) for mode in sorted(read_mode(str(self.path), name) for name in self._modes))

    def _finish(self) -> None:
        try:
            self._flush()
            info = trace_info(self._source, self._mode_names(), tuple(self._engines))
            self._file.add_key_value_metadata({METADATA_KEY: msgspec.json.encode(info)})
        finally:
            self._file.close()

    def _flush(self) -> None:
        if self._pending:
            table = pa.concat_tables(self._pending).unify_dictionaries()
            with self._explained():
                self._file.write_table(table, row_group_size=GROUP_ROWS)
        self._pending, self._pending_rows = [], 0

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(str(self.path), f"cannot be written: {error.strerror or error}") from error


def _array(column: Any, kind: Any, n: int) -> Any:
    if column is None:
        return pa.nulls(n, kind)
    if not isinstance(column, (pa.Array, pa.ChunkedArray)):
        column = pa.array(column)
    if pa.types.is_dictionary(kind) and not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    return column if column.type == kind else column.cast(kind)


def columns_of(rows: Sequence[StepRow]) -> dict[str, Any]:
    """Step rows as the columns of a trace."""
    named = {field.name: field.type for field in SCHEMA}
    columns = {
        name: pa.array([getattr(row, name) for row in rows], kind)
        for name, kind in named.items()
        if name in StepRow.__dataclass_fields__ and name not in ("mode", "flags")
    }
    columns["mode"] = pa.array([str(row.mode) for row in rows], pa.string())
    columns["flags"] = pa.array([int(row.flags) for row in rows], pa.int32())
    columns["accepted_tokens"] = pa.array([row.accepted_tokens for row in rows], pa.int32())
    for name in COUNTS:
        which, what = name.split("_")
        counts: Iterable[tuple[int, ...]] = (getattr(getattr(row, which), what) for row in rows)
        columns[name] = pa.array(list(counts), named[name])
    return columns
