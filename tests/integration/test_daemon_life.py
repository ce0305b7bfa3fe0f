"""How the daemon starts, who may reach it, how it ends, and what a new one makes of the engines it finds."""

from __future__ import annotations

import grp
import os
import signal
import socket
import stat
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.daemon_process import DaemonProcess, run_trimtabd
from support.scripted_engine import ScriptedEngine
from trimtab import __version__
from trimtab.domain import speculate
from trimtab.wire import mode_to_wire
from trimtabpb.v1 import admin_pb2
from trimtabpb.v1 import control_pb2 as pb


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def pin_steps(daemon: DaemonProcess, engine_id: str, steps: int, seconds: int = 0) -> None:
    daemon.admin.Pin(
        admin_pb2.PinRequest(
            selector=admin_pb2.Selector(engine_ids=[engine_id]),
            mode=mode_to_wire(speculate(steps)),
            duration=Duration(seconds=seconds) if seconds else None,
        )
    )


def hold_a_stream(daemon: DaemonProcess) -> None:
    """A health check that goes on: the client will not end it."""
    stub: Any = health_pb2_grpc.HealthStub(daemon.channel)
    next(stub.Watch(health_pb2.HealthCheckRequest()))


# -- who may reach it ----------------------------------------------------------------------------


def test_the_socket_is_the_owners_alone() -> None:
    with DaemonProcess() as daemon:
        assert mode_of(daemon.socket) == 0o600
        assert mode_of(daemon.socket.parent) == 0o700


def test_a_group_is_let_in_when_it_is_named() -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    with DaemonProcess("--socket-group", group) as daemon:
        assert mode_of(daemon.socket) == 0o660
        assert mode_of(daemon.socket.parent) == 0o750
        assert daemon.socket.stat().st_gid == daemon.socket.parent.stat().st_gid == os.getgid()


def test_a_directory_that_was_there_before_keeps_its_mode_and_the_log_says_what_the_group_lacks(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    with DaemonProcess("--socket-group", str(os.getgid()), directory=tmp_path) as daemon:
        directory = daemon.socket.parent
        warning = daemon.logged("socket_directory_closed_to_group")

        assert mode_of(directory) == 0o700
        assert warning["todo"] == f"chgrp {os.getgid()} {directory} && chmod g+rx {directory}"


def test_the_default_socket_is_the_one_that_engines_and_operators_are_told(tmp_path: Path) -> None:
    path = tmp_path / "trimtab" / "trimtabd.sock"
    with DaemonProcess(own_socket=True, environ={"TRIMTAB_CONTROLLER": f"unix:{path}"}) as daemon:
        assert daemon.started()["socket"] == str(path)


def test_a_loopback_port_works_beside_the_socket() -> None:
    with DaemonProcess("--listen", "127.0.0.1:0", "--insecure-loopback") as daemon:
        with ScriptedEngine(daemon.started()["listen"], "tcp") as engine:
            engine.start()
            assert engine.next_lease()
        assert len(daemon.admin.ListEngines(admin_pb2.ListEnginesRequest()).engines) == 1


# -- what cannot be used -------------------------------------------------------------------------


def test_a_socket_that_nobody_listens_on_is_replaced() -> None:
    with DaemonProcess() as daemon:
        daemon.stop(signal.SIGKILL)
        assert daemon.socket.exists()
        with DaemonProcess(directory=daemon.directory) as again:
            assert again.logged("stale_socket_replaced")
            assert mode_of(again.socket) == 0o600
            again.admin.ListEngines(admin_pb2.ListEnginesRequest())


def test_a_second_daemon_on_a_live_socket_is_refused_and_harms_nobody() -> None:
    with DaemonProcess() as daemon:
        second = run_trimtabd("--socket", str(daemon.socket), "--metrics-listen", "off")

        assert second.returncode == 2
        assert second.stderr == (
            f"trimtabd: server.socket: another process listens on {daemon.socket}: "
            "stop it, or take another path with --socket\n"
        )
        daemon.admin.ListEngines(admin_pb2.ListEnginesRequest())


def test_a_live_socket_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        second = run_trimtabd("--socket", str(path), "--metrics-listen", "off")

    assert (second.returncode, path.exists()) == (2, True)
    assert "another process listens on" in second.stderr


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    answer = run_trimtabd("--socket", str(path), "--metrics-listen", "off")

    assert answer.returncode == 2
    assert answer.stderr == (
        f"trimtabd: server.socket: {path} is there and is no socket: remove it, or take another path\n"
    )
    assert path.read_text() == "mine"


def test_a_directory_that_everybody_can_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    answer = run_trimtabd("--socket", str(tmp_path / "x.sock"), "--metrics-listen", "off")

    assert answer.returncode == 2
    assert f"everybody can write to {tmp_path}" in answer.stderr


BAD_COMMAND_LINES = {
    "no TLS": (["--listen", "0.0.0.0:50051"], "server.listen: needs TLS: set cert, key and client_ca under "),
    "no loopback address": (
        ["--listen", "0.0.0.0:50051", "--insecure-loopback"],
        "server.listen: '0.0.0.0' is not a loopback address, and --insecure-loopback lets in everybody: ",
    ),
    "no address": (["--listen", "here", "--insecure-loopback"], "server.listen: 'here' is not HOST:PORT"),
    "interval": (["--report-interval-ms", "50"], "session.report_interval_ms: must be 100 to 5000, is 50"),
    "policy": (["--policy", "ucbb"], "policy.name: unknown policy 'ucbb'; did you mean ucb?"),
    "group": (["--socket-group", "nobodies"], "server.socket_group: there is no group 'nobodies' on this machine"),
    "no file": (["--config", "/nowhere/t.toml"], "/nowhere/t.toml: cannot be read: No such file or directory"),
    "no option": (["--sockets", "x"], "No such option: --sockets"),
    "no number": (["--report-interval-ms", "fast"], "Invalid value for '--report-interval-ms': "),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), BAD_COMMAND_LINES.values(), ids=BAD_COMMAND_LINES)
