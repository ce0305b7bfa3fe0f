"""Makes long traces of a load that changes as a server's does: a step log (CSV) or a trace with all it can know.

    python tests/support/long_trace.py step_log 10_000_000 steps.csv
    python tests/support/long_trace.py trace 10_000_000 steps.parquet

Seeded: the same rows for the same seed, however many of them are asked for. Made a block at a time, so memory stays
the same whatever the length.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from trimtab.domain import PLAIN_WARM, Mode, StepFlag, speculate
from trimtab.replay.traces.schema import TraceEngine
from trimtab.replay.traces.writer import TraceWriter

BLOCK_ROWS = 100_000
STEPS = np.array([0, 1, 2, 3, 5, 7])
MODES: tuple[Mode, ...] = (PLAIN_WARM, *(speculate(int(k)) for k in STEPS[1:]))
# Where each mode but the widest begins to be the table's choice, from the largest batches down.
EDGES = np.array([160, 96, 48, 24, 8])
GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
DWELL = 32
EXPLORED = 0.06
# Rows that one size of the load lasts, and rows between two prefills.
LEVEL, PREFILL = 40, 160
DAY_ROWS = 400_000
TABLE_ENTRIES = 6

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """Rows that follow each other; all arrays of shape `(n_rows,)`, counts by depth of `(n_rows, 7)`."""

    result_ns: Ints
    mode: Ints
    chosen: Ints
    batch_size: Ints
    offered: Ints
    accepted: Ints
    step_ns: Ints
    gap: npt.NDArray[np.bool_]
    prefill_tokens: Ints
    context: Ints

    def __len__(self) -> int:
        return len(self.mode)


def blocks(rows: int, seed: int = 0) -> Iterator[Block]:
    """The first so many rows of this seed's load."""
    last_ns = 0
    for start in range(0, rows, BLOCK_ROWS):
        block = _block(start, min(BLOCK_ROWS, rows - start), seed, last_ns)
        last_ns = int(block.result_ns[-1])
        yield block


