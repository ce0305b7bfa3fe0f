"""A trace as samples of step times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.domain import StepFlag
from trimtab.replay.arrays import Floats
from trimtab.replay.profiles.samples import cost_samples
from trimtab.replay.profiles.wanted import Found, Wanted, generated_tokens, padded_sizes
from trimtab.replay.traces.reader import Trace

COLUMNS = (
    "mode", "batch_size", "padded_batch_size", "emitted_tokens", "step_ns", "wall_gap_ns", "flags",
    "retracted_requests", "grammar_requests", "context_tokens_sum", "context_tokens_max", "steps",
)  # fmt: skip


def trace_samples(path: Path, wanted: Wanted, progress: Callable[[int], None] | None = None) -> Found:
    """The rows of a trace whose time is a cost, and why the others are none.

    Args:
        path: The trace.
        wanted: What the trace may not say itself.
        progress: Told now and then how many bytes of the file have been read, by its rows.

    Raises:
        DataError: The file cannot be read.
    """
    size = path.stat().st_size if path.exists() else 0
    with Trace(path) as trace:
        parts: dict[str, list[Floats]] = {name: [] for name in COLUMNS}
        for batch in trace.batches(COLUMNS):
            for name in COLUMNS:
                parts[name].append(batch.steps.astype(float) if name == "steps" else batch.floats(name))
            if progress is not None:
                progress(size * (batch.first_row + len(batch)) // trace.rows)
        sizes = _graph_sizes(trace, wanted)
        columns = {name: np.concatenate([np.zeros(0), *found]) for name, found in parts.items()}
        samples, left_out = cost_samples(trace.modes, _completed(columns, wanted, sizes))
        return Found(samples, trace.rows, left_out)


def _graph_sizes(trace: Trace, wanted: Wanted) -> Wanted:
    """With the sizes that batches were padded to, if one engine says them."""
    said = {engine.graph_batch_sizes for engine in trace.info.engines}
    if wanted.graph_sizes or len(said) != 1:
        return wanted
    return Wanted(wanted.model, wanted.attention_backend, wanted.prompt_tokens, said.pop())


def _completed(columns: dict[str, Floats], wanted: Wanted, padding: Wanted) -> dict[str, Any]:
    """What a row may lack: the size it was padded to, its context, and the time of one that came after a gap."""
    size, flags = columns["batch_size"], np.nan_to_num(columns["flags"]).astype(np.int64)
    gap = (flags & StepFlag.GAP) > 0
    padded, step_ns = columns["padded_batch_size"], columns["step_ns"]
    found: dict[str, Any] = {
        **columns,
        "padded_batch_size": np.where(np.isnan(padded), padded_sizes(size, padding), padded),
        # So that it counts as a gap, and not as a row that nobody timed.
        "step_ns": np.where(np.isnan(step_ns) & gap, columns["wall_gap_ns"], step_ns),
    }
    if wanted.prompt_tokens is not None and np.isnan(columns["context_tokens_sum"]).all():
        generated = generated_tokens(gap, np.nan_to_num(columns["emitted_tokens"]), size)
        found["context_tokens_sum"] = size * (wanted.prompt_tokens + generated)
    return found
