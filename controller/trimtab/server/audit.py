"""The audit log: who called what, when, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from trimtab.server.access import Caller
from trimtab.server.log import EVERY_ONE
from trimtab.wire.bounds import clipped

OK = "OK"
MAX_REQUEST = 1024
# A request that is larger is obeyed, and not kept word for word.
MAX_KEPT_BYTES = 64 << 10

log = structlog.get_logger("trimtab")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One call of the admin service, or an attempt at any call that was turned away.

    Attributes:
        at_ns: When it ended, by the wall clock, since the epoch.
        who: By what the caller is known; see `Caller`.
        peer: Its address.
        claims: Who it says it is; nobody checked this.
        call: Name of the call.
        request: What was asked for, as JSON.
        outcome: Name of the gRPC status code; BEGUN for a watch that was let in.
        detail: What was answered in words; empty if it went well.
        orders: Whether it orders something, by somebody who may.
        engines: Engines that it changed.
    """

    at_ns: int
    who: str
    peer: str
    claims: str
    call: str
    request: Mapping[str, Any]
    outcome: str
    detail: str = ""
    orders: bool = False
    engines: tuple[str, ...] = ()


Store = Callable[[AuditEntry], None]


def _forget(entry: AuditEntry) -> None:
    """Keep nothing beside the log."""


class Audit:
    """Writes every entry to the log, and hands it to `store`.

    Args:
        store: Takes every entry, to keep it.
        wall_ns: Clock for people, since the epoch.
    """

    def __init__(self, store: Store = _forget, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._store = store
        self._wall_ns = wall_ns

    def record(
        self,
        caller: Caller,
        call: str,
        request: Message | None,
        outcome: str,
        detail: str = "",
        orders: bool = False,
        engines: Iterable[str] = (),
    ) -> None:
        """Take down one call. Those that order something have a line each in the log, others are folded."""
        fields = _fields(request)
        entry = AuditEntry(
            self._wall_ns(), caller.who, caller.peer, caller.claims, call, fields, outcome,
            clipped(detail, MAX_REQUEST), orders, tuple(engines),
        )  # fmt: skip
        write = log.info if outcome in (OK, "BEGUN") else log.warning
        more = {"detail": entry.detail} if detail else {}
        every = {EVERY_ONE: True} if orders else {}
        write(
            "audit", who=entry.who, peer=entry.peer, claims=entry.claims, call=call, request=request_text(fields),
            outcome=outcome, **more, **every,
        )  # fmt: skip
        self._store(entry)


def request_text(fields: Mapping[str, Any]) -> str:
    """The fields of a request on one line."""
    return clipped(str(fields) if fields else "", MAX_REQUEST)


def _fields(request: Message | None) -> dict[str, Any]:
    if request is None:
        return {}
    if request.ByteSize() > MAX_KEPT_BYTES:
        return {"left_out_bytes": request.ByteSize()}
    return MessageToDict(request, preserving_proto_field_name=True)
