"""How much of each request has the draft model not read? Kept on the scheduler thread, without touching the device.

A request is fresh while the draft model has read every committed token. Native plain leaves tokens unread at its end
(`missed`), which a catch-up reads later. Cold plain leaves a hole that nothing fills again: the request is stale until
it ends. What lies behind the first unread token stays out of the prefix cache: whoever reused it would draft badly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Gap:
    """One request's unread tokens.

    Attributes:
        missed: Tokens at the end that a catch-up can read.
        fresh_len: Committed tokens when the first one was left unread; never more than the draft model has read.
        stale: Whether there is a hole that no catch-up fills.
        resumed: Whether the request was drafted for with the hole.
    """

    __slots__ = ("fresh_len", "missed", "resumed", "stale")

    def __init__(self, fresh_len: int) -> None:
        self.fresh_len = fresh_len
        self.missed = 0
        self.stale = False
        self.resumed = False


class DraftGap:
    """The unread tokens of all requests. Owned by the scheduler thread.

    Attributes:
        stale_resumes: Requests that were drafted for with a hole in their draft cache, since the start.
    """

    def __init__(self) -> None:
        self._gaps: dict[Any, Gap] = {}
        self.stale_resumes = 0

    def __bool__(self) -> bool:
        """Whether any request has unread tokens."""
        return bool(self._gaps)

    def miss(self, requests: Sequence[Any]) -> None:
        """One more token of each of these is left unread, for a catch-up to read."""
        for request in requests:
            self._of(request).missed += 1

    def lose(self, requests: Sequence[Any]) -> None:
        """Tokens of these are left unread for good."""
        for request in requests:
            gap = self._of(request)
            gap.missed, gap.stale = 0, True

    def lose_missed(self, requests: Sequence[Any]) -> None:
        """No catch-up will read what these missed."""
        self.lose([request for request, missed in zip(requests, self.missed(requests), strict=True) if missed])

    def missed(self, requests: Sequence[Any]) -> list[int]:
        """Tokens that a catch-up would read of each; shape `(n_requests,)`."""
        gaps = self._gaps
        return [gaps[request].missed if request in gaps else 0 for request in requests]

    def caught_up(self, requests: Sequence[Any]) -> None:
        """The draft model has read what these missed."""
        for request in requests:
            gap = self._gaps.get(request)
            if gap is None:
                continue
            gap.missed = 0
            if not gap.stale:
                del self._gaps[request]

    def behind(self, requests: Sequence[Any]) -> tuple[int, ...]:
        """Where in the batch the requests with unread tokens are."""
        gaps = self._gaps
        return tuple(i for i, request in enumerate(requests) if request in gaps)

    def resume(self, requests: Sequence[Any]) -> None:
        """These are drafted for: count those with a hole, each once."""
        for request in requests:
            gap = self._gaps.get(request)
            if gap is not None and gap.stale and not gap.resumed:
                gap.resumed = True
                self.stale_resumes += 1

    def release(self, request: Any) -> None:
        """The request's slots are given back: what the draft model has not read does not go into the prefix cache."""
        gap = self._gaps.pop(request, None)
        if gap is not None:
            _keep_out(request, gap.fresh_len)

    def _of(self, request: Any) -> Gap:
        gap = self._gaps.get(request)
        if gap is None:
            gap = self._gaps[request] = Gap(committed_len(request))
        return gap


def committed_len(request: Any) -> int:
    """Tokens of a request that SGLang has committed to its KV row; under overlap a step behind the device."""
    return int(_row(request).kv_committed_len)


def _keep_out(request: Any, fresh_len: int) -> None:
    """Let SGLang release everything from `fresh_len` on as it releases slots reserved for drafts.

    What the prefix cache already owns of the row is not this request's to give back.
    """
    row = _row(request)
    row.kv_committed_len = min(row.kv_committed_len, max(fresh_len, row.cache_protected_len))


def _row(request: Any) -> Any:
    """Where this version of SGLang keeps the lengths: on the request (0.5.16) or on its KV record."""
    kv = request.kv
    return kv if hasattr(kv, "kv_committed_len") else request
