"""What a trace holds: its columns, and what is said of its engines.

A trace is one Parquet file with a row for each decode step. Rows of one run of an engine (a segment) stand together,
in the order of their results. Columns that only some sources know are null where they do not.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from trimtab import __version__

FORMAT_VERSION = 1
METADATA_KEY = b"trimtab_trace"
# In arrays of integers: the row does not have it.
ABSENT = -1

REQUIRED = ("engine", "run", "result_ns", "mode", "batch_size")
WORDS = ("engine", "mode")
COUNTS = ("fresh_offered", "fresh_accepted", "stale_offered", "stale_accepted")
FRACTIONS = ("accepted_worst_decile", "probability")
_WORD: Any = pa.dictionary(pa.int32(), pa.string())
_TYPES: dict[str, Any] = {
    "engine": _WORD,
    "run": pa.int32(),
    "launch_id": pa.int64(),
    "step": pa.int64(),
    "result_ns": pa.int64(),
    "mode": _WORD,
    "batch_size": pa.int32(),
    "padded_batch_size": pa.int32(),
    "global_batch_size": pa.int32(),
    "emitted_tokens": pa.int32(),
    "accepted_tokens": pa.int32(),
    "fresh_requests": pa.int32(),
    "stale_requests": pa.int32(),
    "fresh_offered": pa.list_(pa.int32()),
    "fresh_accepted": pa.list_(pa.int32()),
    "stale_offered": pa.list_(pa.int32()),
    "stale_accepted": pa.list_(pa.int32()),
    "step_ns": pa.int64(),
    "wall_gap_ns": pa.int64(),
    "prefill_tokens": pa.int64(),
    "context_tokens_sum": pa.int64(),
    "context_tokens_max": pa.int64(),
    "kv_used_tokens": pa.int64(),
    "running_requests": pa.int32(),
    "waiting_requests": pa.int32(),
    "retracted_requests": pa.int32(),
    "greedy_requests": pa.int32(),
    "grammar_requests": pa.int32(),
    "lora_requests": pa.int32(),
    "accepted_worst_decile": pa.float64(),
    "catch_up_ns": pa.int64(),
    "missed_tokens": pa.int64(),
    "caught_up_tokens": pa.int64(),
    "lease_version": pa.int64(),
    "table_entry": pa.int32(),
    "flags": pa.int32(),
    "rank": pa.int32(),
    "dp_rank": pa.int32(),
    "probability": pa.float64(),
    "exploration_dwell_steps": pa.int32(),
    "steps": pa.int32(),
}
# Fields of `StepRow` by their names there, besides:
#   engine, run         the engine, and the number of its process's run within the trace
#   accepted_tokens     accepted drafts over the batch
#   *_offered/accepted  drafts by depth, of fresh and of stale requests; null where only the sum is known
#   probability         with which the mode that ran was chosen
#   exploration_dwell_steps  decode steps between two draws of the lease; 0 where its entry has nothing to draw
#   steps               decode steps that the row stands for; null is 1. Where it is more, `emitted_tokens`,
#                       `accepted_tokens` and `prefill_tokens` are sums over these steps, `wall_gap_ns` spans all of
#                       them, and `step_ns` is the mean of one.
SCHEMA: Any = pa.schema([pa.field(name, kind, nullable=name not in REQUIRED) for name, kind in _TYPES.items()])
COLUMNS = tuple(_TYPES)
INTEGERS = tuple(name for name in COLUMNS if name not in (*WORDS, *COUNTS, *FRACTIONS))


class TraceEngine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run of one engine in a trace: how many rows it has, and what is known of the engine.

    Attributes:
        engine: Id of the engine.
        run: Number of the process's run, from 0.
        rows: Rows of it in the trace.
        modes: Modes that it can be told to run; empty if unknown.
        graph_batch_sizes: Batch sizes with a captured graph, ascending; empty if unknown or none.
        max_running_requests: 0 if unknown.
        initial_steps: Drafts a step that the engine starts with; 0 if unknown.
        block_verification: Whether a draft may be accepted after a rejected one; None if unknown.
        start_mode: Mode in force before the first row; empty if unknown.
        cost_key: The fields of `CostKey` that are known.
        kv_capacity_tokens: Tokens that its KV cache holds; 0 if unknown.
    """

    engine: str
    run: int
    rows: int = 0
    modes: tuple[str, ...] = ()
    graph_batch_sizes: tuple[int, ...] = ()
    max_running_requests: int = 0
    initial_steps: int = 0
    block_verification: bool | None = None
    start_mode: str = ""
    cost_key: dict[str, str | int] = {}
    kv_capacity_tokens: int = 0


class TraceInfo(msgspec.Struct, frozen=True):
    """What a trace says of itself.

    Attributes:
        format: Version of the format.
        source: What it was made from: `journal`, `step_log`, `sglang_log`, `step_rows`, or several with `+` between.
        trimtab_version: Version that wrote it.
        modes: Modes that its rows ran in, ascending; codes of modes count along these.
        engines: Runs of engines in the order of the file.
    """

    format: int
    source: str
    trimtab_version: str
    modes: tuple[str, ...] = ()
    engines: tuple[TraceEngine, ...] = ()


def trace_info(source: str, modes: tuple[str, ...], engines: tuple[TraceEngine, ...]) -> TraceInfo:
    """What a trace written now says of itself."""
    return TraceInfo(FORMAT_VERSION, source, __version__, modes, engines)
