"""/metrics over HTTP: prometheus-client's own server in a thread, which asks the event loop for the figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prometheus_client import CollectorRegistry, start_http_server

from trimtab.config import OFF, split_address
from trimtab.errors import ConfigError
from trimtab.server.fleet import Fleet
from trimtab.server.journal_metrics import JournalCollector
from trimtab.server.metrics import FleetCollector, Sample
from trimtabpb.v1 import admin_pb2

KEY = "server.metrics_listen"
READ_WITHIN_S = 5.0
# Engines are read so many at a time, so that a scrape of a large fleet holds up no stream.
ENGINES_AT_A_TIME = 16


class ScrapeServer:
    """Answers scrapes from a thread of its own. A slow or hung scraper costs the engines nothing."""

    def __init__(self, fleet: Fleet, loop: asyncio.AbstractEventLoop) -> None:
        self._fleet = fleet
        self._loop = loop
        self._registry = CollectorRegistry()
        self._registry.register(FleetCollector(self._read, self._read_controller))
        self._registry.register(JournalCollector(lambda: fleet.scribe))
        self._close: Callable[[], None] = lambda: None

    def start(self, address: str) -> str:
        """Listen on HOST:PORT; the address with the port that was taken, or "off".

        Raises:
            ConfigError: Nobody can listen there.
        """
        if address == OFF:
            return OFF
        host, port = split_address(KEY, address)
        try:
            server, _ = start_http_server(port, host, self._registry)
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(
                KEY, f"cannot listen on {address} ({why}): take another with --metrics-listen, or off"
            ) from error
        self._close = server.shutdown
        return f"{host}:{server.server_port}"

    async def stop(self) -> None:
        """Answer no more scrapes."""
        await asyncio.to_thread(self._close)

    def _read(self) -> list[Sample]:
        return asyncio.run_coroutine_threadsafe(self._samples(), self._loop).result(READ_WITHIN_S)

    def _read_controller(self) -> admin_pb2.Controller:
        return asyncio.run_coroutine_threadsafe(self._overview(), self._loop).result(READ_WITHIN_S)

    async def _overview(self) -> admin_pb2.Controller:
        return self._fleet.overview()

    async def _samples(self) -> list[Sample]:
        samples = []
        for i, seat in enumerate(self._fleet.seats()):
            if i % ENGINES_AT_A_TIME == ENGINES_AT_A_TIME - 1:
                await asyncio.sleep(0)
            samples.append(Sample(self._fleet.view(seat), seat.reports, seat.session.decisions, seat.leases))
        return samples
