"""The plugin as a guest in a process: no thread too early, no hanging at the end, no harm over forks, no leaks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from support.daemon_process import DaemonProcess
from support.engine_process import EngineProcess
from support.hooked_engine import EmbeddedEngine
from support.scripted_controller import ScriptedController
from trimtab_sglang import link as link_module
from trimtab_sglang.settings import PluginSettings
from trimtabpb.v1 import admin_pb2


@pytest.fixture
def daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess() as daemon:
        yield daemon


def seen(daemon: DaemonProcess) -> list[admin_pb2.Engine]:
    return list(daemon.admin.ListEngines(admin_pb2.ListEnginesRequest()).engines)


def wait_until_led(daemon: DaemonProcess) -> None:
    deadline = time.monotonic() + 30
    while not any(engine.lease.acknowledged for engine in seen(daemon)):
        assert time.monotonic() < deadline, "the engine was never led"
        time.sleep(0.05)


def test_loading_the_plugin_starts_no_thread_and_no_grpc() -> None:
    """Every process of a server loads it, those that fork later as well."""
    code = (
        "import sys, threading\n"
        "from support.hooked_engine import EmbeddedEngine\n"
        "from trimtab_sglang import plugin\n"
        "plugin.register()\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "assert 'grpc' not in sys.modules\n"
        "EmbeddedEngine(linked=True)\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd="tests", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_engine_that_ends_says_goodbye_and_is_gone_within_two_seconds(daemon: DaemonProcess) -> None:
    with EngineProcess(daemon.target) as engine:
        wait_until_led(daemon)
        status, seconds = engine.end()
    assert (status, seconds < 2) == (0, True)
    assert daemon.logged("engine_disconnected")["reason"] == "goodbye: engine stops"


def test_one_ctrl_c_is_enough_and_the_controller_hears_of_it(daemon: DaemonProcess) -> None:
    with EngineProcess(daemon.target) as engine:
        wait_until_led(daemon)
        status, seconds = engine.end(signal.SIGINT)
    assert (status, seconds < 2) == (-signal.SIGINT, True)
    assert daemon.logged("engine_disconnected")["reason"] == "goodbye: engine stops"


def test_sigterm_ends_it_at_once_also_with_a_controller_that_hangs(daemon: DaemonProcess) -> None:
    with EngineProcess(daemon.target) as engine:
        wait_until_led(daemon)
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            status, seconds = engine.end(signal.SIGTERM)
        finally:
            daemon.process.send_signal(signal.SIGCONT)
    assert (status, seconds < 2) == (-signal.SIGTERM, True)


def test_a_controller_that_hangs_does_not_keep_an_engine_from_ending(daemon: DaemonProcess) -> None:
    with EngineProcess(daemon.target) as engine:
        wait_until_led(daemon)
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            status, seconds = engine.end()
        finally:
            daemon.process.send_signal(signal.SIGCONT)
    assert (status, seconds < 2.5) == (0, True)


@pytest.mark.parametrize("word", ["fork-exit", "fork-_exit"])
def test_a_forked_child_neither_hangs_nor_uses_the_parents_stream(daemon: DaemonProcess, word: str) -> None:
    with EngineProcess(daemon.target) as engine:
        wait_until_led(daemon)
        (before,) = seen(daemon)
        assert engine.do(word) == "child ended with 0"
        time.sleep(1)
        (after,) = seen(daemon)
        assert after.state == admin_pb2.Engine.STATE_CONNECTED
        assert after.hello.boot_id == before.hello.boot_id
        assert abs(after.connected_at.ToMilliseconds() - before.connected_at.ToMilliseconds()) < 100
        assert after.measured.rows > 100
        engine.end()
    assert [line["event"] for line in daemon.log()].count("engine_disconnected") == 1


def linked(controller: ScriptedController) -> EmbeddedEngine:
    return EmbeddedEngine(PluginSettings(controller=controller.target, engine_id="engine-1"), linked=True)


def reconnects(times: int) -> int:
    """File descriptors more than before, after so many streams that the controller ended."""
    with ScriptedController() as controller, linked(controller) as engine:
        engine.idle()
        before = 0
        for number in range(times):
            controller.next_hello()
            controller.hang_up()
            if number == 20:
                before = len(os.listdir("/proc/self/fd"))
        return len(os.listdir("/proc/self/fd")) - before


def test_file_descriptors_do_not_pile_up_over_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "RETRY_S", (0.0, 0.0, 0.0))
    assert reconnects(200) <= 4


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_file_descriptors_do_not_pile_up_over_ten_thousand_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "RETRY_S", (0.0, 0.0, 0.0))
    assert reconnects(10_000) <= 4
