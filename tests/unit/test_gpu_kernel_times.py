"""What a trace says of the steps in it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import kernel_times

STEP_US = 5000


def event(name: str, at_us: float, takes_us: float, category: str = "kernel") -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": at_us, "dur": takes_us}


def trace(steps: int) -> list[dict[str, Any]]:
    found = []
    for step in range(steps):
        began = step * STEP_US
        found += [
            event("gemm", began, 3000), event("gemm", began + 3000, 1000), event("argmax", began + 4000, 20),
            event("argmax, the rest", began + 4020, 10), event("cudaEventSynchronize", began, 700, "cuda_runtime"),
        ]  # fmt: skip
    return found


def test_a_step_is_what_lies_between_two_choices_of_tokens() -> None:
    found = kernel_times.summary(trace(8))
    assert (found["steps"], found["step_us"], found["busy_us"]) == (5, 5000.0, 4030.0)
    assert found["kernels"]["gemm"] == [2.0, 4000.0]
    assert found["waits"] == {"cudaEventSynchronize": {"a_step": 1.0, "us": 700.0}}


def test_a_trace_without_steps_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no trace"):
        kernel_times.by_kernel(tmp_path)
    with gzip.open(tmp_path / "1.trace.json.gz", "wt") as file:
        json.dump({"traceEvents": trace(1)}, file)
    with pytest.raises(ValueError, match="no two decode steps"):
        kernel_times.by_kernel(tmp_path)
