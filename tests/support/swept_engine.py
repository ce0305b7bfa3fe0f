"""What the start-up sweep sees of an engine: a server over HTTP in front of a small scheduler loop, both made up.

The loop runs the real lease machine and the real mailbox, a decode step every other millisecond.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, Self

from trimtab_sglang.facts import EngineFacts, Ranks
from trimtab_sglang.fuse import Fuse
from trimtab_sglang.lease import Lease, LeaseMachine, Mode
from trimtab_sglang.ranks import Command, Mailbox, Order, Posted, apply
from trimtab_sglang.settings import PluginSettings

STEP_S = 0.002


class SweptEngine:
    """Server, scheduler loop, and the plugin's parts that a sweep touches.

    Args:
        graph_sizes: Captured batch sizes.
        candidate_steps: Of SGLang's adaptive policy.
        seconds: `TRIMTAB_SWEEP_SECONDS`.
        accepted: Drafts accepted in every step, as far as the mode has so many.
        answer: Status that `/generate` answers with.
        ours: Whether the server's requests come to this scheduler.
        may_abort: Whether `/abort_request` is allowed.

    Attributes:
        steps: Batch size and mode (None: the engine's own) of every decode step.
        prompts: What was asked to be continued.
        aborted: Ids of the requests that were taken back.
        headers: Of the last request.
    """

    def __init__(
        self,
        graph_sizes: Sequence[int] = (1, 2, 4),
        candidate_steps: Sequence[int] = (0, 1, 3),
        seconds: float = 20.0,
        accepted: int = 0,
        answer: int = 200,
        ours: bool = True,
        may_abort: bool = True,
    ) -> None:
        self.settings = PluginSettings(sweep=True, sweep_seconds=seconds)
        self.machine = LeaseMachine()
        self.mailbox = Mailbox()
        self.recorder = SimpleNamespace(launches=0)
        self.fuse = Fuse(self.machine.fall_back)
        self.observe_reasons: list[str] = []
        self.scheduler = SimpleNamespace(
            running_batch=SimpleNamespace(reqs=[]), waiting_queue=[], model_config=SimpleNamespace(vocab_size=50)
        )
        self.steps: list[tuple[int, Mode | None]] = []
        self.prompts: list[list[int]] = []
        self.aborted: list[str] = []
        self.headers: dict[str, str] = {}
        self.healthy = True
        self.connected = True
        self._accepted = accepted
        self._answer = answer
        self._ours = ours
        self._may_abort = may_abort
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True),
            threading.Thread(target=self._schedule, daemon=True),
        ]
        self.facts = EngineFacts(
            "0.5.23",
            Ranks(),
            {"host": "0.0.0.0", "port": self._server.server_port, "context_length": 2048, "api_key": "secret"},
            adaptive=True,
            candidate_steps=tuple(candidate_steps),
            graph_batch_sizes=tuple(graph_sizes),
            max_running_requests=64,
            boot_id="b",
        )

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def acts(self) -> bool:
        """As the plugin says it."""
        return not self.observe_reasons and not self.fuse.blown

    def arrive(self, rid: str) -> None:
        """Somebody else's request comes."""
        with self._lock:
            self.scheduler.running_batch.reqs.append(SimpleNamespace(rid=rid, left=10_000))

    def lease(self, version: int, mode: Mode, **fields: Any) -> Posted:
        """A lease of the controller's."""
        from trimtab_sglang.lease import TableEntry

        return Posted(Command(Order.ADOPT, lease=Lease(version, (TableEntry(1, mode),), **fields)))

    def modes_by_size(self) -> dict[int, dict[Mode | None, int]]:
        """How many steps ran at each batch size in each mode."""
        found: dict[int, dict[Mode | None, int]] = {}
        for size, mode in self.steps:
            by_mode = found.setdefault(size, {})
            by_mode[mode] = by_mode.get(mode, 0) + 1
        return found

    def serve(self, body: dict[str, Any]) -> int:
        """`/generate`: run these requests to their end."""
        if self._answer != 200:
            return self._answer
        self.prompts += body["input_ids"]
        tokens = body["sampling_params"]["max_new_tokens"]
        mine = [SimpleNamespace(rid=rid, left=tokens) for rid in body["rid"]]
        if not self._ours:
            time.sleep(10 * STEP_S)
            return 200
        with self._lock:
            self.scheduler.running_batch.reqs += mine
        while any(request.left > 0 for request in mine) and not self._over.is_set():
            time.sleep(STEP_S)
        return 200

    def abort(self, rid: str) -> int:
        """`/abort_request`: this request ends now."""
        if not self._may_abort:
            return 401
        self.aborted.append(rid)
        with self._lock:
            for request in self.scheduler.running_batch.reqs:
                if request.rid == rid:
                    request.left = 0
        return 200

    def _schedule(self) -> None:
        while not self._over.wait(STEP_S):
            for command in self.mailbox.collect(time.monotonic_ns()):
                apply(command, self.machine)
            with self._lock:
                batch = self.scheduler.running_batch
                batch.reqs = [request for request in batch.reqs if request.left > 0]
                if not batch.reqs:
                    continue
                mode = self.machine.choose(len(batch.reqs))
                self.steps.append((len(batch.reqs), mode))
                self.recorder.launches += 1
                for request in batch.reqs:
                    request.left -= 1 + min(self._accepted, mode.steps if mode else 0)


def _handler(engine: SweptEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(200 if engine.healthy and self.path == "/health" else 503)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            engine.headers = dict(self.headers.items())
            if self.path == "/abort_request":
                self._reply(engine.abort(body["rid"]))
            else:
                self._reply(engine.serve(body))

        def _reply(self, status: int) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"{}" if status == 200 else b"no room")

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
