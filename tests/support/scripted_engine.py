"""An engine without an engine: what the plugin says on its stream, said by a test, over a real connection."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc

from trimtab.domain import DepthCounts, Mode, StepFlag, StepRow, modes_of
from trimtab.wire import mode_to_wire, rows_to_columns
from trimtabpb.v1 import control_pb2 as pb
from trimtabpb.v1 import control_pb2_grpc as services

MODES = modes_of([0, 1, 3])
WAIT_S = 5.0


class ScriptedEngine:
    """Speaks the engine's side of the protocol, one call a message.

    `start()` does what every engine does first. `follow(lease)` accepts a lease and runs it from then on, so that
    later reports and a later Hello say so. Incoming messages wait in order; each `next_*` skips the other kinds.

    Args:
        target: The controller's address, `unix:/path` or `host:port`.
        engine_id: Its id.
        modes: What it offers.
        boot_id: Changes when the engine restarts.
        hello: More fields of its Hello.
    """

    def __init__(
        self,
        target: str,
        engine_id: str = "engine-1",
        modes: Sequence[Mode] = MODES,
        boot_id: str = "boot-1",
        **hello: Any,
    ) -> None:
        self.target = target
        self.in_force = pb.InForce(source=pb.InForce.SOURCE_STOCK)
        self.pin: pb.Pin | None = None
        self.last_version = 0
        self.seq = 0
        self.step = 0
        self._hello = pb.Hello(
            **{
                "protocol_version": 1,
                "engine_id": engine_id,
                "boot_id": boot_id,
                "modes": [mode_to_wire(mode) for mode in modes],
                "graph_batch_sizes": [1, 2, 4, 8],
                "max_running_requests": 8,
                "acts": True,
                "speculation": pb.Speculation(algorithm="EAGLE", topk=1, adaptive=True, initial_steps=3),
                **hello,
            }
        )
        self._channel: grpc.Channel | None = None
        self._outgoing: queue.SimpleQueue[pb.EngineMessage | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[pb.ControllerMessage | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._status: tuple[grpc.StatusCode, str] = (grpc.StatusCode.UNKNOWN, "")

    def __enter__(self) -> ScriptedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the connection --------------------------------------------------------------------------

    def connect(self) -> None:
        """Open a stream; nothing is said on it yet."""
        self._outgoing, self._incoming = queue.SimpleQueue(), queue.SimpleQueue()
        self._ended.clear()
        self.seq = 0
        self._channel = grpc.insecure_channel(self.target)
        stream = services.ControlServiceStub(self._channel).Connect(self._say())
        threading.Thread(target=self._listen, args=(stream,), daemon=True).start()

    def start(self) -> pb.Welcome:
        """Connect, say Hello, and wait for the Welcome."""
        self.connect()
        self.hello()
        return self.next_welcome()

    def close(self) -> None:
        """Drop the connection without a word, as a dying process does."""
        if self._channel is not None:
            self._outgoing.put(None)
            self._channel.close()
            self._channel = None

    @property
    def ended(self) -> bool:
        """Whether the stream is over."""
        return self._ended.is_set()

    def end(self) -> tuple[grpc.StatusCode, str]:
        """How the controller ended the stream: code and words."""
        assert self._ended.wait(WAIT_S), "the stream goes on"
        return self._status

    # -- what it says ----------------------------------------------------------------------------

    def hello(self, **changes: Any) -> None:
        """Who it is, and what it runs."""
        message = pb.Hello(in_force=self.in_force, pin=self.pin, last_lease_version=self.last_version)
        message.MergeFrom(self._hello)
        message.MergeFrom(pb.Hello(**changes))
        self.say(hello=message)

    def report(self, rows: Sequence[StepRow] | pb.StepRows = (), **fields: Any) -> None:
        """The next report, with these rows."""
        self.seq += 1
        columns = rows if isinstance(rows, pb.StepRows) else rows_to_columns(rows)
        told: Mapping[str, Any] = {
            "seq": self.seq,
            "now_ns": (self.step + 1) * 10_000_000,
            "rows": columns,
            "in_force": self.in_force,
            **fields,
        }
        self.say(report=pb.Report(**told))

    def decode(self, steps: int = 25, mode: Mode | None = None, batch_size: int = 4) -> list[StepRow]:
        """Rows of so many decode steps; with drafts, half of the requests accept each of them."""
        rows = []
        for _ in range(steps):
            self.step += 1
            rows.append(decode_row(self.step, mode or MODES[-1], batch_size))
        return rows

    def follow(self, lease: pb.Lease) -> None:
        """Accept the lease and run it, at the smallest batch size."""
        self.last_version = lease.version
        self.pin = lease.pin if lease.HasField("pin") else None
        source = pb.InForce.SOURCE_PIN if self.pin else pb.InForce.SOURCE_LEASE
        mode = self.pin.mode if self.pin else lease.table[0].mode
        self.in_force = pb.InForce(
            source=source, mode=mode, lease_version=lease.version, pin_id=self.pin.id if self.pin else ""
        )
        self.ack(lease)

    def ack(self, lease: pb.Lease) -> None:
        """The lease is accepted."""
        self.say(ack=pb.Ack(nonce=lease.nonce, version=lease.version, accepted=True))

    def refuse(self, lease: pb.Lease, refusal: pb.Refusal.ValueType, detail: str = "") -> None:
        """The lease is refused."""
        self.say(ack=pb.Ack(nonce=lease.nonce, version=lease.version, refusal=refusal, detail=detail))

    def goodbye(self, reason: str = "the engine stops") -> None:
        """The engine stops in good order."""
        self.say(goodbye=pb.Goodbye(reason=reason))
        self._outgoing.put(None)

    def say(self, **message: Any) -> None:
        """Any message."""
        self._outgoing.put(pb.EngineMessage(**message))

    # -- what it hears ---------------------------------------------------------------------------

    def next_welcome(self) -> pb.Welcome:
        """The Welcome."""
        return self._next("welcome").welcome

    def next_lease(self, timeout_s: float = WAIT_S) -> pb.Lease:
        """The next lease."""
        return self._next("lease", timeout_s).lease

    def next_release(self, timeout_s: float = WAIT_S) -> pb.Release:
        """The next Release."""
        return self._next("release", timeout_s).release

    def lease_where(self, **wanted: Any) -> pb.Lease:
        """The next lease with these fields; those before it are accepted."""
        while True:
            lease = self.next_lease()
            self.follow(lease)
            if all(getattr(lease, name) == value for name, value in wanted.items()):
                return lease

    def pinned_lease(self) -> pb.Lease:
        """The next lease with a pin; those before it are accepted, and so is this one."""
        while True:
            lease = self.next_lease()
            self.follow(lease)
            if lease.HasField("pin"):
                return lease

    def unpinned_lease(self) -> pb.Lease:
        """The next lease without a pin; those before it are accepted, and so is this one."""
        while True:
            lease = self.next_lease()
            self.follow(lease)
            if not lease.HasField("pin"):
                return lease

    def _next(self, kind: str, timeout_s: float = WAIT_S) -> pb.ControllerMessage:
        while True:
            try:
                message = self._incoming.get(timeout=timeout_s)
            except queue.Empty:
                raise AssertionError(f"no {kind} within {timeout_s} s") from None
            assert message is not None, f"the stream ended before a {kind}: {self._status}"
            if message.WhichOneof("message") == kind:
                return message

    def _say(self) -> Iterator[pb.EngineMessage]:
        outgoing = self._outgoing
        while (message := outgoing.get()) is not None:
            yield message

    def _listen(self, stream: Any) -> None:
        incoming = self._incoming
        try:
            for message in stream:
                incoming.put(message)
        except grpc.RpcError:
            pass
        self._status = (stream.code(), stream.details())
        self._ended.set()
        incoming.put(None)


def decode_row(step: int, mode: Mode, batch_size: int = 4, **fields: Any) -> StepRow:
    """One decode step in which half of the requests accept each draft that is offered to them."""
    offered, accepted, left = [], [], batch_size
    for _ in range(mode.steps):
        offered.append(left)
        left //= 2
        accepted.append(left)
    return StepRow(
        **{
            "launch_id": step,
            "step": step,
            "result_ns": step * 10_000_000,
            "mode": mode,
            "batch_size": batch_size,
            "emitted_tokens": batch_size + sum(accepted),
            "fresh_requests": batch_size,
            "fresh": DepthCounts(tuple(offered), tuple(accepted)),
            "step_ns": 8_000_000,
            "wall_gap_ns": 10_000_000,
            "flags": StepFlag.GRAPH,
            **fields,
        }
    )
