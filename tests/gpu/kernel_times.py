"""What a GPU did in a step, from a trace of SGLang's own profiler."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
# Waiting for the device: what a step path must not do.
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
# Every decode step picks its tokens once.
ONCE_A_STEP = re.compile("argmax", re.IGNORECASE)
APART_US = 200
NAME_LENGTH = 90

Event = Mapping[str, Any]


def by_kernel(folder: Path) -> dict[str, Any]:
    """Times a step in us: between two steps, busy, and by kernel with its number of launches; waits of the host.

    Raises:
        ValueError: There is no trace of at least two steps.
    """
    traces = sorted(folder.rglob("*.trace.json.gz"))
    if not traces:
        raise ValueError(f"no trace came into {folder}")
    with gzip.open(traces[0], "rt") as file:
        events: list[Event] = json.load(file)["traceEvents"]
    return summary([event for event in events if event.get("ph") == "X"])


def summary(events: Sequence[Event]) -> dict[str, Any]:
    """The same, of a trace's events with a duration."""
    device = sorted((event for event in events if event.get("cat") in ON_DEVICE), key=lambda event: event["ts"])
    ends = [event["ts"] + event["dur"] for event in device if ONCE_A_STEP.search(event["name"])]
    # A reduction may take two kernels; the first steps are prefill.
    ends = [end for end, later in itertools.pairwise([*ends, math.inf]) if later - end > APART_US][2:]
    if len(ends) < 2:
        raise ValueError("the trace has no two decode steps")
    steps = len(ends) - 1
    inside = [event for event in device if ends[0] < event["ts"] <= ends[-1]]
    kernels: dict[str, list[float]] = defaultdict(list)
    for event in inside:
        kernels[event["name"][:NAME_LENGTH]].append(event["dur"])
    waits = [e for e in events if e["name"] in WAITS and ends[0] < e["ts"] <= ends[-1]]
    periods = sorted(b - a for a, b in itertools.pairwise(ends))
    return {
        "steps": steps,
        "step_us": round(periods[len(periods) // 2], 1),
        "busy_us": round(sum(event["dur"] for event in inside) / steps, 1),
        "launches": round(len(inside) / steps, 1),
        "waits": {
            name: {"a_step": round(len(found) / steps, 2), "us": round(sum(found) / steps, 1)}
            for name in WAITS
            if (found := [event["dur"] for event in waits if event["name"] == name])
        },
        "kernels": {
            name: [round(len(found) / steps, 2), round(sum(found) / steps, 1)]
            for name, found in sorted(kernels.items(), key=lambda item: -sum(item[1]))
        },
    }
