"""Engines that report as fast as they are read and may, from one process."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import suppress

import grpc

from support.scripted_engine import MODES, decode_row
from trimtab.wire import mode_to_wire, rows_to_columns
from trimtabpb.v1 import control_pb2 as pb
from trimtabpb.v1 import control_pb2_grpc as services

ROWS = 10
STEP_NS = 10_000_000


class Reporting:
    """Sends so many reports over so many streams; each has rows of its own batch sizes, modes and luck.

    Args:
        target: The controller's address.
        streams: Engines.
        reports: Reports of all of them together.

    Attributes:
        sent: Reports so far.
        may: Cleared, nobody sends any more until it is set again.
    """

    def __init__(self, target: str, streams: int, reports: int) -> None:
        self.sent = 0
        self.may = threading.Event()
        self.may.set()
        self._channel = grpc.insecure_channel(target)
        self._share = reports // streams
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._stream, args=(i,), daemon=True) for i in range(streams)]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    @property
    def over(self) -> bool:
        """Whether everything is read."""
        return not any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        """Wait until everything is read."""
        for thread in self._threads:
            thread.join()
        self._channel.close()

    def _stream(self, number: int) -> None:
        with suppress(grpc.RpcError):
            for _ in services.ControlServiceStub(self._channel).Connect(self._say(number)):
                pass

    def _say(self, number: int) -> Iterator[pb.EngineMessage]:
        luck = random.Random(number)
        templates = [self._rows(luck) for _ in range(50)]
        yield pb.EngineMessage(
            hello=pb.Hello(
                protocol_version=1, engine_id=f"soak-{number}", boot_id="b", acts=True, max_running_requests=64,
                graph_batch_sizes=[1, 2, 4, 8, 16, 32, 64], modes=[mode_to_wire(mode) for mode in MODES],
            )
        )  # fmt: skip
        for seq in range(1, self._share + 1):
            self.may.wait()
            rows = luck.choice(templates)
            first = seq * ROWS
            rows.launch_id[:] = rows.step[:] = range(first, first + ROWS)
            rows.result_ns[:] = [(first + i) * STEP_NS for i in range(ROWS)]
            yield pb.EngineMessage(report=pb.Report(seq=seq, now_ns=(first + ROWS) * STEP_NS, rows=rows))
            with self._lock:
                self.sent += 1
        yield pb.EngineMessage(goodbye=pb.Goodbye(reason="enough"))

    def _rows(self, luck: random.Random) -> pb.StepRows:
        size = luck.choice([1, 3, 8, 20, 60])
        rows = [
            decode_row(i + 1, luck.choice(MODES), size, step_ns=luck.randrange(5, 12) * 1_000_000) for i in range(ROWS)
        ]
        return rows_to_columns(rows)
