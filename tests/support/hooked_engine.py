"""The embedded engine for tests: the real plugin hooked into a fresh copy of its classes, in steps that take no time.

`EmbeddedEngine` processes a result before the next launch; `OverlappedEngine` one launch later, as SGLang's
overlapped loop does.
"""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from trimtab.demo import sglang_shape
from trimtab.demo.embedded_registry import EmbeddedRegistry
from trimtab_sglang import host
from trimtab_sglang.lease import NEVER, PLAIN_NATIVE, Lease, Mode, TableEntry
from trimtab_sglang.plugin import Plugin
from trimtab_sglang.policy import MODES_BY_STEPS
from trimtab_sglang.ranks import Command, Order, Posted
from trimtab_sglang.rows import Row, RowMaker
from trimtab_sglang.settings import PluginSettings

CANDIDATES = (0, 1, 3, 5, 7)
GRAPH_SIZES = (1, 2, 4, 8, 16, 32, 64)
INITIAL_STEPS = 3
# Nobody listens there; engines without `linked` never ask.
UNLINKED = PluginSettings(controller="unix:/nowhere/trimtabd.sock", engine_id="test")
PAUSE_S = 0.002


class DrawnWorld:
    """Each request of each step has a run of drafts that would be accepted, drawn before anybody chose.

    Attributes:
        steps_run: Steps of every decode launch so far.
    """

    def __init__(self, seed: int = 0, chance: float = 0.6) -> None:
        self.steps_run: list[int] = []
        self._seed = seed
        self._chance = chance

    def prefill(self, batch: Any) -> None:
        """Nothing."""

    def decode(self, batch: Any, steps: int) -> list[int]:
        """Accepted drafts of each request; the luck depends on the seed and the number of the step."""
        drawn = random.Random(self._seed * 1_000_003 + len(self.steps_run))
        self.steps_run.append(steps)
        return [min(self._run(drawn), steps) for _ in batch.reqs]

    def _run(self, drawn: random.Random) -> int:
        run = 0
        while run < 8 and drawn.random() < self._chance:
            run += 1
        return run


class CountsWorld(DrawnWorld):
    """Gives out the counts that a test wrote down, one list a decode step."""

    def __init__(self, counts: Iterable[list[int]]) -> None:
        super().__init__()
        self._counts = iter(counts)

    def decode(self, batch: Any, steps: int) -> list[int]:
        """The next list."""
        self.steps_run.append(steps)
        return next(self._counts)


