"""Makes one trace of files that others wrote.

| file | how it is told apart |
|---|---|
| step log (CSV) | has `t_s`, `num_steps`, `batch_size`, `accepted_drafts` |
| step rows (CSV, JSON lines) | have `batch_size` and `mode`; other columns by their names in a trace |
| SGLang's own log | has lines about decode steps, with `#running-req` and `accept len` |
| Parquet | a trace, or columns of one |

All but Parquet may be gzipped. The trace appears when it is complete, or nothing changes on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from trimtab.errors import DataError
from trimtab.replay.traces.import_rows import INDISPENSABLE, CsvRows, JsonRows, ParquetRows
from trimtab.replay.traces.import_sglang import SglangLog
from trimtab.replay.traces.import_step_log import LOG_COLUMNS, StepLog
from trimtab.replay.traces.input_file import InputFile, LeftOut, Progress
from trimtab.replay.traces.reader import PARQUET_MAGIC
from trimtab.replay.traces.schema import TraceEngine
from trimtab.replay.traces.source import WHAT_THERE_IS, TraceSource
from trimtab.replay.traces.writer import TraceWriter
from trimtab.store.schema import MAGIC as JOURNAL_MAGIC

ENDINGS = frozenset({".gz", ".csv", ".json", ".jsonl", ".log", ".txt", ".parquet"})
FIRST_BYTES = 1 << 16


class LeftOutRows(msgspec.Struct, frozen=True):
    """Rows that were left out for one reason, and the line of the first of them (the row, in Parquet)."""

    rows: int
    first_line: int


class ImportedFile(msgspec.Struct, frozen=True):
    """What became of one file.

    Attributes:
        file: Its path.
        source: What it was taken for; see `TraceInfo.source`.
        rows: Rows in it.
        imported: Those that are in the trace.
        left_out: The others, by reason.
        ignored_columns: Columns that a trace has no place for.
        engines: Runs of engines that it gave to the trace.
    """

    file: str
    source: str
    rows: int
    imported: int
    left_out: dict[str, LeftOutRows]
    ignored_columns: tuple[str, ...]
    engines: tuple[str, ...]


class ImportReport(msgspec.Struct, frozen=True):
    """What became of all files.

    Attributes:
        trace: Path of the trace.
        rows: Rows of the trace.
        left_out: Rows of the files that are not in it.
    """

    trace: str
    rows: int
    left_out: int
    files: tuple[ImportedFile, ...]


def import_traces(
    paths: Sequence[Path],
    output: Path,
    engine: str | None = None,
    steps: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> ImportReport:
    """Write the rows of all files into one trace.

    Args:
        paths: At least one file. A run of an engine that an earlier file has as well gets the next free number.
        output: Where the trace goes.
        engine: Name of the engine in files that do not say it; else the file's own name.
        steps: Drafts a step in logs of SGLang that do not say it.
        progress: Told now and then how many bytes of the files have been read in all.

    Raises:
        DataError: A file cannot be read or used; the error names the place, and nothing has changed on disk.
    """
    told = progress or (lambda read: None)
    before, sources = 0, list[TraceSource]()
    for path in paths:
        size = path.stat().st_size if path.exists() else 0
        sources.append(open_source(path, engine or _plain_name(path), steps, _in_bytes(told, before, size)))
        before += size
    kinds = "+".join(sorted({kind for source in sources for kind in source.kind.split("+")}))
    with TraceWriter(output, kinds) as writer:
        runs = _Runs(writer)
        files = tuple(_write(path, source, runs) for path, source in zip(paths, sources, strict=True))
    left_out = sum(file.rows - file.imported for file in files)
    return ImportReport(str(output), writer.rows, left_out, files)


def open_source(path: Path, engine: str, steps: int | None, progress: Progress) -> TraceSource:
    """The file as what it is.

    Raises:
        DataError: It cannot be read, or it is nothing that a trace can be made of.
    """
    with InputFile(path, whole_lines=False) as file:
        text = file.read(FIRST_BYTES)
    if text.startswith(PARQUET_MAGIC):
        return ParquetRows(path, engine, progress)
    if not text:
        raise DataError(str(path), "is empty")
    if text.startswith(JOURNAL_MAGIC):
        raise DataError(str(path), "is a database; of a journal `trimtab trace export` makes a trace")
    if b"\0" in text:
        raise DataError(str(path), WHAT_THERE_IS)
    first = text.split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    if first.startswith("{"):
        return JsonRows(path, engine, progress)
    header = tuple(name.strip().strip('"') for name in first.split(","))
    if "step_ms_p50" in header:
        raise DataError(str(path), "is a table of medians, not of steps; `trimtab profile fit` takes it")
    if set(header) >= set(LOG_COLUMNS):
        return StepLog(path, engine, header, progress)
    if set(header) >= set(INDISPENSABLE):
        return CsvRows(path, engine, header, progress)
    return SglangLog(path, engine, steps, progress)


class _Runs:
    """Writes blocks under run numbers that are free. Owner: `import_traces`."""

    def __init__(self, writer: TraceWriter) -> None:
        self.writer = writer
        self._taken: dict[str, set[int]] = {}

    def begin(self, engine: TraceEngine) -> TraceEngine:
        taken = self._taken.setdefault(engine.engine, set())
        run = engine.run if engine.run not in taken else max(taken) + 1
        taken.add(run)
        found = msgspec.structs.replace(engine, run=run)
        self.writer.begin(found)
        return found


def _write(path: Path, source: TraceSource, runs: _Runs) -> ImportedFile:
    before, present, engines = runs.writer.rows, None, list[str]()
    for block in source.blocks():
        key = block.engine.engine, block.engine.run
        if key != present:
            found = runs.begin(block.engine)
            engines.append(f"{found.engine} run {found.run}")
            present = key
        runs.writer.write(block.columns)
    imported = runs.writer.rows - before
    if not imported:
        raise DataError(str(path), _why_nothing(source))
    left_out = {
        reason: LeftOutRows(rows, source.left_out.first[reason])
        for reason, rows in sorted(source.left_out.counts.items())
    }
    return ImportedFile(str(path), source.kind, source.rows, imported, left_out, source.ignored_columns, tuple(engines))


def _why_nothing(source: TraceSource) -> str:
    if not source.rows:
        return "has no rows"
    return f"has no row that can be a decode step: {reasons(source.left_out)}"


def reasons(left_out: LeftOut) -> str:
    """What was left out, in words."""
    return ", ".join(f"{rows:,} {reason}" for reason, rows in left_out.counts.most_common())


def _plain_name(path: Path) -> str:
    """The file's name without the endings that say what kind of file it is."""
    name = path.name
    while (ending := Path(name).suffix) in ENDINGS:
        name = name.removesuffix(ending)
    return name


def _in_bytes(progress: Callable[[int], None], before: int, size: int) -> Progress:
    return lambda share: progress(before + int(share * size))
