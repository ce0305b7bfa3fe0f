"""Every result of an engine in memory, the same way with and without speculation and with and without Trimtab.

Nothing is computed on the scheduler's thread: it keeps references, and `write` makes arrays of them once the engine is
idle. Tokens count where the scheduler has them, which is the same place for all contenders and costs no streaming.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# Beside numbers of drafts: cold plain, a prefill, and a decode that was no verify.
COLD, PREFILL, PLAIN = -3, -2, -1
SKIP_DRAFT_EXTEND = "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Steps:
    """Results in order.

    Attributes:
        at_ns: CLOCK_MONOTONIC when each was processed; shape `(n_steps,)`.
        steps: Drafts a step, or one of `COLD`, `PREFILL` and `PLAIN`; shape `(n_steps,)`.
        graph: Whether a captured graph ran; shape `(n_steps,)`.
        context: Tokens of context of all its requests, with those of the step; shape `(n_steps,)`.
        first: Where each step begins in the two arrays below; shape `(n_steps + 1,)`.
        request: Number of the request in `identities`; shape `(n_entries,)`.
        tokens: Tokens that it got; shape `(n_entries,)`.
        identities: Names of the requests.
        retractions: Requests that were thrown out for want of memory.
    """

    at_ns: Ints
    steps: Ints
    graph: Ints
    context: Ints
    first: Ints
    request: Ints
    tokens: Ints
    identities: tuple[str, ...]
    retractions: int

    @property
    def batch(self) -> Ints:
        """Requests in each step; shape `(n_steps,)`."""
        return np.diff(self.first)


class StepRecorder:
    """Records in the scheduler's process, between `begin` and `write`."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._recording = False
        self._wanted = 0
        self._retractions = 0
        self.filled_ns = 0

    def begin(self, wanted: int) -> None:
        """Record from now on; `filled_ns` is when so many requests ran at once."""
        self._rows, self._retractions, self.filled_ns, self._wanted = [], 0, 0, wanted
        self._recording = True

    def after_verify(self, result: Any, worker: Any, batch: Any, *_args: Any, **_kwargs: Any) -> None:
        """Hook behind the speculative worker's forward: says on the result what ran.

        Trimtab's native rounds do not come through here, and results arrive later: they cannot be told from others by
        their shape, nor by their order.
        """
        if not batch.forward_mode.is_extend():
            steps = worker.speculative_num_steps
            cold = not steps and os.environ.get(SKIP_DRAFT_EXTEND, "").lower() in ("1", "true", "yes")
            result.bench_steps = COLD if cold else steps

    def after_result(self, _returned: Any, _scheduler: Any, batch: Any, result: Any, *_args: Any, **_kw: Any) -> None:
        """Hook behind `Scheduler.process_batch_result`."""
        if not self._recording:
            return
        now_ns, prefill = time.monotonic_ns(), batch.forward_mode.is_extend()
        if not prefill and not batch.forward_mode.is_decode():
            return
        requests = batch.reqs
        accepted = [bool(r.output_ids) for r in requests] if prefill else result.num_correct_drafts_per_req_cpu
        steps = PREFILL if prefill else getattr(result, "bench_steps", PLAIN)
        graph = getattr(result, "can_run_cuda_graph", False)
        self._rows.append((now_ns, prefill, requests, accepted, steps, graph))
        if not self.filled_ns and not prefill and len(requests) >= self._wanted:
            self.filled_ns = now_ns

    def after_retraction(self, returned: Any, *_args: Any, **_kwargs: Any) -> None:
        """Hook behind `ScheduleBatch.retract_decode`."""
        self._retractions += len(returned[0])

    def write(self, path: Path) -> None:
        """Stop, and leave everything in the file."""
        self._recording = False
        rows, self._rows = self._rows, []
        numbers: dict[str, int] = {}
        lengths: list[int] = []
        request: list[int] = []
        tokens: list[int] = []
        context: list[int] = []
        first = [0]
        for _, prefill, requests, accepted, *_ in rows:
            ran = [numbers.setdefault(str(r.rid), len(numbers)) for r in requests]
            # SGLang does not keep lengths on the host for every attention backend.
            lengths += [len(r.origin_input_ids) for r, i in zip(requests, ran, strict=True) if i >= len(lengths)]
            if prefill:
                got = list(map(int, accepted))
            elif accepted is None:
                got = [1] * len(requests)
            else:
                got = [max(0, int(count)) + 1 for count in accepted]
            for i, count in zip(ran, got, strict=False):
                lengths[i] += count
            context.append(sum(lengths[i] for i in ran))
            request += ran
            tokens += got
            first.append(len(request))
        with path.with_suffix(".new").open("wb") as file:
            np.savez_compressed(
                file, at_ns=np.array([row[0] for row in rows], dtype=np.int64),
                steps=np.array([row[4] for row in rows], dtype=np.int64),
                graph=np.array([bool(row[5]) for row in rows], dtype=np.int64),
                context=np.array(context, dtype=np.int64),
                first=np.array(first, dtype=np.int64), request=np.array(request, dtype=np.int64),
                tokens=np.array(tokens, dtype=np.int64), identities=np.array(json.dumps(list(numbers))),
                retractions=np.array(self._retractions),
            )  # fmt: skip
        path.with_suffix(".new").rename(path)


def read_steps(path: Path) -> Steps:
    """What `write` left."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in ("at_ns", "steps", "graph", "context", "first", "request", "tokens")}
        return Steps(
            **arrays, identities=tuple(json.loads(str(file["identities"]))), retractions=int(file["retractions"])
        )
