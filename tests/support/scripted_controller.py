"""A controller without a policy: what `trimtabd` says on a stream, said by a test, over a real connection."""

from __future__ import annotations

import contextlib
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from trimtab.session.events import SendLease
from trimtab.wire import lease_message
from trimtab_sglang.lease import Lease
from trimtabpb.v1 import control_pb2 as pb
from trimtabpb.v1 import control_pb2_grpc as services

WAIT_S = 5.0


class ScriptedController(services.ControlServiceServicer):
    """Takes one stream at a time; each `next_*` skips messages of the other kinds.

    Args:
        welcoming: Say Welcome to every Hello.
        report_interval_s: What the Welcome asks for.
        target: Where to listen, in the place of another one that is gone; a socket of its own without.

    Attributes:
        reports: Every report so far, whether a `next_*` skipped it or not.
    """

    def __init__(self, welcoming: bool = True, report_interval_s: float = 0.1, target: str = "") -> None:
        self._directory = tempfile.mkdtemp(prefix="trimtab-")
        self.target = target or f"unix:{self._directory}/c.sock"
        self._welcoming = welcoming
        self._interval_ms = round(report_interval_s * 1e3)
        self._nonce = 0
        self.reports: list[pb.Report] = []
        self._heard: queue.SimpleQueue[pb.EngineMessage] = queue.SimpleQueue()
        self._to_say: queue.SimpleQueue[pb.ControllerMessage | None] = queue.SimpleQueue()
        self._streaming = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(4))
        services.add_ControlServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.target)

    def __enter__(self) -> ScriptedController:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        self._server.stop(0).wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def Connect(  # noqa: N802
        self, request_iterator: Iterator[pb.EngineMessage], context: grpc.ServicerContext
    ) -> Iterator[pb.ControllerMessage]:
        """One engine's stream."""
        to_say = self._to_say = queue.SimpleQueue()
        self._streaming.set()
        context.add_callback(lambda: to_say.put(None))
        threading.Thread(target=self._listen, args=(request_iterator, to_say), daemon=True).start()
        while (message := to_say.get()) is not None:
            yield message

    def _listen(self, messages: Iterator[pb.EngineMessage], to_say: queue.SimpleQueue[Any]) -> None:
        try:
            for message in messages:
                if message.HasField("hello") and self._welcoming:
                    welcome = pb.Welcome(protocol_version=1, controller_id="script")
                    welcome.report_interval.CopyFrom(milliseconds(self._interval_ms))
                    to_say.put(pb.ControllerMessage(welcome=welcome))
                if message.HasField("report"):
                    self.reports.append(message.report)
                self._heard.put(message)
        except grpc.RpcError:
            pass

    # -- what it says ----------------------------------------------------------------------------

    def say(self, **message: Any) -> None:
        """Any message, as soon as there is a stream."""
        assert self._streaming.wait(WAIT_S), "no engine came"
        self._to_say.put(pb.ControllerMessage(**message))

    def lease(self, lease: Lease, ttl_s: float = 5.0, pin_remaining_s: float | None = None) -> pb.Ack:
        """Send a lease; the engine's answer to it."""
        self._nonce += 1
        self.say(lease=lease_message(SendLease(lease, self._nonce, ttl_s, pin_remaining_s)).lease)
        ack = self.next_ack()
        assert (ack.nonce, ack.version) == (self._nonce, lease.version)
        return ack

    def hang_up(self) -> None:
        """End the stream."""
        self._streaming.clear()
        self._to_say.put(None)

    # -- what it hears ---------------------------------------------------------------------------

    def next_hello(self) -> pb.Hello:
        """The next Hello."""
        return self._next("hello").hello

    def next_report(self) -> pb.Report:
        """The next report."""
        return self._next("report").report

    def forget_reports(self) -> None:
        """Everything heard so far is old news."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._heard.get_nowait()

    def next_ack(self) -> pb.Ack:
        """The next answer to a lease."""
        return self._next("ack").ack

    def next_goodbye(self) -> pb.Goodbye:
        """The Goodbye."""
        return self._next("goodbye").goodbye

    def _next(self, kind: str) -> pb.EngineMessage:
        deadline = time.monotonic() + WAIT_S
        while (left_s := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                message = self._heard.get(timeout=left_s)
                if message.WhichOneof("message") == kind:
                    return message
        raise AssertionError(f"no {kind} within {WAIT_S} s")


def milliseconds(ms: int) -> Duration:
    """A length of time."""
    made = Duration()
    made.FromMilliseconds(ms)
    return made
