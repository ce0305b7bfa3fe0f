"""A daemon whose policy does harm, and an engine that notices by itself: in real time, over a real connection."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.daemon_process import DaemonProcess
from support.hooked_engine import DrawnWorld, EmbeddedEngine
from trimtab_sglang.settings import PluginSettings
from trimtabpb.v1 import admin_pb2
from trimtabpb.v1 import control_pb2 as pb

STEP_S = {0: 0.005, 1: 0.0055, 3: 0.009, 5: 0.014, 7: 0.02}
ENGINE = admin_pb2.Selector(engine_ids=["engine-1"])


class SlowWorld(DrawnWorld):
    """Steps take their time, and no draft is ever accepted."""

    def decode(self, batch: Any, steps: int) -> list[int]:
        self.steps_run.append(steps)
        time.sleep(STEP_S[steps])
        return [0] * len(batch.reqs)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    config = tmp_path / "trimtab.toml"
    config.write_text('[policy]\nname = "fixed"\nparameters = { steps = 0 }\n')
    with DaemonProcess("--config", str(config)) as daemon:
        yield daemon


def seen(daemon: DaemonProcess) -> admin_pb2.Engine | None:
    engines = daemon.admin.ListEngines(admin_pb2.ListEnginesRequest()).engines
    return engines[0] if engines else None


def hold_steps(daemon: DaemonProcess, steps: int) -> None:
    daemon.admin.SetPolicy(
        admin_pb2.SetPolicyRequest(selector=ENGINE, policy="fixed", parameters={"steps": str(steps)})
    )


def test_the_engine_drops_it_the_operator_sees_why_and_plain_leases_go_on(daemon: DaemonProcess) -> None:
    settings = PluginSettings(controller=daemon.target, engine_id="engine-1")
    with EmbeddedEngine(settings, SlowWorld(), linked=True) as engine:
        engine.admit(2)
        machine = engine.plugin.machine
        engine.decode_until(lambda: machine.lease)
        engine.decode_for(1.0)
        hold_steps(daemon, 7)
        engine.decode_until(lambda: engine.steps_run[-1] == 7)
        began = time.monotonic()
        engine.decode_until(lambda: machine.lease is None, within_s=6)
        assert 1.5 < time.monotonic() - began < 5
        # Its own rule sees that nothing is accepted.
        assert set(engine.decode_for(0.5)) <= {0, 1, 3}

        engine.decode_until(lambda: (found := seen(daemon)) and found.refused.get("lease_harmful"))
        view = seen(daemon)
        assert view is not None
        assert view.in_force.source == pb.InForce.SOURCE_STOCK
        assert view.lease.refusal.startswith("harmful: 0.")

        hold_steps(daemon, 0)
        engine.decode_until(lambda: machine.lease, within_s=2)
        assert set(engine.decode_for(0.3)) == {0}
        assert not engine.plugin.fuse.blown
