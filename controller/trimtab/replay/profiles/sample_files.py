"""Files that step times can be learnt from, as samples: the measured table, step logs, and step rows.

| file | how it is told apart |
|---|---|
| measured table (CSV) | has `step_ms_p50`: a row is a median already, of `samples` steps |
| step log (CSV) | `t_s`, `num_steps` (-1: cold plain), `batch_size`, `accepted_drafts`: a row for each decode result |
| step rows (CSV, JSON lines) | `batch_size`, `mode`, `step_ns` or `step_ms`; other columns by the names of `StepRow` |
| trace (Parquet) | see `traces/schema.py` |

All but traces may be gzipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from trimtab.domain import PLAIN_COLD, PLAIN_WARM, Mode, StepFlag, speculate
from trimtab.errors import DataError
from trimtab.profile_file import read_mode
from trimtab.replay.arrays import Floats, Ints, Mask, rows_by_code
from trimtab.replay.profiles.samples import cost_samples
from trimtab.replay.profiles.trace_samples import trace_samples
from trimtab.replay.profiles.wanted import Found, Wanted, generated_tokens, padded_sizes
from trimtab.replay.step_times import PLAIN_MODES, QUEUED_BATCH_SIZE
from trimtab.replay.traces.import_rows import ModeObject
from trimtab.replay.traces.import_step_log import GAP_FACTOR, LOG_COLUMNS
from trimtab.replay.traces.reader import is_parquet
from trimtab.replay.traces.text_columns import Table, TextFile, read_csv

TABLE_WORDS = ("model", "attention_backend", "mode")
TABLE_NUMBERS = ("prompt_tokens", "batch_size", "num_steps", "step_ms_p50", "samples")
ROW_NUMBERS = (
    "batch_size", "padded_batch_size", "step_ns", "step_ms", "flags", "retracted_requests", "grammar_requests",
    "context_tokens_sum", "context_tokens_max",
)  # fmt: skip


def read_samples(path: Path, wanted: Wanted, progress: Callable[[int], None] | None = None) -> Found:
    """The samples of a file.

    Args:
        path: The file.
        wanted: What to take from it.
        progress: Told now and then how many bytes of the file have been read.

    Raises:
        DataError: The file cannot be read or used; the error names the place.
    """
    if is_parquet(path):
        return trace_samples(path, wanted, progress)
    with TextFile(path, progress) as lines:
        first = next(lines, "")
        if first.lstrip().startswith("{"):
            return _step_rows(path, _json_table(path, chain([first], lines)), wanted)
        header = {name.strip() for name in first.split(",")}
        everything = chain([first], lines)
        if "step_ms_p50" in header:
            return _measured_table(path, read_csv(path, everything, TABLE_NUMBERS, TABLE_WORDS), wanted)
        if header >= set(LOG_COLUMNS):
            return _step_log(path, read_csv(path, everything, LOG_COLUMNS), wanted)
        if {"batch_size", "mode"} <= header:
            return _step_rows(path, read_csv(path, everything, ROW_NUMBERS, ("mode",), optional=True), wanted)
    raise DataError(
        str(path),
        "is none of: a measured table (with step_ms_p50), a step log (with t_s, num_steps, batch_size, "
        "accepted_drafts), step rows (with batch_size, mode, step_ns; CSV or JSON lines), a trace",
    )


# -- the measured table ------------------------------------------------------------------------------


def _measured_table(path: Path, table: Table, wanted: Wanted) -> Found:
    """Medians of a table that several models and backends may share."""
    numbers, left_out = table.numbers, Counter[str]()
    mine = np.ones(table.rows, dtype=bool)
    for column, name in (("model", wanted.model), ("attention_backend", wanted.attention_backend)):
        codes, words = table.words[column]
        if name and name not in words:
            raise DataError(str(path), f"has no rows of {column} {name!r}; there are: {', '.join(sorted(words))}")
        if name:
            mine &= codes == words.index(name)
        elif len(words) > 1:
            option = f"--{column.replace('_', '-')}"
            raise DataError(str(path), f"is of several: {', '.join(sorted(words))}; choose one with {option}")
    left_out["other_model"] = int((~mine).sum())
    # Taken while requests queued: the scheduler's own work is in these step times.
    queued = mine & (numbers["batch_size"] == QUEUED_BATCH_SIZE)
    left_out["queued"] = int(queued.sum())
    mine &= ~queued
    modes, mode = _numbered(_table_modes(path, table))
    columns = {
        "mode": mode[mine],
        "batch_size": numbers["batch_size"][mine],
        "step_ns": numbers["step_ms_p50"][mine] * 1e6,
        "steps": numbers["samples"][mine],
        "context_tokens_sum": (numbers["prompt_tokens"] * numbers["batch_size"])[mine],
    }
    samples, dropped = cost_samples(modes, columns)
    return Found(samples, table.rows, +(left_out + dropped))


def _table_modes(path: Path, table: Table) -> list[Mode]:
    codes, words = table.words["mode"]
    steps = table.numbers["num_steps"]
    unknown = [word for word in words if word not in PLAIN_MODES and word != "speculate"]
    if unknown:
        raise DataError(str(path), f"unknown mode {unknown[0]!r}; there are: {', '.join(PLAIN_MODES)} and speculate")
    return [PLAIN_MODES.get(words[code]) or speculate(int(k)) for code, k in zip(codes, steps, strict=True)]


def _numbered(modes: list[Mode]) -> tuple[tuple[Mode, ...], Ints]:
    distinct = tuple(sorted(set(modes)))
    number = {mode: i for i, mode in enumerate(distinct)}
    return distinct, np.array([number[mode] for mode in modes], dtype=np.int64)


# -- step logs ---------------------------------------------------------------------------------------


def _step_log(path: Path, table: Table, wanted: Wanted) -> Found:
    """Times between results. A long one, or one in which the batch grew, holds a prefill or idle time."""
    t_s, steps, size, accepted = (table.numbers[name] for name in LOG_COLUMNS)
    step_ms = np.diff(t_s, prepend=np.nan) * 1e3
    backwards = np.flatnonzero(step_ms < 0)
    if len(backwards):
        raise DataError(f"{path}:{backwards[0] + 2}", "time goes backwards: the rows are not in their order")
    distinct, mode = np.unique(steps, return_inverse=True)
    gap = np.isnan(step_ms) | (np.diff(size, prepend=np.inf) > 0) | _is_long(step_ms, size, mode)
    switched = np.diff(steps, prepend=steps[:1]) != 0
    columns: dict[str, Any] = {
        "mode": mode,
        "batch_size": size,
        "padded_batch_size": padded_sizes(size, wanted),
        "step_ns": step_ms * 1e6,
        "flags": gap * int(StepFlag.GAP) + switched * int(StepFlag.SWITCHED),
    }
    if wanted.prompt_tokens is not None and table.rows:
        columns["context_tokens_sum"] = size * (wanted.prompt_tokens + generated_tokens(gap, accepted + size, size))
    modes = [PLAIN_COLD if k < 0 else PLAIN_WARM if k == 0 else speculate(int(k)) for k in distinct]
    samples, left_out = cost_samples(modes, columns)
    return Found(samples, table.rows, left_out)


def _is_long(step_ms: Floats, size: Floats, mode: Ints) -> Mask:
    """Whether a time is far beyond the median of its batch size and mode."""
    long = np.zeros(len(step_ms), dtype=bool)
    for rows in rows_by_code(size.astype(np.int64) * (mode.max(initial=0) + 1) + mode):
        timed = step_ms[rows]
        long[rows] = timed > GAP_FACTOR * np.median(timed[~np.isnan(timed)]) if not np.isnan(timed).all() else False
    return long


# -- step rows ---------------------------------------------------------------------------------------


def _step_rows(path: Path, table: Table, wanted: Wanted) -> Found:
    codes, words = table.words["mode"]
    columns: dict[str, Any] = {**table.numbers, "mode": codes}
    if "step_ns" not in columns:
        if "step_ms" not in columns:
            raise DataError(str(path), "has neither step_ns nor step_ms")
        columns["step_ns"] = columns["step_ms"] * 1e6
    if "padded_batch_size" not in columns:
        columns["padded_batch_size"] = padded_sizes(columns["batch_size"], wanted)
    samples, left_out = cost_samples([read_mode(str(path), word) for word in words], columns)
    return Found(samples, table.rows, left_out)


class _RowObject(msgspec.Struct):
    batch_size: float
    mode: str | ModeObject
    step_ns: float | None = None
    step_ms: float | None = None
    padded_batch_size: float | None = None
    flags: float | None = None
    retracted_requests: float | None = None
    grammar_requests: float | None = None
    context_tokens_sum: float | None = None
    context_tokens_max: float | None = None


def _json_table(path: Path, lines: Iterator[str]) -> Table:
    """Objects, one a line, as columns; those that no row has are left out."""
    decoder = msgspec.json.Decoder(_RowObject)
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(decoder.decode(line))
            except msgspec.MsgspecError as error:
                raise DataError(f"{path}:{number}", f"is no step row: {error}") from error
    numbers: Mapping[str, Floats] = {
        name: np.array([getattr(row, name) for row in rows], dtype=np.float64) for name in ROW_NUMBERS
    }
    words: dict[str, int] = {}
    codes = np.array([words.setdefault(str(row.mode), len(words)) for row in rows], dtype=np.int64)
    present = {name: column for name, column in numbers.items() if not np.isnan(column).all()}
    return Table(len(rows), present, {"mode": (codes, list(words))})