def test_a_command_line_that_cannot_be_used_is_one_line_and_exit_2(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    answer = run_trimtabd("--socket", str(tmp_path / "x.sock"), "--metrics-listen", "off", *arguments)

    assert answer.returncode == 2
    assert answer.stderr.startswith(f"trimtabd: {words}")
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("flag", ["--listen", "--metrics-listen"])
def test_a_port_that_is_taken_is_one_line_and_exit_2(flag: str, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        metrics = [] if flag == "--metrics-listen" else ["--metrics-listen", "off"]
        answer = run_trimtabd("--socket", str(tmp_path / "x.sock"), "--insecure-loopback", flag, address, *metrics)

    assert answer.returncode == 2
    assert f": cannot listen on {address}" in answer.stderr.splitlines()[-1]
    assert answer.stderr.count("\n") == 1


# -- settings ------------------------------------------------------------------------------------


def test_check_config_prints_what_a_file_amounts_to(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text("[session]\nreport_interval_ms = 500\n")
    answer = run_trimtabd("--check-config", str(path))

    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.splitlines() == [
        f"{path}: ok",
        'server.socket = ""',
        'server.socket_group = ""',
        'server.socket_roles = ["engine", "operator"]',
        'server.listen = ""',
        "server.insecure_loopback = false",
        'server.metrics_listen = "127.0.0.1:9464"',
        "server.max_engines = 1024",
        'server.tls.cert = ""',
        'server.tls.key = ""',
        'server.tls.client_ca = ""',
        "server.role = []",
        "session.report_interval_ms = 500",
        "session.lease_ttl_s = 2.0",
        'policy.name = "goodput"',
        'journal.directory = ""',
        "journal.max_mb = 1024",
        "journal.max_age_days = 14.0",
    ]


BAD_FILES = {
    "unknown key": (
        "[session]\nreport_interval = 1\n", "session.report_interval: unknown key; did you mean report_interval_ms?",
    ),
    "wrong type": ("[session]\nlease_ttl_s = 'long'\n", "session.lease_ttl_s: expected `float`, got `str`"),
    "no TOML": ("[session\n", "is not TOML: "),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), BAD_FILES.values(), ids=BAD_FILES)
def test_check_config_names_the_key_that_is_wrong(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(text)
    answer = run_trimtabd("--check-config", str(path))

    assert answer.returncode == 2
    assert answer.stderr.startswith(f"trimtabd: {path}: {words}")
    assert answer.stderr.count("\n") == 1


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text('[session]\nreport_interval_ms = 500\n[policy]\nname = "ucb"\nparameters = { margin = 0.1 }\n')
    with (
        DaemonProcess("--config", str(path), "--policy", "fixed", "--report-interval-ms", "125") as daemon,
        ScriptedEngine(daemon.target) as engine,
    ):
        assert engine.start().report_interval.ToMilliseconds() == 125
        assert daemon.started()["policy"] == "fixed"


def test_the_version_is_printed() -> None:
    answer = run_trimtabd("--version")

    assert (answer.returncode, answer.stdout) == (0, f"trimtabd {__version__}\n")


# -- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_releases_every_engine_and_takes_less_than_two_seconds(number: signal.Signals) -> None:
    with DaemonProcess() as daemon, ScriptedEngine(daemon.target, "a") as a, ScriptedEngine(daemon.target, "b") as b:
        a.start()
        b.start()
        watch = daemon.admin.Watch(admin_pb2.WatchRequest())
        next(watch)
        hold_a_stream(daemon)
        status, took_s = daemon.stop(number)

        assert status == 0
        assert took_s < 2
        for engine in (a, b):
            assert engine.next_release().reason == "the controller stops"
            assert engine.end()[0] == grpc.StatusCode.OK
        assert not daemon.socket.exists()
        assert "Traceback" not in daemon.text()
        assert daemon.log()[-1]["event"] == "daemon_stopped"


def test_a_second_interrupt_ends_it_at_once() -> None:
    with DaemonProcess() as daemon:
        # A client that holds on to its stream makes the daemon wait for as long as it ever does.
        hold_a_stream(daemon)
        daemon.process.send_signal(signal.SIGINT)
        daemon.logged("daemon_stopping")
        status, took_s = daemon.stop(signal.SIGINT)

        assert status == 130
        assert took_s < 0.5
        assert not daemon.socket.exists()


# -- a new one -----------------------------------------------------------------------------------


def test_a_new_daemon_without_a_journal_adopts_an_engines_pin_and_goes_on_from_its_version() -> None:
    with DaemonProcess("--state-dir", "off") as first, ScriptedEngine(first.target, "a") as engine:
        engine.start()
        engine.follow(engine.next_lease())
        pin_steps(first, "a", 1, seconds=600)
        pin_id = engine.pinned_lease().pin.id
        first.stop(signal.SIGKILL)
        engine.end()
        engine.pin = pb.Pin(id=pin_id, mode=engine.in_force.mode, remaining=Duration(seconds=590))
        with DaemonProcess("--state-dir", "off", directory=first.directory) as second:
            engine.start()
            lease = engine.next_lease()
            view = second.admin.GetEngine(admin_pb2.GetEngineRequest(engine_id="a")).engine

    assert lease.version == 3
    assert lease.pin.id == pin_id == view.pin.id
    assert 580 < lease.pin.remaining.seconds <= 590
    assert lease.pin.mode.steps == 1
