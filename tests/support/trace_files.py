"""Traces for tests: written from step rows, and looked at as tables and as rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trimtab.domain import DepthCounts, StepFlag, StepRow
from trimtab.profile_file import read_mode
from trimtab.replay.traces.schema import TraceEngine
from trimtab.replay.traces.writer import TraceWriter

TRACES = Path(__file__).parents[1] / "data" / "traces"
STEP_LOGS = {
    "llama32b_fa3_ctx64": 3080,
    "llama8b_fa3_bs225": 1720,
    "llama8b_fa3_ctx4k": 4280,
    "llama8b_fa3_ctx64": 5220,
    "llama8b_fa3_per_request": 4860,
    "llama8b_triton_ctx64": 2320,
}
WORDS = ("engine", "mode")


def write_rows(
    path: Path, rows: Sequence[StepRow], engine: str = "a", probabilities: Any = None, dwell_steps: Any = None
) -> Path:
    """A trace of these rows, as one run of an engine."""
    with TraceWriter(path, "journal") as writer:
        writer.begin(TraceEngine(engine, 0))
        writer.write_rows(rows, probabilities, dwell_steps)
    return path


def table_of(path: Path) -> Any:
    """All of a trace, with words as plain strings."""
    table = pq.read_table(path)
    for name in WORDS:
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table.column(name).cast(pa.string()))
    return table.combine_chunks()


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a trace as dictionaries."""
    found: list[dict[str, Any]] = table_of(path).to_pylist()
    return found


def step_rows_of(path: Path) -> list[StepRow]:
    """The rows of a trace as step rows."""
    return [_step_row(row) for row in rows_of(path)]


def _step_row(row: dict[str, Any]) -> StepRow:
    fields = {name: row[name] for name in StepRow.__dataclass_fields__ if name in row}
    counts = {which: DepthCounts(*(tuple(row[f"{which}_{what}"]) for what in ("offered", "accepted"))) for which in
              ("fresh", "stale")}  # fmt: skip
    return StepRow(**{**fields, **counts, "mode": read_mode("row", row["mode"]), "flags": StepFlag(row["flags"])})
