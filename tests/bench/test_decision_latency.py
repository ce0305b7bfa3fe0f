"""How long from a decision to the first step that runs it? `make bench` prints it.

A pin is a decision whose moment we know. It goes to a real `trimtabd`, down the stream to the plugin, through
the request broadcast of a scheduler that steps every two milliseconds, and into a launch.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

import pytest

from step_path import hooked, percentile
from support.daemon_process import DaemonProcess
from trimtab_sglang.plugin import Plugin
from trimtabpb.v1 import admin_pb2, control_pb2

DECISIONS = 60
STEP_S = 0.002


def pin(daemon: DaemonProcess, steps: int) -> None:
    """Order a mode for every engine."""
    mode = control_pb2.Mode(kind=control_pb2.Mode.KIND_SPECULATE, steps=steps)
    daemon.admin.Pin(admin_pb2.PinRequest(selector=admin_pb2.Selector(all=True), mode=mode), timeout=5)


def runs(plugin: Plugin, steps: int) -> Callable[[], bool]:
    """Whether the newest launch ran these steps under a pin or lease."""

    def check() -> bool:
        last = plugin.recorder.last
        return last is not None and last[2] is not None and last[2].mode.steps == steps

    return check


@pytest.mark.bench
@pytest.mark.timeout(120)
@pytest.mark.parametrize("arguments", [(), ("--state-dir", "off")], ids=["with a journal", "without a journal"])
def test_from_a_decision_to_its_first_step(arguments: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    took_ms: list[float] = []
    with DaemonProcess(*arguments) as daemon, hooked(32, daemon) as engine:
        for turn in range(DECISIONS):
            steps = (1, 3, 5)[turn % 3]
            done = runs(engine.plugin, steps)
            order = threading.Thread(target=pin, args=(daemon, steps))
            began = time.perf_counter()
            order.start()
            while not done():
                time.sleep(STEP_S)
                engine.step()
            took_ms.append((time.perf_counter() - began) * 1e3)
            order.join()
    print(
        f"\ndecision to first step, {request.node.callspec.id}: median {statistics.median(took_ms):.1f} ms, "
        f"p99 {percentile(took_ms, 0.99):.1f} ms ({DECISIONS} decisions, a step every {STEP_S * 1e3:.0f} ms)"
    )
