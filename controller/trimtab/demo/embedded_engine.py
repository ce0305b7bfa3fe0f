"""An engine process for the demo: the real plugin, measured step times, a day of load in half a minute.

`python -m trimtab.demo.embedded_engine --seconds 30 --seed 0` plays the day in real time and follows whatever
controller `TRIMTAB_CONTROLLER` names, like an SGLang server would.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from itertools import count

from trimtab.demo import sglang_shape
from trimtab.demo.embedded_registry import EmbeddedRegistry
from trimtab.domain import Mode, speculate
from trimtab.replay.environment import StepLoad
from trimtab.replay.simulation.day import DayEnvironment
from trimtab_sglang import host
from trimtab_sglang.plugin import Plugin
from trimtab_sglang.settings import PluginMode, PluginSettings, SettingError, read_settings

PREFILL_MS = 4.0


class RealTimeWorld:
    """Lets a `DayEnvironment` happen in real time: steps take as long as they were measured to take."""

    def __init__(self, environment: DayEnvironment) -> None:
        self._environment = environment
        self._started_s = time.monotonic()
        self._ready_s = self._started_s
        self._step = 0
        self._last_mode: Mode | None = None
        self.now_load: StepLoad | None = None

    def look(self) -> StepLoad | None:
        """The load at this moment; None after the day."""
        now_ms = (time.monotonic() - self._started_s) * 1e3
        self.now_load = self._environment.load(self._step, now_ms)
        return self.now_load

    def prefill(self, batch: sglang_shape.ScheduleBatch) -> None:
        """New requests are read in."""
        self._spend(PREFILL_MS)

    def decode(self, batch: sglang_shape.ScheduleBatch, steps: int) -> list[int]:
        """A step of the present load."""
        load, mode = self.now_load, speculate(steps)
        assert load is not None
        switched = self._last_mode is not None and mode != self._last_mode
        self._last_mode = mode
        self._spend(self._environment.step_ms(mode, load) + (self._environment.switch_ms if switched else 0.0))
        self._step += 1
        # Luck comes shortest first; turning it keeps one request from being the unlucky one all day.
        runs = [min(run, steps) for run in load.runs]
        turn = self._step % len(runs)
        return runs[turn:] + runs[:turn]

    def _spend(self, ms: float) -> None:
        """Wait until `ms` after the work before was done, so that oversleeping does not add up."""
        self._ready_s = max(self._ready_s + ms / 1e3, time.monotonic() - 0.05)
        time.sleep(max(0.0, self._ready_s - time.monotonic()))


class ClosedLoop:
    """Keeps as many requests running as the load asks for: new ones are prefilled, surplus ones finish."""

    def __init__(self, world: RealTimeWorld) -> None:
        self._world = world
        self._serial = count()
        self._fresh: list[sglang_shape.Req] = []
        self.over = False

    def __call__(self, scheduler: sglang_shape.Scheduler) -> sglang_shape.ScheduleBatch | None:
        """The next batch: a prefill if requests are missing, else a decode step of all that run."""
        load = self._world.look()
        if load is None:
            self.over = True
            return None
        running = scheduler.running_batch.reqs
        missing, context = load.batch_size - len(running), load.context_tokens or 0
        if missing > 0:
            fresh = [sglang_shape.Req(f"r{next(self._serial)}", context) for _ in range(missing)]
            scheduler.running_batch = sglang_shape.ScheduleBatch(running + fresh, sglang_shape.ForwardMode.DECODE)
            return sglang_shape.ScheduleBatch(fresh, sglang_shape.ForwardMode.EXTEND, missing * context)
        for req in running[load.batch_size :]:
            sglang_shape.release_kv_cache(req)
        batch = sglang_shape.ScheduleBatch(running[: load.batch_size], sglang_shape.ForwardMode.DECODE)
        scheduler.running_batch = batch
        return batch


def embed_plugin(settings: PluginSettings) -> Plugin:
    """The real plugin, hooked into the embedded engine's classes."""
    registry = EmbeddedRegistry(sglang_shape)
    plugin = Plugin(settings, registry, sglang_shape.ForwardMode.DECODE)
    host.install(plugin, registry)
    return plugin


def run(environment: DayEnvironment, settings: PluginSettings) -> int:
    """Play the environment to its end in real time; emitted tokens."""
    plugin = embed_plugin(settings) if settings.mode is not PluginMode.OFF else None
    world = RealTimeWorld(environment)
    candidates = [mode.steps for mode in environment.modes]
    arguments = sglang_shape.ServerArgs(candidates, environment.start.steps, environment.graph_batch_sizes)
    scheduler = sglang_shape.Scheduler(arguments, world)
    loop = ClosedLoop(world)
    while not loop.over:
        scheduler.iterate(loop)
    if plugin is not None and plugin.link is not None:
        plugin.link.stop()
    return scheduler.batch_result_processor.tokens


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the embedded engine until its day is over."""
    parser = argparse.ArgumentParser(prog="python -m trimtab.demo.embedded_engine", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the day in seconds of real time")
    parser.add_argument("--seed", type=int, default=0, help="seed of load and luck")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        settings = read_settings()
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2
    run(DayEnvironment(seconds=options.seconds, seed=options.seed), settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
