"""How fast traces are made and read, on one core; what `extra_info` says is rows a second.

`TRIMTAB_BENCH_ROWS=10000000 pytest tests/bench/test_trace_speed.py -m bench --benchmark-enable` measures ten million.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.long_trace import write_step_log, write_trace
from trimtab.replay.traces.importing import import_traces
from trimtab.replay.traces.recording import read_trace
from trimtab.replay.traces.summary import summarize

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

ROWS = int(os.environ.get("TRIMTAB_BENCH_ROWS", "300000"))
IMPORTED_A_SECOND = 500_000
ROUNDS = 3 if ROWS <= 1_000_000 else 1


@pytest.fixture(scope="module", autouse=True)
def one_core() -> Iterator[None]:
    """Everything runs on one core, as beside a serving engine."""
    cores, threads = os.sched_getaffinity(0), pa.cpu_count()
    os.sched_setaffinity(0, {min(cores)})
    pa.set_cpu_count(1)
    yield
    pa.set_cpu_count(threads)
    os.sched_setaffinity(0, cores)


@pytest.fixture(scope="module")
def step_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "steps.csv"
    write_step_log(path, ROWS)
    return path


@pytest.fixture(scope="module")
def full_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "full.parquet"
    write_trace(path, ROWS)
    return path


def measure(benchmark: Any, work: Callable[[], object], at_least: int = 0) -> None:
    benchmark.pedantic(work, rounds=ROUNDS)
    benchmark.extra_info["rows_per_s"] = round(ROWS / benchmark.stats.stats.min)
    print(f"\n{benchmark.name}: {benchmark.extra_info['rows_per_s']:,} rows/s of {ROWS:,}")
    assert benchmark.extra_info["rows_per_s"] >= at_least


def test_importing_a_step_log(benchmark: Any, step_log: Path, tmp_path: Path) -> None:
    measure(benchmark, lambda: import_traces([step_log], tmp_path / "out.parquet"), IMPORTED_A_SECOND)


def test_importing_a_trace_with_all_columns(benchmark: Any, full_trace: Path, tmp_path: Path) -> None:
    measure(benchmark, lambda: import_traces([full_trace], tmp_path / "out.parquet"), IMPORTED_A_SECOND)


def test_reading_all_columns(benchmark: Any, full_trace: Path) -> None:
    def read() -> int:
        with read_trace(full_trace) as trace:
            return sum(len(columns) for columns in trace.batches())

    measure(benchmark, read)


def test_reading_four_columns(benchmark: Any, full_trace: Path) -> None:
    def read() -> int:
        with read_trace(full_trace) as trace:
            return sum(len(c) for c in trace.batches(["mode", "batch_size", "accepted_tokens", "step_ns"]))

    measure(benchmark, read)


def test_summing_up(benchmark: Any, full_trace: Path) -> None:
    measure(benchmark, lambda: summarize(full_trace))
