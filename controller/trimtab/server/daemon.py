"""The daemon as a whole: what listens, what ticks, and how it ends."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from contextlib import suppress
from pathlib import Path

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from trimtab import __version__
from trimtab.config import OFF, Settings, default_socket_path, split_address
from trimtab.errors import ConfigError
from trimtab.policies.registry import policy_factory
from trimtab.server.access import Access
from trimtab.server.admin import AdminService
from trimtab.server.audit import Audit
from trimtab.server.control import ControlService
from trimtab.server.fleet import Fleet
from trimtab.server.gate import Gate
from trimtab.server.journaling import Journaling, open_journal
from trimtab.server.scrape import ScrapeServer
from trimtab.server.secret_files import server_credentials
from trimtab.server.socket_file import SocketFile
from trimtab.session.engine_session import SessionSettings
from trimtab.session.profiles import KeyedProfile
from trimtab.wire import MAX_MESSAGE_BYTES
from trimtabpb.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc

# Streams that still are open this long after the Release are cut, so that a stop takes less than two seconds.
GRACE_S = 1.0
# What the journal's last entries may take on top.
JOURNAL_GRACE_S = 0.8
EXIT_INTERRUPTED = 130
# Calls at the same time beside the engines' streams.
MAX_CALLS = 1024
SERVICES = (
    control_pb2.DESCRIPTOR.services_by_name["ControlService"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name,
)
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", 64),
    ("grpc.max_metadata_size", 16_384),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Windows of flow control stay as they are: what an engine says too fast waits there and not here.
    ("grpc.http2.bdp_probe", 0),
    # A peer that is gone without a word is noticed within 15 s; a peer may ask as often as once a second.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    # Two daemons on one port would share its engines between them.
    ("grpc.so_reuseport", 0),
)

log = structlog.get_logger("trimtab")


class Daemon:
    """One run of the controller. `run` returns when it was told to stop and everything is put away.

    Args:
        settings: Checked settings.
        reflection: Whether to offer gRPC server reflection.
        profiles: The cost profiles of the settings, loaded.
    """

    def __init__(self, settings: Settings, reflection: bool = False, profiles: tuple[KeyedProfile, ...] = ()) -> None:
        self._settings = settings
        self._reflection = reflection
        self._stop = asyncio.Event()
        session, policy = settings.session, settings.policy
        self._fleet = Fleet(
            policy.name,
            policy_factory(policy.name, policy.parameters),
            SessionSettings(
                report_interval_s=session.report_interval_ms / 1e3, lease_ttl_s=session.lease_ttl_s, profiles=profiles
            ),
            parameters=policy.parameters,
            max_engines=settings.server.max_engines,
        )
        self._profiles = profiles
        self._journal: Journaling | None = None
        self._gate = Gate(Access(settings.server), Audit(self._fleet.note_order), self._fleet, self._fleet.refused)
        path = Path(settings.server.socket) if settings.server.socket else default_socket_path()
        self._socket = SocketFile(path, settings.server.socket_group)
        self._health = health.aio.HealthServicer()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then let go of every engine.

        Raises:
            ConfigError: A place to listen on cannot be used.
        """
        self._catch_signals()
        self._socket.claim()
        try:
            self._open_journal()
            await self._serve()
        finally:
            if self._journal is not None:
                await self._journal.writer.close(JOURNAL_GRACE_S)
            self._socket.release()
        log.info("daemon_stopped")

    async def _serve(self) -> None:
        server = self._make_server()
        scrapes = ScrapeServer(self._fleet, asyncio.get_running_loop())
        self._socket.bind(server.add_insecure_port)
        listen = self._listen(server)
        metrics = scrapes.start(self._settings.server.metrics_listen)
        await server.start()
        await self._set_health(serving=True)
        log.info(
            "daemon_started", version=__version__, socket=str(self._socket.path), listen=listen or "off",
            metrics=metrics, policy=self._settings.policy.name, journal=self._journal_path(), pid=os.getpid(),
        )  # fmt: skip
        ticker = asyncio.create_task(self._tick())
        try:
            await self._stop.wait()
        finally:
            ticker.cancel()
            await self._put_away(server, scrapes)

    async def _put_away(self, server: grpc.aio.Server, scrapes: ScrapeServer) -> None:
        log.info("daemon_stopping", engines=len(self._fleet.seats()))
        await self._set_health(serving=False)
        self._fleet.stop("the controller stops")
        await asyncio.gather(server.stop(GRACE_S), scrapes.stop())
        self._fleet.save()

    def _open_journal(self) -> None:
        """Go on from what an earlier run left in the journal."""
        journal = self._journal = open_journal(self._settings, self._profiles)
        if journal is None:
            return
        self._fleet.scribe = journal.scribe
        journal.writer.start()
        engines = self._fleet.resume(journal.saved, journal.profiles.__getitem__, journal.orders)
        log.info("journal_opened", path=journal.scribe.path, engines=engines)

    def _journal_path(self) -> str:
        return self._journal.scribe.path if self._journal else OFF

    def _make_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(
            interceptors=[self._gate],
            options=OPTIONS,
            maximum_concurrent_rpcs=MAX_CALLS + self._settings.server.max_engines,
        )
        control_pb2_grpc.add_ControlServiceServicer_to_server(
            ControlService(self._fleet, controller_id=secrets.token_hex(8)), server
        )
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(self._fleet), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if self._reflection:
            from grpc_reflection.v1alpha import reflection

            names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)
        return server

    def _listen(self, server: grpc.aio.Server) -> str:
        """Listen on TCP as well, if told to; the address with the port that was taken."""
        address = self._settings.server.listen
        if not address:
            return ""
        tls = self._settings.server.tls
        credentials = server_credentials(tls) if tls.cert else None
        try:
            port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        except RuntimeError as error:
            raise ConfigError("server.listen", f"cannot listen on {address}: {_first_line(error)}") from error
        host, _ = split_address("server.listen", address)
        return f"{host}:{port}"

    async def _set_health(self, serving: bool) -> None:
        answer = health_pb2.HealthCheckResponse
        status = answer.SERVING if serving else answer.NOT_SERVING
        for name in ("", *SERVICES):
            await self._health.set(name, status)

    async def _tick(self) -> None:
        """Step the clock of every session: often enough for reports, and to renew leases in time."""
        settings = self._fleet.settings
        period_s = min(settings.report_interval_s / 2, settings.lease_ttl_s / 4)
        while True:
            await asyncio.sleep(period_s)
            self._fleet.tick()

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def _interrupt(self) -> None:
        """The first Ctrl-C stops in good order, the second at once."""
        if self._stop.is_set():
            with suppress(OSError):
                self._socket.release()
            os._exit(EXIT_INTERRUPTED)
        self._stop.set()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
