"""Several embedded engines that run as the ranks of one, each with the real plugin, in one process.

What the first rank pulls goes to all of them pickled, as SGLang's broadcast carries it. They share real memory and
shook hands over a store; nothing else connects them, so a rank that chose differently would be seen.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Sequence

from support.hooked_engine import UNLINKED, DrawnWorld, EmbeddedEngine
from trimtab_sglang.handshake import World
from trimtab_sglang.lease import NEVER, Lease
from trimtab_sglang.plugin import Plugin
from trimtab_sglang.ranks import Command, Order, Posted
from trimtab_sglang.settings import PluginSettings

START_TIMEOUT_S = 60.0


class DictStore:
    """A store of a process group that has one process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str, /) -> None:
        """Put a value there."""
        self.values[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        """The value; KeyError where torch would wait."""
        return self.values[key]

    def check(self, keys: list[str], /) -> bool:
        """Whether all of them are there."""
        return all(key in self.values for key in keys)


class RankedEngine:
    """So many ranks under a test's hand.

    Args:
        size: Ranks.
        prepare: Changes the plugin of a rank before its scheduler is made: `prepare(rank, plugin)`.
        settings: The plugin's.
        linked: Let the first rank's plugin start its link.
        chance: Share of drafts that would be accepted, the same luck on every rank.

    Attributes:
        ranks: The engines, by rank.
        now_ns: What every rank's clock says; a rank with a `skew_ns` of its own adds that.
        held: Whether the broadcast is held back: what was pulled waits, for all ranks alike.
    """

    def __init__(
        self,
        size: int = 2,
        prepare: Callable[[int, Plugin], None] | None = None,
        settings: PluginSettings = UNLINKED,
        linked: bool = False,
        chance: float = 0.6,
    ) -> None:
        self.now_ns = 1
        self.skew_ns = [0] * size
        self.held = False
        self._waiting: list[bytes] = []
        self._store = DictStore()
        self._made: list[EmbeddedEngine | None] = [None] * size
        makers = [
            threading.Thread(target=self._make, args=(rank, prepare, settings, linked, chance)) for rank in range(size)
        ]
        for maker in makers:
            maker.start()
        for maker in makers:
            maker.join(START_TIMEOUT_S)
        self.ranks = [engine for engine in self._made if engine is not None]
        assert len(self.ranks) == size, "a rank did not start"

    def _make(
        self,
        rank: int,
        prepare: Callable[[int, Plugin], None] | None,
        settings: PluginSettings,
        linked: bool,
        chance: float,
    ) -> None:
        def before_start(plugin: Plugin) -> None:
            plugin.world = lambda: World(rank, len(self._made), self._store)
            plugin.clock = lambda: self.now_ns + self.skew_ns[rank]
            if prepare is not None:
                prepare(rank, plugin)

        self._made[rank] = EmbeddedEngine(
            settings,
            DrawnWorld(7, chance),
            linked=linked and rank == 0,
            prepare=lambda shape: setattr(shape.Scheduler, "tp_rank", rank),
            before_start=before_start,
        )

    # -- what the engine does --------------------------------------------------------------------

    def step(self, batch_sizes: int | Sequence[int] = 4) -> list[int]:
        """One decode step; the drafts of each rank. Sizes differ only where a test forges them."""
        sizes = [batch_sizes] * len(self.ranks) if isinstance(batch_sizes, int) else batch_sizes
        self._take_in()
        for engine, size in zip(self.ranks, sizes, strict=True):
            reqs = [engine.shape.Req(f"r{i}", 100) for i in range(size)]
            batch = engine.shape.ScheduleBatch(reqs, engine.shape.ForwardMode.DECODE)
            scheduler = engine.scheduler
            scheduler.running_batch = batch
            result = scheduler.run_batch(batch)
            scheduler.batch_result_processor.process_batch_result_decode(batch, result)
            scheduler.last_batch = batch
        return [engine.steps_run[-1] for engine in self.ranks]

    def run(self, batch_sizes: Iterable[int]) -> list[int]:
        """Decode steps at these batch sizes; the drafts of each. AssertionError if the ranks differ at one."""
        ran: list[int] = []
        for size in batch_sizes:
            steps = self.step(size)
            assert len(set(steps)) == 1, f"the ranks ran {steps} at step {len(ran)}"
            ran.append(steps[0])
        return ran

    def _take_in(self) -> None:
        """Every rank pulls; what the first one pulled reaches all, or waits while the broadcast is held back."""
        pulled, *_ = [engine.scheduler.request_receiver._pull_raw_reqs() for engine in self.ranks]
        self._waiting.append(pickle.dumps(pulled))
        if self.held:
            return
        for engine in self.ranks:
            requests = [request for some in self._waiting for request in pickle.loads(some)]
            engine.scheduler.process_input_requests(requests)
        self._waiting.clear()

    # -- what is asked of it ---------------------------------------------------------------------

    @property
    def speaker(self) -> Plugin:
        """The plugin of the rank that speaks."""
        return self.ranks[0].plugin

    @property
    def plugins(self) -> list[Plugin]:
        """The plugins, by rank."""
        return [engine.plugin for engine in self.ranks]

    def post(self, lease: Lease, lease_deadline_ns: int = NEVER, pin_deadline_ns: int = NEVER) -> None:
        """Put a lease into the first rank's mailbox, as its link does."""
        posted = Posted(Command(Order.ADOPT, lease=lease), lease_deadline_ns, pin_deadline_ns)
        self.speaker.mailbox.post(posted)

    def stocks_agree(self) -> bool:
        """Whether the engine's own policies would choose the same from here on, whatever the batch."""
        own = [plugin.policy.stock for plugin in self.plugins if plugin.policy is not None]
        return all(len({policy.get_steps_for_batch(size) for policy in own}) == 1 for size in range(1, 65))
