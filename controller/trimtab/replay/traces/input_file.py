"""Text files that traces are made from: read in blocks, gzipped or not, with the line where something is wrong."""

from __future__ import annotations

import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from trimtab.errors import DataError
from trimtab.replay.traces.text_columns import GZIP_MAGIC

READ_BYTES = 1 << 18
# Smaller, since what comes out may be a thousand times as much.
GZIP_READ_BYTES = 1 << 15
LONGEST_LINE_BYTES = 16 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP = 16 + zlib.MAX_WBITS
Progress = Callable[[float], None]


class LeftOut:
    """Rows that were left out: how many by reason, and where the first of each stands."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, int] = {}

    def add(self, reason: str, line: int, rows: int = 1) -> None:
        """So many rows for this reason, the first of them on this line."""
        if rows:
            self.counts[reason] += rows
            self.first.setdefault(reason, line)


def part_of(progress: Progress, number: int, parts: int) -> Progress:
    """The progress of part `number` (from 0) of equal parts."""
    return lambda share: progress((number + share) / parts)


class InputFile(io.RawIOBase):
    """The bytes of a text file; use it as a context manager.

    Reading fails with a `DataError` that names the line where the file is cut off or corrupt. Empty lines at the end
    are not passed on.

    Args:
        path: The file.
        progress: Told now and then which share of the file has been read.
        whole_lines: Whether a last line without a line break counts as cut off.

    Attributes:
        lines: Line breaks read so far.
    """

    def __init__(self, path: Path, progress: Progress | None = None, whole_lines: bool = True) -> None:
        super().__init__()
        self.path = path
        self.lines = 0
        self._progress = progress or (lambda share: None)
        self._whole_lines = whole_lines
        try:
            self._raw = path.open("rb", buffering=0)
            self._size = max(1, path.stat().st_size)
            zipped = self._raw.read(2) == GZIP_MAGIC
            self._raw.seek(0)
        except OSError as error:
            raise DataError(str(path), f"cannot be read: {error.strerror or error}") from error
        self._unzip = zlib.decompressobj(GZIP) if zipped else None
        self._within_member = False
        self._ready = bytearray()
        # Line breaks that may turn out to be at the end.
        self._held = b""
        self._begun = self._ended = False

    def readable(self) -> bool:
        """Yes."""
        return True

    def close(self) -> None:
        """Let go of the file."""
        if not self.closed:
            self._raw.close()
        super().close()

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes, all that are left for -1; empty at the end only."""
        while not self._ended and (size < 0 or len(self._ready) < size):
            self._read_block()
        size = len(self._ready) if size < 0 else size
        found = bytes(self._ready[:size])
        del self._ready[:size]
        return found

    def text_lines(self) -> Iterator[str]:
        """The lines, without their breaks; what is no UTF-8 is replaced."""
        rest = b""
        while block := self.read(READ_BYTES):
            *whole, rest = (rest + block).split(b"\n")
            for line in whole:
                yield line.rstrip(b"\r").decode("utf-8", "replace")
            if len(rest) > LONGEST_LINE_BYTES:
                raise self.error(f"goes on for {len(rest) >> 20} MB: this is no file of lines")
        if rest:
            yield rest.decode("utf-8", "replace")

    def error(self, problem: str) -> DataError:
        """What is wrong with the line that is being read."""
        return DataError(f"{self.path}:{self.lines + 1}", problem)

    def _read_block(self) -> None:
        try:
            raw = self._raw.read(READ_BYTES if self._unzip is None else GZIP_READ_BYTES)
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror or error}") from error
        self._progress(self._raw.tell() / self._size)
        block = raw if self._unzip is None else self._unzipped(raw)
        if not self._begun and block:
            block, self._begun = block.removeprefix(BYTE_ORDER_MARK), True
        self.lines += block.count(b"\n")
        block = self._held + block
        text = block.rstrip(b"\r\n")
        if raw:
            self._ready += text
            self._held = block[len(text) :]
        else:
            self._finish(text, block)

    def _finish(self, text: bytes, block: bytes) -> None:
        self._ended = True
        if self._within_member:
            raise self.error("is cut off: the gzipped file has no end; get the whole file")
        self._ready += text
        if b"\n" in block[len(text) :]:
            self._ready += b"\n"
        elif self._whole_lines and self._raw.tell():
            raise self.error("is cut off: the last line has no line break; remove it or get the whole file")

    def _unzipped(self, raw: bytes) -> bytes:
        found = bytearray()
        try:
            while raw:
                if not self._within_member:
                    # Some writers fill the end of a file with zeros.
                    raw = raw.lstrip(b"\0")
                    self._unzip = zlib.decompressobj(GZIP)
                    self._within_member = bool(raw)
                assert self._unzip is not None
                found += self._unzip.decompress(raw)
                raw = self._unzip.unused_data
                self._within_member = self._within_member and not self._unzip.eof
        except zlib.error as error:
            self.lines += found.count(b"\n")
            raise self.error(f"cannot be read: {error}") from error
        return bytes(found)
