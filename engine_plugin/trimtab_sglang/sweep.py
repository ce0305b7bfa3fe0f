"""The start-up sweep: what does every mode cost at every batch size, before the first request comes?

If asked (`TRIMTAB_SWEEP=1`), a thread of the speaking rank sends dummy requests to its own HTTP server once that
answers and a controller listens. For each batch size and mode it holds the mode for a number of steps with a lease
of its own, through the same mailbox as the controller's. The rows reach the controller with a flag: their times
are costs, their acceptance says nothing. The controller's leases wait meanwhile; a pin, a release, a foreign
request or the end of its time ends the sweep at once. The scheduler thread knows nothing of it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trimtab_sglang.facts import EngineFacts
from trimtab_sglang.lease import Lease, Mode, TableEntry
from trimtab_sglang.own_server import OwnServer, ServerError
from trimtab_sglang.ranks import Command, Order, Posted
from trimtab_sglang.rows import HEALTH_CHECK_PREFIX, SWEEP_PREFIX
from trimtab_sglang.sweep_plan import PROMPT_TOKENS, SPARE_STEPS, STEPS, Cell, plan

if TYPE_CHECKING:
    from trimtab_sglang.plugin import Plugin

logger = logging.getLogger("trimtab")

POLL_S = 0.02
LOOK_EVERY_S = 1.0
READY_WITHIN_S = 300.0


class SweepEndedError(Exception):
    """Why the sweep is over before everything was measured."""


class Sweep:
    """One sweep in the life of the process.

    The sweep's thread owns everything but what `keep` shares with the link's threads under the lock.

    Args:
        plugin: Whose engine to sweep.
        facts: What the engine is.
        connected: Whether a controller listens.
    """

    def __init__(self, plugin: Plugin, facts: EngineFacts, connected: Callable[[], bool]) -> None:
        self._plugin = plugin
        self._facts = facts
        self._connected = connected
        self._random = random.Random(facts.boot_id)
        self._seen_ours = False
        self._end_ns = 0
        self._done = 0
        self._lock = threading.Lock()
        self._active = False
        self._pinned = False
        self._newest: Posted | None = None
        # Of the newest lease that was not kept: it may still be on its way to the scheduler.
        self._version = 0
        self._stopped_by = ""
        self._thread = threading.Thread(target=self._run, name="trimtab-sweep", daemon=True)

    def start(self) -> None:
        """Start the thread, which first waits for server and controller."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def keep(self, posted: Posted) -> bool:
        """Whether this command of the controller waits until the sweep is over. Any but a plain lease ends it."""
        command = posted.command
        with self._lock:
            if command.order is not Order.ADOPT or command.lease is None:
                self._newest = None
                self._stop("the controller let go")
                return False
            self._newest = posted
            self._pinned = command.lease.pin is not None
            if self._pinned:
                self._stop("the engine was pinned")
            if not self._active:
                self._version = max(self._version, command.lease.version)
            return self._active

    def _stop(self, why: str) -> None:
        """End it from another thread; the command that did it takes the place of the sweep's lease."""
        if self._active:
            self._active, self._stopped_by = False, why

    # -- the sweep's own thread ------------------------------------------------------------------

    def _run(self) -> None:
        cells: list[Cell] = []
        try:
            server = self._await_server()
            facts = self._facts
            cells = plan(facts.graph_batch_sizes, facts.max_running_requests, facts.kv_capacity_tokens, facts.modes)
            self._begin(cells)
            for cell in cells:
                self._measure(server, cell)
            outcome = "complete"
        except (SweepEndedError, ServerError) as ended:
            outcome = str(ended)
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine goes on without a sweep
            outcome = f"{type(error).__name__}: {error}"
        self._give_back()
        if self._end_ns:
            logger.info("trimtab sweep is over, %d of %d cells: %s", self._done, len(cells), outcome)
        else:
            logger.warning("trimtab does no sweep: %s", outcome)

    def _await_server(self) -> OwnServer:
        plugin = self._plugin
        if not plugin.acts:
            raise SweepEndedError(
                f"the plugin only observes: {'; '.join(plugin.observe_reasons) or plugin.fuse.reason}"
            )
        if self._facts.ranks.dp_size > 1:
            raise SweepEndedError("the server would spread dummy requests over its data-parallel ranks")
        server = OwnServer.of(self._facts.server)
        deadline = time.monotonic() + READY_WITHIN_S
        while not (connected := self._connected()) or not server.healthy():
            if time.monotonic() > deadline:
                missing = f"no HTTP server answered at {server.address}" if connected else "no controller answered"
                raise SweepEndedError(f"{missing} within {READY_WITHIN_S:.0f} s")
            time.sleep(LOOK_EVERY_S)
        return server

    def _begin(self, cells: Sequence[Cell]) -> None:
        if any(map(_is_foreign, self._rids())):
            raise SweepEndedError("requests run already")
        seconds = self._plugin.settings.sweep_seconds
        with self._lock:
            if self._pinned:
                raise SweepEndedError("the engine is pinned")
            self._active = True
        self._end_ns = time.monotonic_ns() + round(seconds * 1e9)
        sizes = sorted({cell.batch_size for cell in cells})
        logger.info(
            "trimtab sweep begins: batch sizes %s, %s modes, %g s at most", sizes, len(self._facts.modes), seconds
        )

    def _measure(self, server: OwnServer, cell: Cell) -> None:
        """Hold the mode while dummy requests run, and take these back once they have run together for long enough."""
        self._hold(cell.mode)
        batch = _Batch(server, self._prompts(cell.batch_size), self._tokens_for(cell.mode), f"{self._done}_")
        batch.start()
        enough_at: int | None = None
        try:
            while not batch.ended.wait(POLL_S):
                ours = self._look_around()
                launches = self._plugin.recorder.launches
                if enough_at is None and ours >= cell.batch_size:
                    enough_at = launches + STEPS
                elif enough_at is not None and launches >= enough_at and not batch.aborted:
                    batch.abort()
        except SweepEndedError:
            batch.abort()
            raise
        if batch.failure is not None and not batch.aborted:
            raise batch.failure
        self._look_around()
        if not self._seen_ours:
            raise SweepEndedError(f"the server at {server.address} is not in front of this engine")
        self._done += 1

    def _tokens_for(self, mode: Mode) -> int:
        """Tokens of a request that last for `STEPS` steps and some more, were every draft accepted."""
        wanted = (STEPS + SPARE_STEPS) * (mode.steps + 1)
        limit = int(self._facts.number("context_length")) or wanted + PROMPT_TOKENS + 1
        return max(1, min(wanted, limit - PROMPT_TOKENS - 1))

    def _look_around(self) -> int:
        """How many of our requests the scheduler has; raises `SweepEndedError` if there is a reason to stop."""
        plugin = self._plugin
        rids = self._rids()
        ours = len({rid for rid in rids if rid.startswith(SWEEP_PREFIX)})
        self._seen_ours = self._seen_ours or ours > 0
        if any(map(_is_foreign, rids)):
            raise SweepEndedError("a request came in")
        if not self._active:
            raise SweepEndedError(self._stopped_by)
        if not plugin.acts:
            raise SweepEndedError("the plugin gave up")
        if not self._connected():
            raise SweepEndedError("the controller is gone")
        if time.monotonic_ns() > self._end_ns:
            raise SweepEndedError("its time is over")
        return ours

    def _rids(self) -> list[str]:
        """Ids of the requests that the scheduler has now, as far as they can be read while it goes on."""
        scheduler = self._plugin.scheduler
        try:
            batches = (scheduler.running_batch, getattr(scheduler, "cur_batch", None))
            reqs = [*(r for batch in batches if batch is not None for r in batch.reqs), *scheduler.waiting_queue]
            return [str(request.rid) for request in reqs]
        except Exception:  # noqa: BLE001 - lists change under us; the next look is soon
            return []

    def _prompts(self, number: int) -> list[list[int]]:
        """Random tokens: nothing to share, nothing to remember."""
        vocabulary = getattr(getattr(self._plugin.scheduler, "model_config", None), "vocab_size", None) or 1000
        return [[self._random.randrange(vocabulary) for _ in range(PROMPT_TOKENS)] for _ in range(number)]

    def _hold(self, mode: Mode) -> None:
        """Put the mode in force. The version stays the controller's: its next lease must not look outdated."""
        with self._lock:
            if not self._active:
                raise SweepEndedError(self._stopped_by)
            version = max(self._plugin.machine.last_version, self._version)
            lease = Lease(version, (TableEntry(1, mode),), smoothing=1.0, hysteresis=0.0, reason="sweep")
            # A lease with the version in force only extends its life: let go of that first.
            self._plugin.mailbox.post(Posted(Command(Order.RELEASE, reason="sweep")))
            self._plugin.mailbox.post(Posted(Command(Order.ADOPT, lease=lease), lease_deadline_ns=self._end_ns))

    def _give_back(self) -> None:
        """Let go, and let the controller's newest lease in (again)."""
        with self._lock:
            if self._active:
                self._active = False
                self._plugin.mailbox.post(Posted(Command(Order.RELEASE, reason="sweep is over")))
                if self._newest is not None:
                    self._plugin.mailbox.post(self._newest)


def _is_foreign(rid: str) -> bool:
    return not rid.startswith((SWEEP_PREFIX, HEALTH_CHECK_PREFIX))


class _Batch:
    """Requests that run together, sent from a thread of their own so that the sweep can look around meanwhile."""

    def __init__(self, server: OwnServer, prompts: Sequence[Sequence[int]], tokens: int, name: str) -> None:
        self._server = server
        self._prompts = prompts
        self._tokens = tokens
        self._rids = [f"{SWEEP_PREFIX}{name}_{i}" for i in range(len(prompts))]
        self.ended = threading.Event()
        self.aborted = False
        self.failure: ServerError | None = None
        self._thread = threading.Thread(target=self._send, name="trimtab-sweep-batch", daemon=True)

    def start(self) -> None:
        """Send them."""
        self._thread.start()

    def abort(self) -> None:
        """Take back what still runs. Requests that cannot be taken back end by themselves after some steps."""
        self.aborted = True
        self._server.abort(self._rids)

    def _send(self) -> None:
        try:
            self._server.generate(self._prompts, self._rids, self._tokens)
        except ServerError as error:
            self.failure = error
        finally:
            self.ended.set()
