"""An embedded engine with the real plugin under a real `trimtabd`: led, pinned, abandoned and taken over again."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from support.daemon_process import DaemonProcess
from support.hooked_engine import DrawnWorld, EmbeddedEngine
from trimtab.domain import speculate
from trimtab.wire import mode_to_wire
from trimtab_sglang.lease import LeaseMachine
from trimtab_sglang.settings import OnExpiry, PluginMode, PluginSettings
from trimtabpb.v1 import admin_pb2
from trimtabpb.v1 import control_pb2 as pb

REPORT_INTERVAL_S, LEASE_TTL_S = 0.25, 2.0
# Where nearly every draft is accepted the engine's own rule never runs a single step.
OWN_RULE = {3, 5, 7}
ENGINE = admin_pb2.Selector(engine_ids=["engine-1"])


@pytest.fixture(scope="module")
def one_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Settings of a daemon that holds every engine at one step."""
    path = tmp_path_factory.mktemp("config") / "trimtab.toml"
    path.write_text('[policy]\nname = "fixed"\nparameters = { steps = 1 }\n')
    return path


@contextmanager
def engine_of(
    daemon: DaemonProcess, mode: PluginMode = PluginMode.ACT, on_expiry: OnExpiry | None = None
) -> Iterator[EmbeddedEngine]:
    """An engine that decodes two easy requests, connected to the daemon."""
    settings = PluginSettings(mode, daemon.target, "engine-1", {"pool": "test"}, on_expiry=on_expiry or OnExpiry())
    with EmbeddedEngine(settings, DrawnWorld(chance=0.95), linked=True) as engine:
        engine.admit(2)
        engine.decode_until(lambda: seen(daemon))
        yield engine
        assert not engine.plugin.fuse.blown


def machine(engine: EmbeddedEngine) -> LeaseMachine:
    return engine.plugin.machine


def seen(daemon: DaemonProcess) -> admin_pb2.Engine | None:
    """The engine as operators see it."""
    engines = daemon.admin.ListEngines(admin_pb2.ListEnginesRequest()).engines
    return engines[0] if engines else None


def pin(daemon: DaemonProcess, steps: int, seconds: int = 0) -> None:
    daemon.admin.Pin(
        admin_pb2.PinRequest(
            selector=ENGINE,
            mode=mode_to_wire(speculate(steps)),
            duration=Duration(seconds=seconds) if seconds else None,
        )
    )


def test_an_engine_follows_the_daemons_policy_and_operators_see_what_it_does(one_step: Path) -> None:
    with DaemonProcess("--config", str(one_step)) as daemon, engine_of(daemon) as engine:
        engine.decode_until(lambda: machine(engine).lease)
        assert set(engine.decode_for(1.0)) == {1}
        engine.decode_until(lambda: (found := seen(daemon)) and found.lease.acknowledged and found.measured.rows > 300)
        view = seen(daemon)

    assert view is not None
    assert (view.state, view.policy.name) == (admin_pb2.Engine.STATE_CONNECTED, "fixed")
    assert (view.hello.engine_id, dict(view.hello.labels)) == ("engine-1", {"pool": "test"})
    assert view.in_force.source == pb.InForce.SOURCE_LEASE
    assert view.in_force.mode == mode_to_wire(speculate(1))
    assert view.measured.accepted_drafts == pytest.approx(0.95, abs=0.05)
    assert view.measured.batch_size == 2
    assert sum(view.measured.dropped.values()) == 0
    assert not view.refused


def test_a_pin_is_in_force_within_two_report_intervals_and_unpin_gives_control_back(one_step: Path) -> None:
    with DaemonProcess("--config", str(one_step)) as daemon, engine_of(daemon) as engine:
        engine.decode_until(lambda: machine(engine).lease)
        pin(daemon, 7)
        engine.decode_until(lambda: engine.steps_run[-1] == 7, within_s=2 * REPORT_INTERVAL_S)
        daemon.admin.Unpin(admin_pb2.UnpinRequest(selector=ENGINE))
        engine.decode_until(lambda: engine.steps_run[-1] == 1, within_s=2 * REPORT_INTERVAL_S)
        assert machine(engine).pin is None


