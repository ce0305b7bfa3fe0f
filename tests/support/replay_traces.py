"""Small traces for replay, written row by row, and their environments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.step_rows import depth_counts
from trimtab.domain import DepthCounts, EngineInfo, StepFlag, StepRow, speculate
from trimtab.policies.profile import CostProfile, ProfilePoint, profile_of
from trimtab.replay.counterfactual.replay import ReplaySettings, prepare
from trimtab.replay.trace_model.environment import TraceEnvironment
from trimtab.replay.trace_model.rows import ReplayRows, RowSource
from trimtab.replay.traces.reader import Trace
from trimtab.replay.traces.recording import read_trace
from trimtab.replay.traces.schema import TraceEngine
from trimtab.replay.traces.writer import TraceWriter

MS = {0: 8.0, 1: 9.0, 3: 12.0, 7: 20.0}


def flat_profile(ms: dict[int, float] | None = None) -> CostProfile:
    """A step takes `ms[k]` whatever the batch."""
    return profile_of([ProfilePoint(256, {speculate(k): value for k, value in (ms or MS).items()})])


class Recorder:
    """Makes rows one after the other, as an engine would report them."""

    def __init__(self, ms: dict[int, float] | None = None) -> None:
        self.rows: list[StepRow] = []
        self._ms = ms or MS
        self._now_ns = 0
        self._last = -1

    def step(
        self, steps: int, runs: Sequence[int], step_ms: float | None = None, gap_ms: float = 0.0, **fields: Any
    ) -> None:
        """A step with so many drafts, in which each request would have had `runs[i]` drafts accepted."""
        ms = self._ms[steps] if step_ms is None else step_ms
        self._now_ns += round((ms + gap_ms) * 1e6)
        counts = depth_counts(list(runs), steps)
        flags = StepFlag.GRAPH
        if self._last not in (-1, steps):
            flags |= StepFlag.SWITCHED
        if gap_ms:
            flags |= StepFlag.GAP
        self._last = steps
        number = len(self.rows) + 1
        self.rows.append(
            StepRow(
                **{
                    "launch_id": number,
                    "step": number,
                    "result_ns": self._now_ns,
                    "mode": speculate(steps),
                    "batch_size": len(runs),
                    "emitted_tokens": len(runs) + sum(counts.accepted),
                    "fresh_requests": len(runs),
                    "fresh": counts if steps else DepthCounts(),
                    "step_ns": None if gap_ms else round(ms * 1e6),
                    "wall_gap_ns": round((ms + gap_ms) * 1e6),
                    "flags": flags,
                    **fields,
                }
            )
        )


def engine(name: str = "llama-a", run: int = 0, start: int = 3, ms: dict[int, float] | None = None) -> TraceEngine:
    """What a trace says of an engine that can run the modes of `ms`."""
    return TraceEngine(
        name, run, modes=tuple(str(speculate(k)) for k in sorted(ms or MS)), graph_batch_sizes=(1, 2, 4, 8, 16, 32, 64),
        max_running_requests=64, initial_steps=start, block_verification=False, start_mode=str(speculate(start)),
    )  # fmt: skip


def write(path: Path, *runs: tuple[TraceEngine, Sequence[StepRow]]) -> Path:
    """Write runs of engines as one trace."""
    with TraceWriter(path, "step_rows") as writer:
        for about, rows in runs:
            writer.begin(about)
            writer.write_rows(rows)
    return path


@dataclass(frozen=True)
class Prepared:
    """An open trace with its environment."""

    trace: Trace
    source: RowSource
    environment: TraceEnvironment
    engines: list[EngineInfo]


@contextmanager
def prepared(path: Path, settings: ReplaySettings | None = None) -> Iterator[Prepared]:
    """The trace, ready to be replayed; steps take `MS` unless the settings say otherwise."""
    with read_trace(path) as trace:
        source = RowSource(trace, str(path))
        environment, engines = prepare(source, settings or ReplaySettings(profile=flat_profile()))
        yield Prepared(trace, source, environment, engines)


def all_rows(path: Path) -> list[ReplayRows]:
    """Every stretch of a trace."""
    with read_trace(path) as trace:
        return list(RowSource(trace, str(path)).stretches())
