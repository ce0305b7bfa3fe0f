"""Engines and operators over TLS: certificates, tokens, and what is said where something does not fit."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Outcome, trimtab
from support.daemon_process import DaemonProcess
from support.hooked_engine import EmbeddedEngine
from support.scripted_engine import ScriptedEngine
from support.secure_daemon import ENGINE_TOKEN, OPERATOR_TOKEN, SecureDaemon
from trimtab_sglang.settings import Credentials, PluginSettings
from trimtabpb.v1 import admin_pb2


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureDaemon]:
    with SecureDaemon(tmp_path_factory.mktemp("mutual")) as daemon, ScriptedEngine(daemon.target, "llama-a") as engine:
        engine.start()
        engine.follow(engine.next_lease())
        yield daemon
        assert "Traceback" not in daemon.text()


@pytest.fixture(scope="module")
def by_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureDaemon]:
    with SecureDaemon(tmp_path_factory.mktemp("tokens"), mutual=False) as daemon:
        yield daemon
        assert "Traceback" not in daemon.text()


def run(daemon: SecureDaemon, name: str, *arguments: str, **environment: str) -> Outcome:
    return trimtab(daemon.address, *arguments, **{**daemon.authority.issue(name).environment, **environment})


# -- operators -----------------------------------------------------------------------------------


def test_a_viewer_looks_and_an_operator_orders(daemon: SecureDaemon) -> None:
    assert "llama-a" in run(daemon, "grafana", "engines").out
    complaint = run(daemon, "grafana", "unpin", "--all").complaint
    assert complaint == "Unpin takes role operator; cert:grafana may not, its roles: viewer"
    assert run(daemon, "kim", "unpin", "--all").out == "nothing was pinned\n"


def test_files_can_be_named_on_the_command_line(daemon: SecureDaemon) -> None:
    kim = daemon.authority.issue("kim")
    done = trimtab(
        daemon.address, "--tls-ca", str(kim.ca), "--tls-cert", str(kim.cert), "--tls-key", str(kim.key), "engines"
    )
    assert "llama-a" in done.out


def test_an_operator_by_token(by_token: SecureDaemon) -> None:
    ca = str(by_token.authority.ca)
    token = by_token.write_tokens("my", f"{OPERATOR_TOKEN}\n")
    assert trimtab(by_token.address, "--tls-ca", ca, "--token-file", str(token), "show").exit_code == 0
    complaint = trimtab(by_token.address, "--tls-ca", ca, "engines").complaint
    assert complaint == (
        "ListEngines takes role viewer; this caller shows neither a certificate nor a token, its roles: none"
    )


def test_a_new_token_counts_within_seconds_and_the_old_one_no_longer(by_token: SecureDaemon) -> None:
    ca = str(by_token.authority.ca)
    mine = str(by_token.write_tokens("mine", "zei4Paen9eiMae5i"))
    asked = (by_token.address, "--tls-ca", ca, "--token-file", mine, "show")
    assert "its token is not known" in trimtab(*asked).complaint
    by_token.write_tokens("operator", f"deploys {OPERATOR_TOKEN}\nkim zei4Paen9eiMae5i\n")
    time.sleep(1.0)
    assert trimtab(*asked).exit_code == 0
    by_token.write_tokens("operator", f"deploys {OPERATOR_TOKEN}\n")
    time.sleep(1.0)
    assert "its token is not known" in trimtab(*asked).complaint


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"TRIMTAB_TLS_CA": ""}, "or it and TRIMTAB_TLS_CA, _CERT, _KEY do not fit together"),
        ({"TRIMTAB_TLS_CERT": "", "TRIMTAB_TLS_KEY": ""}, "or it and TRIMTAB_TLS_CA, _CERT, _KEY do not fit together"),
        ({"TRIMTAB_TLS_CERT": ""}, "TRIMTAB_TLS_CERT is missing: a certificate and its key go together"),
        ({"TRIMTAB_TLS_KEY": "/nowhere"}, "TRIMTAB_TLS_KEY: /nowhere cannot be read: No such file or directory"),
    ],
)
def test_credentials_that_do_not_fit_are_one_line_that_says_where_to_look(
    daemon: SecureDaemon, environment: dict[str, str], words: str
) -> None:
    assert words in run(daemon, "kim", "engines", **environment).complaint


# -- engines -------------------------------------------------------------------------------------


def engine_at(address: str, credentials: Credentials) -> EmbeddedEngine:
    settings = PluginSettings(controller=address, engine_id="gpu-7", credentials=credentials)
    engine = EmbeddedEngine(settings, linked=True)
    engine.admit(2)
    return engine


def credentials_of(environment: dict[str, str], **more: str) -> Credentials:
    named = {name.removeprefix("TRIMTAB_").lower(): path for name, path in environment.items()}
    return Credentials(**{**named, **more})


def is_led(engine: EmbeddedEngine) -> bool:
    return engine.plugin.machine.lease is not None


def test_a_plugin_with_a_certificate_is_led_over_tls(daemon: SecureDaemon) -> None:
    with engine_at(daemon.address, credentials_of(daemon.authority.issue("gpu-7").environment)) as engine:
        engine.decode_until(lambda: is_led(engine))
    assert daemon.logged("engine_connected")


def test_a_plugin_with_a_token_is_led_over_tls(by_token: SecureDaemon) -> None:
    token = by_token.write_tokens("gpu-7", ENGINE_TOKEN)
    with engine_at(by_token.address, Credentials(tls_ca=str(by_token.authority.ca), token_file=str(token))) as engine:
        engine.decode_until(lambda: is_led(engine))


def test_a_plugin_that_may_not_connect_says_why_once_and_the_engine_serves_on(
    daemon: SecureDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "trimtab")
    with engine_at(daemon.address, credentials_of(daemon.authority.issue("kim").environment)) as engine:
        steps = engine.decode_for(2.5)
        assert len(steps) > 100
        assert not is_led(engine)
    said = [record.getMessage() for record in caplog.records if "no controller" in record.getMessage()]
    assert said == [
        f"trimtab has no controller at {daemon.address}: PERMISSION_DENIED: Connect takes role engine; cert:kim may "
        "not, its roles: operator"
    ]


def test_the_name_in_the_certificate_can_be_another_than_the_hosts(daemon: SecureDaemon) -> None:
    port = daemon.address.rpartition(":")[2]
    gpu = daemon.authority.issue("gpu-8").environment
    for name, led in (("localhost", True), ("elsewhere", False)):
        with engine_at(f"127.0.0.1:{port}", credentials_of(gpu, tls_name=name)) as engine:
            engine.decode_for(1.0)
            assert is_led(engine) is led


# -- the audit log -------------------------------------------------------------------------------


def test_every_order_is_in_the_audit_log_with_who_what_and_outcome(tmp_path: Path) -> None:
    with SecureDaemon(tmp_path) as daemon, ScriptedEngine(daemon.target, "llama-a") as engine:
        engine.start()
        engine.follow(engine.next_lease())
        run(daemon, "kim", "pin", "llama-a", "--steps", "3", "--reason", "load test", "--for", "1h")
        run(daemon, "kim", "pin", "llama-a", "--steps", "9")
        run(daemon, "grafana", "unpin", "--all")
        trimtab(daemon.target, "unpin", "--all")
        lines = [line for line in daemon.log() if line["event"] == "audit" and line["call"] in ("Pin", "Unpin")]
    assert [(line["who"], line["call"], line["outcome"]) for line in lines] == [
        ("cert:kim", "Pin", "OK"),
        ("cert:kim", "Pin", "INVALID_ARGUMENT"),
        ("cert:grafana", "Unpin", "PERMISSION_DENIED"),
        ("unix", "Unpin", "OK"),
    ]
    first, second, *_ = lines
    for words in ("'engine_ids': ['llama-a']", "'steps': 3", "'duration': '3600s'", "'reason': 'load test'"):
        assert words in first["request"]
    assert first["peer"].startswith("ipv4:127.0.0.1:")
    assert "@" in first["claims"]
    assert first["timestamp"]
    assert second["detail"].startswith("llama-a does not offer speculate(9)")


def test_reads_are_in_the_audit_log_too_and_a_run_of_them_is_folded() -> None:
    with DaemonProcess() as daemon:
        for _ in range(50):
            daemon.admin.ListEngines(admin_pb2.ListEnginesRequest())
        reads = [line for line in daemon.log() if line["event"] == "audit"]
    assert [(line["call"], line["outcome"], line["who"]) for line in reads] == [("ListEngines", "OK", "unix")]


def test_a_watch_is_in_the_audit_log_when_it_begins_and_when_it_ends() -> None:
    with DaemonProcess() as daemon, ScriptedEngine(daemon.target, "llama-a") as engine:
        engine.start()
        updates = daemon.admin.Watch(admin_pb2.WatchRequest(), timeout=10)
        next(updates)
        updates.cancel()
        deadline = time.monotonic() + 5
        while len(found := [x for x in daemon.log() if x.get("call") == "Watch"]) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert [line["outcome"] for line in found] == ["BEGUN", "CANCELLED"]
