"""Two schedulers to compare: one with the plugin hooked in and connected to a daemon, one bare.

The embedded engine's scheduler runs twice, from two copies of its classes: with the plugin hooked in and a
real `trimtabd` draining it, and bare. Both run the engine's own policy, so the difference is ours. The
world does nothing, so the two are compared on the scheduler's own work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from support.daemon_process import DaemonProcess
from support.hooked_engine import fresh_copy
from support.ranked_engine import DictStore
from trimtab.demo.embedded_registry import EmbeddedRegistry
from trimtab_sglang import host
from trimtab_sglang.handshake import World, shake_hands
from trimtab_sglang.plugin import Plugin
from trimtab_sglang.settings import PluginSettings

ROUNDS = 150
WARM_UP_ROUNDS = 30
STEPS_BEFORE = 200
STEPS_TIMED = 10
# Time for the link thread to run between steps, as a real engine's scheduler gives while the GPU works.
PAUSE_S = 0.03
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


class Bench:
    """One scheduler and the batch that it runs again and again."""

    def __init__(self, shape: ModuleType, batch_size: int, plugin: Plugin | None = None) -> None:
        self._plugin = plugin
        arguments = shape.ServerArgs(CANDIDATES, 3, GRAPH_SIZES)
        self.scheduler = shape.Scheduler(arguments, NullWorld(batch_size))
        reqs = [shape.Req(f"r{i}", 500) for i in range(batch_size)]
        self._batch = shape.ScheduleBatch(reqs, shape.ForwardMode.DECODE)
        self.scheduler.last_batch = self.scheduler.running_batch = self._batch

    def step(self) -> None:
        """One decode step of the scheduler."""
        self.scheduler.iterate(self._next)

    @property
    def plugin(self) -> Plugin:
        """The plugin that is hooked in."""
        assert self._plugin is not None, "this one is bare"
        return self._plugin

    def _next(self, scheduler: Any) -> Any:
        return self._batch


@contextmanager
def hooked(batch_size: int, daemon: DaemonProcess, ranks: int = 1) -> Iterator[Bench]:
    """A scheduler with the plugin, connected to the daemon and under a lease; the first of so many ranks."""
    shape = fresh_copy()
    registry = EmbeddedRegistry(shape)
    settings = PluginSettings(controller=daemon.target, engine_id=f"bench-{batch_size}")
    plugin = Plugin(settings, registry, shape.ForwardMode.DECODE)
    if ranks > 1:
        _among(ranks, plugin)
    host.install(plugin, registry)
    bench = Bench(shape, batch_size, plugin)
    deadline = time.monotonic() + 20
    while plugin.machine.lease is None:
        bench.step()
        time.sleep(0.005)
        assert time.monotonic() < deadline, plugin.observe_reasons
    yield bench
    assert plugin.link is not None
    assert not plugin.fuse.blown
    plugin.link.stop()


def _among(ranks: int, plugin: Plugin) -> None:
    """Let the plugin find other ranks, which shake hands and then do nothing."""
    store = DictStore()
    plugin.world = lambda: World(0, ranks, store)
    for rank in range(1, ranks):
        threading.Thread(target=shake_hands, args=(World(rank, ranks, store), plugin.digest), daemon=True).start()


@dataclass(frozen=True)
class Timing:
    """Times of single steps in ns: in the course of decoding, and straight after a pause."""

    steady_ns: list[int] = field(default_factory=list)
    cold_ns: list[int] = field(default_factory=list)


def timed(*benches: Bench, rounds: int = ROUNDS) -> list[Timing]:
    """Time of each bench's steps, taken in turns so that the machine's moods strike all alike.

    Between bursts there is a pause in which the link thread gets its turns. The first step after it finds the
    caches full of other things, which makes all Python several times as slow: it is kept apart.
    """
    timings = [Timing() for _ in benches]
    for turn in range(-WARM_UP_ROUNDS, rounds):
        for i in range(len(benches)) if turn % 2 else reversed(range(len(benches))):
            time.sleep(PAUSE_S)
            cold_ns, *_ = [_time_step(benches[i]) for _ in range(STEPS_BEFORE)]
            steady_ns = [_time_step(benches[i]) for _ in range(STEPS_TIMED)]
            if turn >= 0:
                timings[i].cold_ns.append(cold_ns)
                timings[i].steady_ns.extend(steady_ns)
    return timings


def _time_step(bench: Bench) -> int:
    began = time.perf_counter_ns()
    bench.step()
    return time.perf_counter_ns() - began


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
