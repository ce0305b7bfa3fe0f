"""A flood from one peer never starves another: its decisions arrive, and its reports are read."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from support.command_line import trimtab
from support.daemon_process import DaemonProcess
from support.floods import FLOODS, flooding
from support.scripted_engine import ScriptedEngine
from trimtab.domain import speculate
from trimtab.wire import mode_to_wire
from trimtabpb.v1 import admin_pb2

DECISIONS = 12
# A report interval: an engine that flooded nobody would hear no sooner from its policy either.
WITHIN_S = 0.25


def order(daemon: DaemonProcess, steps: int) -> None:
    selector = admin_pb2.Selector(engine_ids=["honest"])
    daemon.admin.Pin(admin_pb2.PinRequest(selector=selector, mode=mode_to_wire(speculate(steps))), timeout=10)


def latencies_s(daemon: DaemonProcess, engine: ScriptedEngine) -> list[float]:
    """From an order to the lease, with a report in between now and then."""
    found = []
    for turn in range(DECISIONS):
        steps = (1, 3)[turn % 2]
        engine.report(engine.decode(25))
        began = time.monotonic()
        order(daemon, steps)
        while engine.pinned_lease().pin.mode.steps != steps:
            pass
        found.append(time.monotonic() - began)
        time.sleep(0.05)
    return sorted(found)


# What is counted: of the controller, or of the engine that floods.
COUNTED = {
    "reports": "too_fast",
    "small_messages": "too_fast",
    "large_messages": "",
    "lists": "call_too_fast",
    "hellos": "already_connected",
    "garbage": "hello",
}


def counts(daemon: DaemonProcess) -> dict[str, int]:
    """What was refused, of the controller and of the engine that floods."""
    answer = daemon.admin.ListEngines(admin_pb2.ListEnginesRequest())
    of_flooder = {k: n for engine in answer.engines if engine.engine_id == "flooder" for k, n in engine.refused.items()}
    return {**answer.controller.refused, **of_flooder}


@pytest.mark.parametrize("flood", FLOODS)
def test_while_one_peer_floods_the_others_decisions_arrive_in_time(flood: str) -> None:
    with (
        DaemonProcess("--listen", "127.0.0.1:0", "--insecure-loopback") as daemon,
        ScriptedEngine(daemon.target, "honest") as engine,
    ):
        engine.start()
        with flooding(flood, daemon.started()["listen"]) as process:
            time.sleep(1.5)
            taken = latencies_s(daemon, engine)
            assert process.poll() is None, "the flood ended by itself"
        print(f"{flood}: median {taken[len(taken) // 2] * 1e3:.1f} ms, slowest {taken[-1] * 1e3:.1f} ms")
        view = daemon.admin.GetEngine(admin_pb2.GetEngineRequest(engine_id="honest")).engine
        assert view.state == admin_pb2.Engine.STATE_CONNECTED
        assert view.measured.rows > 0
        assert not COUNTED[flood] or counts(daemon)[COUNTED[flood]] > 0
        assert taken[-2] < WITHIN_S


def test_there_is_room_for_so_many_engines_and_one_more_is_refused_and_counted(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("[server]\nmax_engines = 2\n")
    with DaemonProcess("--config", str(tmp_path / "t.toml")) as daemon, ExitStack() as stack:
        engines = [stack.enter_context(ScriptedEngine(daemon.target, name)) for name in "abc"]
        for engine in engines[:2]:
            engine.start()
        engines[2].connect()
        engines[2].hello()
        code, words = engines[2].end()
        shown = trimtab(daemon.target, "show").out
    assert (code, words) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "2 engines are connected or pinned: no room for another",
    )
    assert "refused     full=1" in shown
    assert "engines     connected=2" in shown
