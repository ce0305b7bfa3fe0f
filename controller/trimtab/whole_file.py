"""Writes files at once and as a whole: whoever reads them sees the old one or the new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trimtab.errors import DataError


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A place beside the file to write it to, which then takes the file's place; after an error nothing has changed.

    Raises:
        DataError: The file cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield beside
        beside.replace(path)
    except OSError as error:
        raise DataError(str(path), f"cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
