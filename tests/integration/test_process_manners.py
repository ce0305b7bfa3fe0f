"""The daemon as a process: it ends in time whoever hangs on to it, and leaves nothing lying about."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.daemon_process import DaemonProcess
from support.floods import flooding
from support.process_figures import resident_mib, settled_open_files, threads
from support.scripted_engine import ScriptedEngine
from support.secure_daemon import SecureDaemon
from trimtabpb.v1 import admin_pb2

EVERYDAY, LONG = 500, 10_000


def open_socket(address: str, said: bytes = b"") -> socket.socket:
    """A connection on which somebody says this and then nothing more, and reads nothing."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(said)
    return connection


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_within_two_seconds_with_engines_at_work_and_clients_that_hang(
    number: signal.Signals, tmp_path: Path
) -> None:
    with SecureDaemon(tmp_path) as daemon, ExitStack() as hangers_on:
        started = daemon.started()
        engines = [hangers_on.enter_context(ScriptedEngine(daemon.target, f"e{i}")) for i in range(8)]
        for engine in engines:
            engine.start()
            engine.report(engine.decode())
        # Nobody reads, nobody writes on: of HTTP/2, of a TLS handshake, of a scrape.
        for address, said in (
            (started["listen"], b""),
            (started["listen"], b"\x16\x03\x01\x02\x00"),
            (started["metrics"], b"GET /metrics HTTP/1.1\r\nHost:"),
        ):
            hangers_on.enter_context(open_socket(address, said))
        client = hangers_on.enter_context(flooding("lists", daemon.target))
        next(daemon.admin.Watch(admin_pb2.WatchRequest()))
        client.send_signal(signal.SIGSTOP)
        status, took_s = daemon.stop(number)
        client.send_signal(signal.SIGCONT)

        assert (status, took_s < 2.0) == (0, True), took_s
        for engine in engines:
            assert engine.next_release().reason == "the controller stops"
        assert "Traceback" not in daemon.text()


def test_it_ends_in_time_in_the_middle_of_a_flood() -> None:
    with DaemonProcess() as daemon, flooding("reports", daemon.target), flooding("hellos", daemon.target):
        daemon.logged("engine_connected")
        status, took_s = daemon.stop(signal.SIGTERM)
        assert (status, took_s < 2.0) == (0, True), took_s


def reconnect(daemon: DaemonProcess, times: int) -> None:
    """An engine connects and goes again, half of the time without a word."""
    for turn in range(times):
        with ScriptedEngine(daemon.target, f"pod-{turn % 10}", boot_id=str(turn)) as engine:
            engine.connect()
            engine.hello()
            engine.next_welcome()
            if turn % 2:
                engine.goodbye()
                engine.end()


@pytest.mark.parametrize("times", [EVERYDAY, pytest.param(LONG, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_reconnects_leave_no_open_file_no_thread_and_no_memory_behind(times: int) -> None:
    with DaemonProcess() as daemon:
        reconnect(daemon, 100)
        pid = daemon.process.pid
        files, tasks, memory = settled_open_files(pid, 0, within_s=2.0), threads(pid), resident_mib(pid)
        reconnect(daemon, times)
        after = settled_open_files(pid, files)
        print(
            f"{times} reconnects: {files} -> {after} open files, {tasks} -> {threads(pid)} threads, "
            f"{memory:.1f} -> {resident_mib(pid):.1f} MiB"
        )
        assert after <= files
        assert threads(pid) <= tasks + 2
        assert resident_mib(pid) < memory * 1.1 + 4
        assert os.path.exists(daemon.socket)