def _block(start: int, rows: int, seed: int, last_ns: int) -> Block:
    rng = np.random.default_rng((seed, start))
    row = np.arange(start, start + BLOCK_ROWS)
    octave = 4.5 + 3.2 * np.sin(row / DAY_ROWS * 2 * np.pi) + np.repeat(rng.normal(0, 0.3, len(row) // LEVEL), LEVEL)
    batch_size = np.clip(2**octave, 1, 256).astype(np.int64)
    preferred = len(EDGES) - np.searchsorted(EDGES[::-1], batch_size, side="right")
    preferred = np.repeat(preferred[::DWELL], DWELL)[: len(row)]
    explores = np.repeat(rng.random(len(row) // DWELL + 1) < EXPLORED, DWELL)[: len(row)]
    side = np.repeat(np.where(rng.random(len(row) // DWELL + 1) < 0.5, -1, 1), DWELL)[: len(row)]
    mode = np.where(explores, _beside(preferred, side), preferred)
    offered, accepted = _drafts(rng, row, batch_size, mode)
    gap = row % PREFILL == 0
    context = (300 + 200 * np.sin(row / 7_000)).astype(np.int64) * batch_size
    ms = 5 + 0.05 * batch_size + (0.3 + 0.02 * batch_size) * STEPS[mode] + 2e-5 * context
    step_ns = (ms * np.exp(0.03 * rng.standard_normal(len(row))) * 1e6).astype(np.int64)
    wall = step_ns + gap * rng.integers(20_000_000, 80_000_000, len(row))
    block = Block(
        last_ns + np.cumsum(wall), mode, preferred, batch_size, offered, accepted, step_ns, gap, gap * 2048, context
    )
    return block if rows == BLOCK_ROWS else Block(*(getattr(block, name)[:rows] for name in Block.__dataclass_fields__))


def _beside(preferred: Ints, side: Ints) -> Ints:
    """The mode that exploration runs in place of the preferred one."""
    last = len(STEPS) - 1
    return np.where(preferred == 0, 1, np.where(preferred == last, last - 1, preferred + side))


def _drafts(rng: np.random.Generator, row: Ints, batch_size: Ints, mode: Ints) -> tuple[Ints, Ints]:
    """Drafts by depth: each has its chance, which wanders over hours and falls with depth."""
    depth = int(STEPS[-1])
    offered, accepted = np.zeros((len(row), depth), dtype=np.int64), np.zeros((len(row), depth), dtype=np.int64)
    chance = 0.6 + 0.3 * np.sin(row / 90_000)
    reached = batch_size
    for d in range(depth):
        offered[:, d] = np.where(STEPS[mode] > d, reached, 0)
        reached = accepted[:, d] = rng.binomial(offered[:, d], chance * 0.97**d)
    return offered, accepted


def write_step_log(path: Path, rows: int, seed: int = 0) -> None:
    """The load as a step log."""
    schema = pa.schema(
        [("t_s", pa.float64()), ("num_steps", pa.int64()), ("batch_size", pa.int64()), ("accepted_drafts", pa.int64())]
    )
    with path.open("wb") as file:
        file.write(",".join(schema.names).encode() + b"\n")
        writer = pyarrow.csv.CSVWriter(file, schema, write_options=pyarrow.csv.WriteOptions(include_header=False))
        for block in blocks(rows, seed):
            t_s = np.round(block.result_ns / 1e9, 6)
            columns = [t_s, STEPS[block.mode], block.batch_size, block.accepted.sum(axis=1)]
            writer.write(pa.record_batch([pa.array(column) for column in columns], schema=schema))
        writer.close()


def write_trace(path: Path, rows: int, seed: int = 0) -> None:
    """The load as a trace: counts by depth, propensities, context and all else that an engine reports."""
    engine = TraceEngine(
        "made-up", 0, modes=tuple(map(str, MODES)), graph_batch_sizes=GRAPH_SIZES, max_running_requests=256,
        initial_steps=7, block_verification=False, start_mode=str(MODES[-1]),
    )  # fmt: skip
    with TraceWriter(path, "journal") as writer:
        writer.begin(engine)
        start = 0
        for block in blocks(rows, seed):
            writer.write(_columns(block, start))
            start += len(block)


def _columns(block: Block, start: int) -> dict[str, Any]:
    n, zero = len(block), np.zeros(len(block), dtype=np.int64)
    step = np.arange(start, start + n)
    names = pa.array([str(mode) for mode in MODES])
    accepted = block.accepted.sum(axis=1)
    depths = STEPS[block.mode]
    switched = np.diff(block.mode, prepend=block.mode[0]) != 0
    explored = block.mode != block.chosen
    flags = StepFlag.GRAPH + StepFlag.GAP * block.gap + StepFlag.SWITCHED * switched + StepFlag.EXPLORED * explored
    at_edge = (block.chosen == 0) | (block.chosen == len(STEPS) - 1)
    probability = np.where(explored, np.where(at_edge, EXPLORED, EXPLORED / 2), 1 - EXPLORED)
    return {
        "launch_id": step,
        "step": step,
        "result_ns": block.result_ns,
        "mode": pa.DictionaryArray.from_arrays(pa.array(block.mode.astype(np.int32)), names),
        "batch_size": block.batch_size,
        "padded_batch_size": np.array(GRAPH_SIZES)[np.searchsorted(GRAPH_SIZES, block.batch_size)],
        "emitted_tokens": block.batch_size + accepted,
        "accepted_tokens": accepted,
        "fresh_requests": block.batch_size,
        "stale_requests": zero,
        "fresh_offered": _lists(block.offered, depths),
        "fresh_accepted": _lists(block.accepted, depths),
        "stale_offered": _lists(block.offered, zero),
        "stale_accepted": _lists(block.accepted, zero),
        "step_ns": pa.array(block.step_ns, mask=block.gap),
        "wall_gap_ns": np.diff(block.result_ns, prepend=block.result_ns[0]),
        "prefill_tokens": block.prefill_tokens,
        "context_tokens_sum": block.context,
        "context_tokens_max": block.context // block.batch_size * 2,
        "running_requests": block.batch_size,
        "waiting_requests": zero,
        "retracted_requests": zero,
        "lease_version": 1 + step // 50,
        "table_entry": TABLE_ENTRIES - 1 - block.chosen,
        "flags": flags,
        "rank": zero,
        "dp_rank": zero,
        "probability": probability,
        "exploration_dwell_steps": np.full(n, DWELL),
    }


def _lists(counts: Ints, depths: Ints) -> Any:
    """The first so many entries of every row as an Arrow list."""
    inside = np.arange(counts.shape[1]) < depths[:, None]
    offsets = np.concatenate([[0], np.cumsum(depths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(counts[inside].astype(np.int32)))


def main(arguments: list[str]) -> None:
    """Write what the command line asks for."""
    kind, rows, path, *seed = arguments
    write = {"step_log": write_step_log, "trace": write_trace}[kind]
    write(Path(path), int(rows), int(seed[0]) if seed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