def test_a_killed_daemon_costs_no_step_and_the_engines_own_rule_is_back_when_the_lease_ends(one_step: Path) -> None:
    with DaemonProcess("--config", str(one_step)) as daemon, engine_of(daemon) as engine:
        engine.decode_until(lambda: machine(engine).lease)
        daemon.stop(signal.SIGKILL)
        killed = time.monotonic()
        engine.decode_until(lambda: machine(engine).lease is None, within_s=LEASE_TTL_S + 0.5)
        assert time.monotonic() - killed > LEASE_TTL_S / 2 - 0.5
        assert set(engine.decode_for(0.3)) <= OWN_RULE
        version = machine(engine).last_version
        with DaemonProcess("--config", str(one_step), directory=daemon.directory):
            engine.decode_until(lambda: machine(engine).lease, within_s=5)
            assert engine.decode(1) == [1]
            assert machine(engine).last_version > version


def test_a_daemon_that_is_back_while_the_last_lease_goes_on_changes_no_mode(one_step: Path) -> None:
    with (
        DaemonProcess("--config", str(one_step)) as daemon,
        engine_of(daemon, on_expiry=OnExpiry(last_s=10)) as engine,
    ):
        engine.decode_until(lambda: engine.steps_run[-1:] == [1])
        led_from = len(engine.steps_run)
        version = machine(engine).last_version
        daemon.stop(signal.SIGKILL)
        engine.decode_for(LEASE_TTL_S + 0.5)
        with DaemonProcess("--config", str(one_step), directory=daemon.directory):
            engine.decode_until(lambda: machine(engine).last_version > version)
            engine.decode_for(0.5)
        assert set(engine.steps_run[led_from:]) == {1}


def test_a_daemon_that_stops_lets_go_at_once(one_step: Path) -> None:
    with DaemonProcess("--config", str(one_step)) as daemon, engine_of(daemon) as engine:
        engine.decode_until(lambda: machine(engine).lease)
        daemon.process.send_signal(signal.SIGTERM)
        engine.decode_until(lambda: machine(engine).lease is None, within_s=1)
        assert set(engine.decode_for(0.1)) <= OWN_RULE


def test_a_pin_outlives_its_daemon_and_the_next_one_knows_it(one_step: Path) -> None:
    with DaemonProcess("--config", str(one_step)) as daemon, engine_of(daemon) as engine:
        engine.decode_until(lambda: machine(engine).lease)
        pin(daemon, 7, seconds=600)
        engine.decode_until(lambda: machine(engine).pin)
        daemon.stop(signal.SIGTERM)
        assert set(engine.decode_for(0.5)) == {7}
        with DaemonProcess("--config", str(one_step), directory=daemon.directory) as second:
            engine.decode_until(lambda: (found := seen(second)) and found.lease.acknowledged)
            view = seen(second)
            assert engine.decode(1) == [7]

    assert view is not None
    assert 590 < view.pin.remaining.seconds <= 600
    assert view.pin.mode == mode_to_wire(speculate(7))


def test_an_observing_engine_is_listed_gets_no_lease_and_does_not_mind_the_daemons_end(one_step: Path) -> None:
    with DaemonProcess("--config", str(one_step)) as daemon, engine_of(daemon, PluginMode.OBSERVE) as engine:
        engine.decode_until(lambda: (found := seen(daemon)) and found.measured.rows > 20)
        view = seen(daemon)
        daemon.process.send_signal(signal.SIGTERM)
        assert set(engine.decode_for(0.5)) <= OWN_RULE
        assert machine(engine).last_version == 0

    assert view is not None
    assert list(view.hello.observe_reasons) == ["TRIMTAB_MODE=observe"]
    assert not view.HasField("lease")


def test_stopping_says_goodbye_and_ends_the_threads(one_step: Path) -> None:
    with DaemonProcess("--config", str(one_step)) as daemon:
        with engine_of(daemon) as engine:
            engine.decode_until(lambda: machine(engine).lease)
        assert daemon.logged("engine_disconnected")["reason"] == "goodbye: engine stops"
        assert not [t.name for t in threading.enumerate() if t.name.startswith("trimtab-link")]
        found = seen(daemon)
        assert found is not None
        assert found.state == admin_pb2.Engine.STATE_DISCONNECTED
        assert "Traceback" not in daemon.text()
