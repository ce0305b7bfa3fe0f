"""Context lengths of a batch, read off its requests: backends such as FA3 have SGLang keep none on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Contexts:
    """Sum and maximum of the context lengths, as of when they are asked for. Owned by the link thread.

    Asked once a report for each list of requests that ran: between two reports a length changes by a few steps' tokens.
    """

    def __init__(self) -> None:
        self._reqs: Sequence[Any] | None = None
        self._count = 0
        self._found: tuple[int, int] | None = None

    def forget(self) -> None:
        """A new report begins."""
        self._reqs = None

    def of(self, reqs: Sequence[Any], count: int) -> tuple[int, int] | None:
        """Of the first `count` requests; None if they do not say."""
        if reqs is not self._reqs or count != self._count:
            self._reqs, self._count = reqs, count
            try:
                lengths = [len(r.origin_input_ids) + len(r.output_ids) for r in reqs[:count]]
                self._found = sum(lengths), max(lengths)
            except (AttributeError, TypeError, ValueError):
                self._found = None
        return self._found
