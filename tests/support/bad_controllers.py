"""Controllers that no engine deserves, over real gRPC: raw bytes, floods, silence, other versions."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from support.scripted_controller import milliseconds
from trimtab.session.events import SendLease
from trimtab.wire import lease_message
from trimtab_sglang.lease import Lease
from trimtabpb.v1 import control_pb2 as pb

Says = Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]
OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Little is on its way between the two, so that a side that does not read is soon felt.
    ("grpc.http2.bdp_probe", 0),
)
METHOD = "/trimtab.v1.ControlService/Connect"


class RawController:
    """Answers each stream with the bytes that `says` yields, given the stream's own bytes.

    Attributes:
        streams: Streams so far.
        heard: Every message of every stream, in order.
    """

    def __init__(self, says: Says) -> None:
        self._directory = tempfile.mkdtemp(prefix="trimtab-")
        self.target = f"unix:{self._directory}/c.sock"
        self.streams = 0
        self.heard: list[pb.EngineMessage] = []
        self._says = says
        self._server = grpc.server(ThreadPoolExecutor(8), options=OPTIONS)
        handler: Any = grpc.stream_stream_rpc_method_handler(self._connect)
        self._server.add_generic_rpc_handlers((_Only(handler),))
        self._server.add_insecure_port(self.target)

    def __enter__(self) -> RawController:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _connect(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        self.streams += 1
        return self._says(self._listening(messages), context)

    def _listening(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        try:
            for message in messages:
                self.heard.append(pb.EngineMessage.FromString(message))
                yield message
        except grpc.RpcError:
            return

    def acks(self) -> list[pb.Ack]:
        """The answers to leases so far."""
        return [message.ack for message in list(self.heard) if message.WhichOneof("message") == "ack"]


class _Only(grpc.GenericRpcHandler):
    """One method and no other."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """The handler, if it is the engines' stream."""
        return self._handler if details.method == METHOD else None


def welcome(version: int = 1, interval_ms: int = 100, **limits: int) -> bytes:
    """A Welcome."""
    made = pb.Welcome(protocol_version=version, controller_id="bad", limits=pb.Limits(**limits))
    made.report_interval.CopyFrom(milliseconds(interval_ms))
    return pb.ControllerMessage(welcome=made).SerializeToString()


def lease(lease: Lease, nonce: int, ttl_s: float = 2.0) -> bytes:
    """A lease as it travels."""
    return lease_message(SendLease(lease, nonce, ttl_s)).SerializeToString()


def in_turn(*answers: bytes, every_s: float = 0.0) -> Says:
    """These messages after the Hello, one every so often, and then nothing; the stream stays open."""

    def says(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        next(messages)
        read_on(messages)
        for answer in answers:
            time.sleep(every_s)
            yield answer
        while context.is_active():
            time.sleep(0.02)

    return says


def read_on(messages: Iterator[bytes]) -> None:
    """Take in whatever else comes, on a thread of its own."""
    threading.Thread(target=lambda: list(messages), daemon=True).start()
