"""A scripted engine that decodes and follows its leases by itself, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from support.scripted_engine import ScriptedEngine
from trimtab.wire import mode_from_wire
from trimtabpb.v1 import control_pb2 as pb

REPORT_EVERY_S = 0.05
STEPS_A_REPORT = 5
# What a real engine says of itself, as far as step times depend on it.
ABOUT: Mapping[str, Any] = {
    "software": pb.Software(sglang_version="0.5.23"),
    "topology": pb.Topology(tp_size=1),
    "on_expiry": "stock",
    "speculation": pb.Speculation(
        algorithm="EAGLE", topk=1, adaptive=True, initial_steps=3, model="/models/llama-a",
        draft_model="/models/llama-a-eagle", attention_backend="fa3", dtype="bfloat16", kv_cache_dtype="auto",
        weight_version="default", device_name="NVIDIA H200",
    ),
}  # fmt: skip


class LivingEngine:
    """Runs what it is told and reports it, from `__enter__` until `close` or the end of its stream.

    Args:
        target: The controller's address.
        engine_id: Its id.
        hello: More fields of its Hello.

    Attributes:
        comes_back: Whether it connects again when the stream ends, as the plugin does.
        harmed_by: Why it refuses every lease that drafts; empty if it follows them.
    """

    def __init__(self, target: str, engine_id: str, **hello: Any) -> None:
        self.comes_back = False
        self.harmed_by = ""
        self._script = ScriptedEngine(target, engine_id, **hello)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, name=f"living-{engine_id}", daemon=True)

    def __enter__(self) -> LivingEngine:
        self._script.start()
        self._report()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection."""
        self._stop.set()
        self._thread.join()
        self._script.close()

    def _live(self) -> None:
        while not self._stop.is_set():
            if self.comes_back and self._script.ended:
                self._come_back()
                continue
            lease = self._lease()
            if lease is not None:
                self._answer(lease)
            self._report()

    def _answer(self, lease: pb.Lease) -> None:
        if self.harmed_by and not lease.HasField("pin") and any(entry.mode.steps for entry in lease.table):
            self._script.refuse(lease, pb.REFUSAL_HARMFUL, self.harmed_by)
        else:
            self._script.follow(lease)

    def _come_back(self) -> None:
        self._script.close()
        with suppress(AssertionError):
            self._script.start()
            return
        self._stop.wait(REPORT_EVERY_S)

    def _lease(self) -> pb.Lease | None:
        try:
            return self._script.next_lease(REPORT_EVERY_S)
        except AssertionError:
            # Nothing came in time, or nothing ever will again.
            self._stop.wait(REPORT_EVERY_S)
            return None

    def _report(self) -> None:
        in_force = self._script.in_force
        mode = mode_from_wire("mode", in_force.mode) if in_force.HasField("mode") else None
        rows = self._script.decode(STEPS_A_REPORT, mode)
        self._script.report(rows, running_requests=4, waiting_requests=1, switches=2, dropped={"negative_count": 1})
