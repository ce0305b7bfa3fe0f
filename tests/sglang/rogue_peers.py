"""Peers that nobody wants, as processes: `python rogue_peers.py flood|garbage|impostor SOCKET SECONDS SEED`.

* flood: engines that nobody has, reporting as fast as they can, and clients that ask without end.
* garbage: bytes that are no HTTP/2, frames that are no gRPC, messages that are no protocol.
* impostor: a controller in the place of the real one, which must be gone: it lies, floods, and sends garbage.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc

from trimtabpb.v1 import admin_pb2, admin_pb2_grpc
from trimtabpb.v1 import control_pb2 as pb
from trimtabpb.v1 import control_pb2_grpc as services

STREAMS = 6
ASKING = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
METHODS = ("/trimtab.v1.ControlService/Connect", "/trimtab.v1.AdminService/Pin", "/trimtab.v1.AdminService/ListEngines")
BURST = 200


def flood(address: str, until: float, drawn: random.Random) -> None:
    """Streams and calls at full speed. A controller that holds them back may keep them beyond their time."""
    target = f"unix:{address}"
    for number in range(STREAMS):
        threading.Thread(target=_flood_stream, args=(target, until, f"rogue-{number}"), daemon=True).start()
    for _ in range(ASKING):
        threading.Thread(target=_ask_on, args=(target, until), daemon=True).start()
    time.sleep(max(0.0, until - time.monotonic()))


def _flood_stream(target: str, until: float, engine_id: str) -> None:
    def say() -> Iterator[pb.EngineMessage]:
        modes = [pb.Mode(kind=pb.Mode.KIND_SPECULATE, steps=3)]
        yield pb.EngineMessage(
            hello=pb.Hello(protocol_version=1, engine_id=engine_id, boot_id="b", modes=modes, acts=True)
        )
        seq = 0
        while time.monotonic() < until:
            seq += 1
            report = pb.Report(seq=seq, in_force=pb.InForce(source=pb.InForce.SOURCE_STOCK))
            report.rows.step.extend(range(500))
            report.rows.launch_id.extend(range(500))
            yield pb.EngineMessage(report=report)

    while time.monotonic() < until:
        with suppress(grpc.RpcError), grpc.insecure_channel(target) as channel:
            for _ in services.ControlServiceStub(channel).Connect(say()):
                if time.monotonic() > until:
                    return
        time.sleep(0.05)


def _ask_on(target: str, until: float) -> None:
    while time.monotonic() < until:
        with suppress(grpc.RpcError), grpc.insecure_channel(target) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            while time.monotonic() < until:
                stub.ListEngines(admin_pb2.ListEnginesRequest(), timeout=5)


def garbage(address: str, until: float, drawn: random.Random) -> None:
    """One kind of garbage after the other."""
    kinds: tuple[Callable[[str, random.Random], None], ...] = (_bytes, _frames, _messages)
    while time.monotonic() < until:
        with suppress(OSError, grpc.RpcError):
            drawn.choice(kinds)(address, drawn)


def _bytes(address: str, drawn: random.Random) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(1)
        raw.connect(address)
        raw.sendall(drawn.randbytes(drawn.randrange(1, 5000)))


def _frames(address: str, drawn: random.Random) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(1)
        raw.connect(address)
        frames = b"".join(
            drawn.randbytes(2).rjust(3, b"\0") + drawn.randbytes(6) + drawn.randbytes(40) for _ in range(20)
        )
        raw.sendall(PREFACE + frames)


def _messages(address: str, drawn: random.Random) -> None:
    with grpc.insecure_channel(f"unix:{address}") as opened:
        channel: Any = opened
        method = drawn.choice(METHODS)
        if method.endswith("Connect"):
            sent = iter([drawn.randbytes(drawn.randrange(300)) for _ in range(5)])
            list(channel.stream_stream(method)(sent, timeout=2))
        else:
            channel.unary_unary(method)(drawn.randbytes(drawn.randrange(300)), timeout=2)


class Impostor:
    """Takes every stream, says Welcome, and then what no sound controller says."""

    def __init__(self, until: float, drawn: random.Random) -> None:
        self._until = until
        self._drawn = drawn

    def says(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """One stream's worth of trouble."""
        next(messages)
        threading.Thread(target=lambda: list(messages), daemon=True).start()
        welcome = pb.Welcome(protocol_version=self._drawn.choice([0, 1, 99]))
        yield pb.ControllerMessage(welcome=welcome).SerializeToString()
        kind = self._drawn.choice([self._lies, self._noise, self._flood, self._silence])
        yield from kind()
        while context.is_active() and time.monotonic() < self._until:
            time.sleep(0.05)

    def _lies(self) -> Iterator[bytes]:
        for nonce in range(1, 40):
            lease = pb.Lease(version=nonce, nonce=nonce, smoothing=self._drawn.choice([0.0, 1.0, float("nan")]))
            lease.ttl.seconds = self._drawn.choice([0, -1, 3_155_760_000])
            steps = self._drawn.choice([2, 4, 5, 64, 4_000_000_000])
            lease.table.add(min_batch_size=1, mode=pb.Mode(kind=pb.Mode.KIND_SPECULATE, steps=steps), probability=1)
            yield pb.ControllerMessage(lease=lease).SerializeToString()

    def _noise(self) -> Iterator[bytes]:
        yield self._drawn.randbytes(self._drawn.randrange(1, 2000))

    def _flood(self) -> Iterator[bytes]:
        release = pb.ControllerMessage(release=pb.Release(reason="x" * 1000)).SerializeToString()
        yield from [release] * BURST

    def _silence(self) -> Iterator[bytes]:
        yield from ()


def impostor(address: str, until: float, drawn: random.Random) -> None:
    """Serve in the place of the controller."""
    with suppress(FileNotFoundError):
        os.unlink(address)
    server = grpc.server(ThreadPoolExecutor(8))
    connect: Any = grpc.stream_stream_rpc_method_handler(Impostor(until, drawn).says)
    handler = grpc.method_handlers_generic_handler("trimtab.v1.ControlService", {"Connect": connect})
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{address}")
    server.start()
    time.sleep(max(0.0, until - time.monotonic()))
    server.stop(0).wait()


def main() -> int:
    """Be the peer that the arguments name, at low priority."""
    os.nice(10)
    kind, address, seconds, seed = sys.argv[1:]
    peers = {"flood": flood, "garbage": garbage, "impostor": impostor}
    peers[kind](address, time.monotonic() + float(seconds), random.Random(int(seed)))
    os._exit(0)


if __name__ == "__main__":
    main()
