"""What waits to be sent on one stream. Never more than one message of a kind: a newer lease replaces an older."""

from __future__ import annotations

import asyncio

from trimtabpb.v1 import control_pb2 as pb


class Outbox:
    """Keeps at most a Welcome, a lease and a Release, so that an engine that does not read costs nothing."""

    def __init__(self) -> None:
        self._waiting: dict[str, pb.ControllerMessage] = {}
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, message: pb.ControllerMessage) -> None:
        """Line the message up last, in place of one of its kind that still waits; nothing after `close`."""
        if self._closed:
            return
        kind = message.WhichOneof("message") or ""
        self._waiting.pop(kind, None)
        self._waiting[kind] = message
        self._changed.set()

    def close(self) -> None:
        """Take nothing more; what waits is still handed out."""
        self._closed = True
        self._changed.set()

    async def get(self) -> pb.ControllerMessage | None:
        """The message that waits longest, or None once the outbox is closed and empty."""
        while not self._waiting:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.pop(next(iter(self._waiting)))
