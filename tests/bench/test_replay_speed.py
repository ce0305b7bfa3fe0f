"""How fast is a trace replayed, with a fixed mode and with `goodput`? Both readings of the trace count."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.long_replay import Cost, replay_cost
from support.long_trace import write_trace

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

FIXED_ROWS, SESSION_ROWS = 1_000_000, 200_000
FIXED_STEPS_A_SECOND, SESSION_STEPS_A_SECOND = 200_000, 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


def best_of(times: int, path: Path, policy: str) -> Cost:
    return min((replay_cost(path, policy) for _ in range(times)), key=lambda cost: cost.cpu_s)


def test_a_fixed_mode(folder: Path) -> None:
    path = folder / "fixed.parquet"
    write_trace(path, FIXED_ROWS)
    cost = best_of(3, path, "fixed:3")
    print(f"\nreplay of fixed:3: {cost.steps_per_s:,.0f} steps a second, {cost.rows_per_s:,.0f} rows a second")
    assert cost.steps_per_s >= FIXED_STEPS_A_SECOND


def test_goodput(folder: Path) -> None:
    path = folder / "goodput.parquet"
    write_trace(path, SESSION_ROWS)
    cost = best_of(3, path, "goodput")
    print(f"\nreplay of goodput: {cost.steps_per_s:,.0f} steps a second, {cost.rows_per_s:,.0f} rows a second")
    assert cost.steps_per_s >= SESSION_STEPS_A_SECOND
