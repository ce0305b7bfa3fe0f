"""Which engines has a watching client still to be told of? Slow clients skip states, never engines."""

from __future__ import annotations

import asyncio

from trimtab.domain import EngineKey


class Watcher:
    """Collects the keys of engines that changed, each once, until they are taken."""

    def __init__(self) -> None:
        self._changed: dict[EngineKey, None] = {}
        self._any = asyncio.Event()
        self._closed = False

    def mark(self, key: EngineKey) -> None:
        """This engine changed."""
        self._changed[key] = None
        self._any.set()

    def close(self) -> None:
        """No more changes will come."""
        self._closed = True
        self._any.set()

    async def take(self) -> list[EngineKey]:
        """The engines that changed since the last call, in that order; empty only after `close`."""
        while not self._changed and not self._closed:
            self._any.clear()
            await self._any.wait()
        keys = list(self._changed)
        self._changed.clear()
        return keys
