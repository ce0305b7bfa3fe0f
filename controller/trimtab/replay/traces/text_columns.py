"""Text files as columns of numbers: read once, a block at a time, with errors that name the line."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Self

import numpy as np

from trimtab.errors import DataError
from trimtab.replay.arrays import Floats, Ints

BLOCK_ROWS = 50_000
PROGRESS_LINES = 20_000
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of a file.

    Attributes:
        rows: How many there are.
        numbers: Columns of numbers, NaN where a field is empty.
        words: Columns of words: the number of each row's word, and the words.
    """

    rows: int
    numbers: Mapping[str, Floats]
    words: Mapping[str, tuple[Ints, Sequence[str]]]


class TextFile:
    """The lines of a file, gzipped or not.

    Args:
        path: The file.
        progress: Told now and then how many bytes of the file have been read.
    """

    def __init__(self, path: Path, progress: Callable[[int], None] | None = None) -> None:
        self._path = path
        self._progress = progress or (lambda position: None)
        self._line = 0

    def __enter__(self) -> Self:
        try:
            self._raw: IO[bytes] = self._path.open("rb")
            zipped = self._raw.read(2) == GZIP_MAGIC
            self._raw.seek(0)
        except OSError as error:
            raise DataError(str(self._path), f"cannot be read: {error.strerror or error}") from error
        content = gzip.GzipFile(fileobj=self._raw) if zipped else self._raw
        self._lines = iter(io.TextIOWrapper(content, encoding="utf-8", newline=""))
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            line = next(self._lines)
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise DataError(f"{self._path}:{self._line + 1}", f"cannot be read: {error}") from error
        self._line += 1
        if self._line % PROGRESS_LINES == 0:
            self._progress(self._raw.tell())
        return line


def read_csv(
    path: Path, lines: Iterator[str], numbers: Sequence[str], words: Sequence[str] = (), optional: bool = False
) -> Table:
    """These columns of a CSV file with a header.

    Args:
        path: For messages.
        lines: The file from its first line.
        numbers: Columns to read as numbers.
        words: Columns to read as words.
        optional: Whether columns of numbers may be missing.

    Raises:
        DataError: A column is missing, a line is too short or too long, or a field is no number.
    """
    reader = csv.reader(lines)
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in (*words, *(() if optional else numbers)) if name not in header]
    if missing:
        raise DataError(f"{path}:1", f"has no column {missing[0]!r}")
    present = [name for name in numbers if name in header]
    blocks: dict[str, list[Floats]] = {name: [] for name in present}
    codes: dict[str, list[int]] = {name: [] for name in words}
    vocabulary: dict[str, dict[str, int]] = {name: {} for name in words}
    rows = 0
    while block := list(islice(_rows(path, reader, len(header)), BLOCK_ROWS)):
        columns = dict(zip(header, zip(*block, strict=True), strict=True))
        for name in present:
            blocks[name].append(_floats(path, name, columns[name], rows))
        for name in words:
            known = vocabulary[name]
            codes[name] += [known.setdefault(word, len(known)) for word in columns[name]]
        rows += len(block)
    return Table(
        rows,
        {name: np.concatenate([np.zeros(0), *parts]) for name, parts in blocks.items()},
        {name: (np.array(codes[name], dtype=np.int64), list(vocabulary[name])) for name in words},
    )


def _rows(path: Path, reader: Iterator[list[str]], fields: int) -> Iterator[list[str]]:
    for row in reader:
        if len(row) == fields:
            yield row
        elif row:
            line = getattr(reader, "line_num", "?")
            raise DataError(f"{path}:{line}", f"has {len(row)} fields, not {fields}")


def _floats(path: Path, name: str, column: Sequence[str], rows_before: int) -> Floats:
    try:
        return np.array([field or "nan" for field in column], dtype=np.float64)
    except ValueError:
        at = next(i for i, field in enumerate(column) if not _is_number(field))
        raise DataError(f"{path}:{rows_before + at + 2}", f"{name} is no number: {column[at]!r}") from None


def _is_number(field: str) -> bool:
    try:
        float(field or "nan")
    except ValueError:
        return False
    return True
