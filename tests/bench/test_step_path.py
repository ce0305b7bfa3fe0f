"""What do our hooks cost the scheduler thread? `make bench` prints it; nothing here can fail on a slow machine.

The embedded engine's scheduler runs twice, from two copies of its classes: with the plugin hooked in and a
real `trimtabd` draining it, and bare. Both run the engine's own policy, so the difference is ours. The
world does nothing, so the two are compared on the scheduler's own work.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from support.daemon_process import DaemonProcess
from trimtab.demo import sglang_shape
from trimtab.demo.embedded_registry import EmbeddedRegistry
from trimtab_sglang import host
from trimtab_sglang.plugin import Plugin
from trimtab_sglang.settings import PluginSettings

BATCH_SIZES = (1, 32, 128, 256)
STEPS = 3000
# Time for the link thread to run between steps, as a real engine's scheduler gives while the GPU works.
PAUSE_S = 0.0008
GRAPH_SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
CANDIDATES = [0, 1, 3, 5, 7]


class NullWorld:
    """Every request gets its steps' first half accepted, in no time."""

    def __init__(self, batch_size: int) -> None:
        self._counts = {steps: [steps // 2] * batch_size for steps in CANDIDATES}

    def prefill(self, batch: Any) -> None:
        """Nothing."""

    def decode(self, batch: Any, steps: int) -> list[int]:
        """The same counts every time."""
        return self._counts[steps]


def fresh_copy() -> ModuleType:
    """Classes of the embedded engine of their own, so that hooks in one copy leave the other alone."""
    spec = importlib.util.find_spec(sglang_shape.__name__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Bench:
    """One scheduler and the batch that it runs again and again."""

    def __init__(self, shape: ModuleType, batch_size: int) -> None:
        arguments = shape.ServerArgs(CANDIDATES, 3, GRAPH_SIZES)
        self.scheduler = shape.Scheduler(arguments, NullWorld(batch_size))
        reqs = [shape.Req(f"r{i}", 500) for i in range(batch_size)]
        self._batch = shape.ScheduleBatch(reqs, shape.ForwardMode.DECODE)
        self.scheduler.last_batch = self.scheduler.running_batch = self._batch

    def step(self) -> None:
        """One decode step of the scheduler."""
        self.scheduler.iterate(self._next)

    def _next(self, scheduler: Any) -> Any:
        return self._batch


@contextmanager
def hooked(batch_size: int, daemon: DaemonProcess) -> Iterator[Bench]:
    """A scheduler with the plugin, connected to the daemon and under a lease."""
    shape = fresh_copy()
    registry = EmbeddedRegistry(shape)
    settings = PluginSettings(controller=daemon.target, engine_id=f"bench-{batch_size}")
    plugin = Plugin(settings, registry, shape.ForwardMode.DECODE)
    host.install(plugin, registry)
    bench = Bench(shape, batch_size)
    deadline = time.monotonic() + 20
    while plugin.machine.lease is None:
        bench.step()
        time.sleep(0.005)
        assert time.monotonic() < deadline, plugin.observe_reasons
    yield bench
    assert plugin.link is not None
    assert not plugin.fuse.blown
    plugin.link.stop()


def timed(bench: Bench, steps: int = STEPS) -> list[int]:
    """Time of each step in ns, paced so that the link thread gets its turns in between."""
    clock, times = time.perf_counter_ns, []
    for _ in range(steps):
        time.sleep(PAUSE_S)
        bench.step()  # brings the code back into the caches, as the engine's own work does
        began = clock()
        bench.step()
        times.append(clock() - began)
    return times


def percentile(values: list[int], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@pytest.mark.bench
@pytest.mark.timeout(300)
@pytest.mark.parametrize("batch_size", BATCH_SIZES)
def test_all_hooks_of_one_decode_step(benchmark: BenchmarkFixture, batch_size: int) -> None:
    bare = Bench(fresh_copy(), batch_size)
    with DaemonProcess() as daemon, hooked(batch_size, daemon) as ours:
        base_ns, hooked_ns = timed(bare), timed(ours)
        benchmark.pedantic(ours.step, rounds=200, iterations=10, warmup_rounds=5)
    base = statistics.median(base_ns)
    cost = {
        "median_us": (statistics.median(hooked_ns) - base) / 1e3,
        "p99_us": (percentile(hooked_ns, 0.99) - base) / 1e3,
        "bare_median_us": base / 1e3,
        "bare_p99_us": percentile(base_ns, 0.99) / 1e3,
    }
    benchmark.extra_info.update(cost)
    print(
        f"\nhooks, batch {batch_size}: median {cost['median_us']:.2f} us, p99 {cost['p99_us']:.2f} us"
        f"  (the bare scheduler: median {cost['bare_median_us']:.2f}, p99 {cost['bare_p99_us']:.2f})"
    )
