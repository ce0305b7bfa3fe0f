"""Peers that say as much as they can, each a process of its own, over real sockets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from trimtab.wire import rows_to_columns
from trimtabpb.v1 import admin_pb2, admin_pb2_grpc, control_pb2_grpc
from trimtabpb.v1 import control_pb2 as pb

ROOTS = [str(Path(__file__).resolve().parents[1])]
AT_ONCE = 32


def reports(target: str) -> None:
    """An engine that reports without pause, with as many rows as it may."""
    from support.scripted_engine import MODES, decode_row

    rows = rows_to_columns([decode_row(i, MODES[-1], 8) for i in range(1, 2001)])

    def say() -> Iterator[pb.EngineMessage]:
        yield _hello("flooder")
        seq = 0
        while True:
            seq += 1
            yield pb.EngineMessage(report=pb.Report(seq=seq, now_ns=seq, rows=rows))

    for _ in control_pb2_grpc.ControlServiceStub(grpc.insecure_channel(target)).Connect(say()):
        pass


def small_messages(target: str) -> None:
    """An engine that sends empty reports without pause."""

    def say() -> Iterator[pb.EngineMessage]:
        yield _hello("flooder")
        seq = 0
        while True:
            seq += 1
            yield pb.EngineMessage(report=pb.Report(seq=seq, now_ns=seq))

    for _ in control_pb2_grpc.ControlServiceStub(grpc.insecure_channel(target)).Connect(say()):
        pass


def large_messages(target: str) -> None:
    """A stranger that sends messages of 100 MB, each on a new stream."""
    message = pb.EngineMessage(goodbye=pb.Goodbye(reason="x" * 100_000_000))
    stub = control_pb2_grpc.ControlServiceStub(grpc.insecure_channel(target, [("grpc.max_send_message_length", -1)]))
    while True:
        try:
            list(stub.Connect(iter([_hello("flooder"), message])))
        except grpc.RpcError:
            continue


def lists(target: str) -> None:
    """A client that asks for everything without pause."""
    stub = admin_pb2_grpc.AdminServiceStub(grpc.insecure_channel(target))
    pending = [stub.ListEngines.future(admin_pb2.ListEnginesRequest()) for _ in range(AT_ONCE)]
    while True:
        pending.pop(0).exception()
        pending.append(stub.ListEngines.future(admin_pb2.ListEnginesRequest()))


def hellos(target: str) -> None:
    """Somebody who opens streams without pause, under the id of an engine that is connected."""
    stub = control_pb2_grpc.ControlServiceStub(grpc.insecure_channel(target))
    while True:
        try:
            list(stub.Connect(iter([_hello("honest")])))
        except grpc.RpcError:
            continue


def garbage(target: str) -> None:
    """Somebody whose bytes are no messages."""
    channel = grpc.insecure_channel(target)
    connect: Any = channel.stream_stream("/trimtab.v1.ControlService/Connect")
    while True:
        try:
            list(connect(iter([b"\xff\xff\xff\xff"])))
        except grpc.RpcError:
            continue


FLOODS: dict[str, Callable[[str], None]] = {
    flood.__name__: flood for flood in (reports, small_messages, large_messages, lists, hellos, garbage)
}


@contextmanager
def flooding(name: str, target: str) -> Iterator[subprocess.Popen[bytes]]:
    """The flood, in a process of its own."""
    code = f"import sys; sys.path[:0] = {ROOTS!r}; from support.floods import FLOODS; FLOODS[{name!r}]({target!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _hello(engine_id: str) -> pb.EngineMessage:
    from support.scripted_engine import MODES
    from trimtab.wire import mode_to_wire

    return pb.EngineMessage(
        hello=pb.Hello(
            protocol_version=1, engine_id=engine_id, boot_id="b", acts=True, max_running_requests=256,
            graph_batch_sizes=[1, 2, 4, 8, 16, 32, 64, 128, 256], modes=[mode_to_wire(mode) for mode in MODES],
        )
    )  # fmt: skip
