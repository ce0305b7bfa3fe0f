"""What the rows of measured engines say: step times, catch-ups, and how equal the outputs are."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, str]
ALONE = "alone"
# Without speculation every row is a plain decode.
MODE_OF_ALONE = "plain_native"
DEPTHS = 8


def step_times(windows: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Step times in ms for each batch size and mode, from the rows that ran in it within its windows."""
    cells: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for window in windows:
        wanted = window["mode"] or MODE_OF_ALONE
        cells[window["batch"], window["mode"] or ALONE] += [
            row
            for row in rows
            if window["from_ns"] <= int(row["result_ns"]) <= window["to_ns"]
            and int(row["step_ns"]) > 0
            and int(row["batch_size"]) == window["batch"]
            and row["mode"] == wanted
        ]
    return [_cell(batch, mode, cell) for (batch, mode), cell in sorted(cells.items()) if cell]


def _cell(batch: int, mode: str, rows: Sequence[Row]) -> dict[str, Any]:
    ms = sorted(int(row["step_ns"]) / 1e6 for row in rows)
    return {
        "batch": batch,
        "mode": mode,
        "median_ms": round(statistics.median(ms), 3),
        "mean_ms": round(statistics.fmean(ms), 3),
        "p10_ms": round(ms[len(ms) // 10], 3),
        "p90_ms": round(ms[len(ms) * 9 // 10], 3),
        "steps": len(ms),
        "graph_share": round(sum(int(row["graph"]) for row in rows) / len(rows), 3),
    }


def catch_ups(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What catch-ups took in ms, by batch size and unread tokens of a request (rounded up to a multiple of 8)."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row in rows:
        if int(row["caught_up_tokens"]) and int(row["catch_up_ns"]) > 0:
            batch = int(row["batch_size"])
            depth = -(-int(row["caught_up_tokens"]) // batch)
            found[batch, -(-depth // DEPTHS) * DEPTHS].append(int(row["catch_up_ns"]) / 1e6)
    return [
        {"batch": batch, "unread": unread, "median_ms": round(statistics.median(ms), 3), "seen": len(ms)}
        for (batch, unread), ms in sorted(found.items())
    ]


def over_alone(alone: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Median step times over those of the engine without speculation, by batch size and mode."""
    base = {cell["batch"]: cell["median_ms"] for cell in alone}
    return {
        f"batch {cell['batch']}, {cell['mode']}": round(cell["median_ms"] / base[cell["batch"]], 3)
        for cell in other
        if cell["batch"] in base
    }


def equal_outputs(outputs: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, float]:
    """Share of the tokens up to the first difference, for each pair of outputs."""
    names = sorted(outputs)
    return {f"{a} and {b}": _equal(outputs[a], outputs[b]) for a in names for b in names if a < b}


def _equal(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> float:
    equal = 0
    for a, b in zip(one, other, strict=True):
        equal += next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    return round(equal / max(1, sum(map(len, one))), 3)
