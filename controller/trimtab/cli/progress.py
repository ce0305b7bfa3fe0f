"""Bars on stderr for long work, where somebody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reading(paths: Sequence[Path]) -> Iterator[Callable[[int], None]]:
    """A bar that is told how many bytes of these files have been read in all."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    watching = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    total = sum(path.stat().st_size for path in paths if path.exists())
    with Progress(*columns, console=watching, transient=True, disable=not watching.is_terminal) as bar:
        task = bar.add_task("Reading", total=total)
        yield lambda read: bar.update(task, completed=read)


@contextmanager
def counting(what: str = "Reading") -> Iterator[Callable[[int, int], None]]:
    """A bar that is told how much has been done, and of how much."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    watching = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=watching, transient=True, disable=not watching.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
