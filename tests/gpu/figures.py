"""What the rows of measured engines say: step times and catch-ups."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from paired import of_groups

Row = Mapping[str, str]
ALONE = "alone"
# Without speculation every row is a plain decode.
MODE_OF_ALONE = "plain_native"
DEPTHS = 8
FIRST_STEPS = 20


def step_times(windows: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Step times in ms for each batch size and mode, from the rows that ran in it within its windows.

    The first steps of a window are left out: they are not yet at the full batch, or not yet warm.
    """
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
        ][FIRST_STEPS:]
    return [_cell(batch, mode, cell) for (batch, mode), cell in sorted(cells.items()) if cell]


def _cell(batch: int, mode: str, rows: Sequence[Row]) -> dict[str, Any]:
    ms = sorted(int(row["step_ns"]) / 1e6 for row in rows)
    return {
        "batch": batch,
        "mode": mode,
        "median_ms": round(statistics.median(ms), 4),
        "mean_ms": round(statistics.fmean(ms), 4),
        "p10_ms": round(ms[len(ms) // 10], 4),
        "p90_ms": round(ms[len(ms) * 9 // 10], 4),
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


def over_alone(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median step times over those of the engines without speculation, by batch size and mode, with 95% intervals.

    Args:
        records: Of engine starts, each with its `step_times`.
    """
    medians: dict[tuple[int, str], list[float]] = defaultdict(list)
    for record in records:
        for cell in record["step_times"]:
            medians[cell["batch"], cell["mode"]].append(cell["median_ms"])
    return {
        f"batch {batch}, {mode}": {
            "over_alone": str(of_groups(ms, medians[batch, ALONE])), "ms": ms, "alone_ms": medians[batch, ALONE]
        }
        for (batch, mode), ms in sorted(medians.items())
        if mode != ALONE and (batch, ALONE) in medians
    }  # fmt: skip