class EmbeddedEngine:
    """One scheduler under a test's hand.

    Args:
        settings: The plugin's; None leaves the engine bare.
        world: What comes of a step.
        linked: Let the plugin start its link.
        candidates: Steps that the engine builds.
        prepare: Changes the fresh classes before the plugin is hooked in.
        before_start: Changes the plugin before the scheduler is made.

    Attributes:
        running: Requests that decode, in the order of the batch.
        incoming: What the next iteration's pull brings.
    """

    def __init__(
        self,
        settings: PluginSettings | None = UNLINKED,
        world: DrawnWorld | None = None,
        linked: bool = False,
        candidates: Sequence[int] = CANDIDATES,
        prepare: Callable[[ModuleType], None] | None = None,
        before_start: Callable[[Plugin], None] | None = None,
    ) -> None:
        self.shape = fresh_copy()
        self.world = world or DrawnWorld()
        self.running: list[Any] = []
        self.incoming: list[Any] = []
        self._ending: set[Any] = set()
        self._ended: set[Any] = set()
        self._rows: RowMaker | None = None
        self._serial = 0
        _let_requests_come_and_go(self.shape, self.incoming, self._ending, self._ended)
        if prepare is not None:
            prepare(self.shape)
        self._plugin = self._hook(settings) if settings is not None else None
        if self._plugin is not None:
            self._plugin.started = not linked
            if before_start is not None:
                before_start(self._plugin)
        arguments = self.shape.ServerArgs(candidates, INITIAL_STEPS, GRAPH_SIZES)
        self.scheduler = self.shape.Scheduler(arguments, self.world)

    def _hook(self, settings: PluginSettings) -> Plugin:
        registry = EmbeddedRegistry(self.shape)
        plugin = Plugin(settings, registry, self.shape.ForwardMode.DECODE)
        host.install(plugin, registry)
        return plugin

    @property
    def plugin(self) -> Plugin:
        """The plugin; only of an engine that has one."""
        assert self._plugin is not None
        return self._plugin

    @property
    def steps_run(self) -> list[int]:
        """Steps of every decode launch so far."""
        return self.world.steps_run

    # -- what the engine does --------------------------------------------------------------------

    def iterate(self, batch: Any | None) -> None:
        """One iteration of the scheduler with this batch."""
        self.scheduler.iterate(lambda scheduler: batch)

    def admit(self, requests: int = 1, context_tokens: int = 100) -> list[Any]:
        """Prefill new requests, which decode from then on."""
        fresh = []
        for _ in range(requests):
            self._serial += 1
            fresh.append(self.shape.Req(f"r{self._serial}", context_tokens))
        self.iterate(self.shape.ScheduleBatch(fresh, self.shape.ForwardMode.EXTEND, requests * context_tokens))
        self.running += fresh
        return fresh

    def decode(self, steps: int = 1) -> list[int]:
        """So many decode steps of everything that runs; the drafts of each."""
        for _ in range(steps):
            batch = self.shape.ScheduleBatch(list(self.running), self.shape.ForwardMode.DECODE)
            self.scheduler.running_batch = batch
            self.iterate(batch)
            self.running = [req for req in self.running if req not in self._ended]
        return self.steps_run[-steps:]

    def decode_at(self, batch_sizes: Iterable[int]) -> list[int]:
        """One decode step at each of these batch sizes; the drafts of each. Nothing is prefilled in between."""
        began = len(self.steps_run)
        for size in batch_sizes:
            self.running = [self.shape.Req(f"r{i}", 100) for i in range(size)]
            self.decode()
        return self.steps_run[began:]

    def idle(self) -> None:
        """An iteration without a batch."""
        self.iterate(None)

    def end_with_next_result(self, request: Any) -> None:
        """The request finishes when its next decode result is processed."""
        self._ending.add(request)

    def drop(self, request: Any, retracted: bool = False) -> None:
        """The request is aborted, or retracted to the queue, between two iterations."""
        self.running.remove(request)
        request.is_retracted = retracted
        self.shape.release_kv_cache(request)

    # -- what is asked of the plugin -------------------------------------------------------------

    def post(self, lease: Lease, lease_deadline_ns: int = NEVER, pin_deadline_ns: int = NEVER) -> None:
        """Put a lease into the mailbox, as the link does."""
        posted = Posted(Command(Order.ADOPT, lease=lease), lease_deadline_ns, pin_deadline_ns)
        self.plugin.mailbox.post(posted)

    def rows(self) -> list[Row]:
        """The rows recorded since the last call."""
        return list(self.row_maker().drain(100_000))

    def row_maker(self) -> RowMaker:
        """What makes rows of what was recorded; always the same one."""
        if self._rows is None:
            self._rows = RowMaker(self.plugin.recorder, GRAPH_SIZES, mode_of_width)
        return self._rows

    # -- an engine with a link -------------------------------------------------------------------

    def __enter__(self) -> EmbeddedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._plugin is not None and self._plugin.link is not None:
            self._plugin.link.stop()

    def decode_until(self, condition: Callable[[], object], within_s: float = 10.0) -> None:
        """Decode, at a pace that leaves time for the link, until the condition holds."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s} s"
            self.decode()
            time.sleep(PAUSE_S)

    def decode_for(self, seconds: float) -> list[int]:
        """Decode for so long; the drafts of each step."""
        began, deadline = len(self.steps_run), time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.decode()
            time.sleep(PAUSE_S)
        return self.steps_run[began:]


class OverlappedEngine(EmbeddedEngine):
    """Processes each result after the next launch."""

    _pending: tuple[Any, Any] | None = None

    def iterate(self, batch: Any | None) -> None:
        """Launch this batch, then process the result before it."""
        scheduler = self.scheduler
        scheduler.process_input_requests(scheduler.request_receiver.recv_requests())
        launched = (batch, scheduler.run_batch(batch)) if batch is not None else None
        pending, self._pending = self._pending, launched
        if pending is not None and pending[0].forward_mode is self.shape.ForwardMode.DECODE:
            scheduler.batch_result_processor.process_batch_result_decode(*pending)
        scheduler.last_batch = batch


def fresh_copy() -> ModuleType:
    """Classes of the embedded engine of their own, so that hooks in one copy leave the other alone."""
    spec = importlib.util.find_spec(sglang_shape.__name__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _let_requests_come_and_go(shape: ModuleType, incoming: list[Any], ending: set[Any], ended: set[Any]) -> None:
    """Requests come in with a pull, and those in `ending` give their slots back with their result, as in SGLang."""
    processor = shape.SchedulerBatchResultProcessor
    take_in = processor.process_batch_result_decode

    def process_batch_result_decode(self: Any, batch: Any, result: Any) -> None:
        take_in(self, batch, result)
        for req in [req for req in batch.reqs if req in ending]:
            ending.remove(req)
            ended.add(req)
            shape.release_kv_cache(req)

    def _pull_raw_reqs(self: Any) -> list[Any] | None:
        pulled = list(incoming)
        incoming.clear()
        return pulled

    processor.process_batch_result_decode = process_batch_result_decode
    shape.SchedulerRequestReceiver._pull_raw_reqs = _pull_raw_reqs


def mode_of_width(draft_tokens: int | None) -> Mode:
    """The mode in which a verify reads so many tokens for each request; none: there is no verify."""
    return PLAIN_NATIVE if draft_tokens is None else MODES_BY_STEPS[draft_tokens - 1]


def one_mode_lease(mode: Mode, version: int = 1, **fields: Any) -> Lease:
    """A lease that runs one mode at every batch size."""
    return Lease(version, (TableEntry(1, mode),), **fields)
