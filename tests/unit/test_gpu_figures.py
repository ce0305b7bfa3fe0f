"""What the measured rows of the GPU script are boiled down to."""

from __future__ import annotations

import figures


def row(at_ns: int, step_ms: float = 10.0, mode: str = "plain_native", batch: int = 8, **more: int) -> dict[str, str]:
    fields = {"graph": 1, "switched": 0, "accepted": 0, "missed_tokens": 0, "caught_up_tokens": 0, "catch_up_ns": 0}
    values = {"result_ns": at_ns, "step_ns": round(step_ms * 1e6), "mode": mode, "batch_size": batch, **fields, **more}
    return {name: str(value) for name, value in values.items()}


def test_a_step_counts_in_the_window_of_its_mode_and_batch_size_alone() -> None:
    first = [row(110 + i, 50.0) for i in range(figures.FIRST_STEPS)]
    rows = [
        *first, row(150, 10.0), row(160, 12.0), row(170, 30.0), row(250, 99.0), row(155, 99.0, mode="plain_warm"),
        row(156, 99.0, batch=7), row(157, 0.0),
    ]  # fmt: skip
    (cell,) = figures.step_times([{"batch": 8, "mode": "plain_native", "from_ns": 100, "to_ns": 200}], rows)
    assert (cell["median_ms"], cell["steps"], cell["graph_share"]) == (12.0, 3, 1.0)


def test_the_first_steps_of_every_window_are_left_out() -> None:
    rows = [row(start + i, 50.0 if i < figures.FIRST_STEPS else 10.0) for start in (100, 200) for i in range(30)]
    windows = [{"batch": 8, "mode": "", "from_ns": start, "to_ns": start + 90} for start in (100, 200)]
    (cell,) = figures.step_times(windows, rows)
    assert (cell["mode"], cell["mean_ms"], cell["steps"]) == ("alone", 10.0, 20)


def start(mode: str, batch: int, median_ms: float) -> dict[str, object]:
    return {"step_times": [{"batch": batch, "mode": mode, "median_ms": median_ms}]}


def test_the_engines_without_speculation_are_the_base_of_every_mode_at_their_batch_size() -> None:
    records = [start("alone", 8, 10.0), start("alone", 8, 10.0), start("plain_native", 8, 10.3)]
    found = figures.over_alone([*records, start("plain_native", 8, 10.3), start("plain_warm", 1, 5.0)])
    assert found == {
        "batch 8, plain_native": {
            "over_alone": "1.030 (1.030-1.030)", "ms": [10.3, 10.3], "alone_ms": [10.0, 10.0]
        }
    }  # fmt: skip


def test_catch_ups_are_told_apart_by_batch_size_and_unread_tokens() -> None:
    rows = [
        row(1, caught_up_tokens=8 * 9, catch_up_ns=2_000_000),
        row(2, caught_up_tokens=8 * 16, catch_up_ns=4_000_000),
    ]
    assert figures.catch_ups([*rows, row(3)]) == [{"batch": 8, "unread": 16, "median_ms": 3.0, "seen": 2}]
