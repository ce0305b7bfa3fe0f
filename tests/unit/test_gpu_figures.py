"""What the measured rows of the GPU script are boiled down to."""

from __future__ import annotations

import figures


def row(at_ns: int, step_ms: float = 10.0, mode: str = "plain_native", batch: int = 8, **more: int) -> dict[str, str]:
    fields = {"graph": 1, "switched": 0, "accepted": 0, "missed_tokens": 0, "caught_up_tokens": 0, "catch_up_ns": 0}
    values = {"result_ns": at_ns, "step_ns": round(step_ms * 1e6), "mode": mode, "batch_size": batch, **fields, **more}
    return {name: str(value) for name, value in values.items()}


def test_a_step_counts_in_the_window_of_its_mode_and_batch_size_alone() -> None:
    rows = [
        row(150, 10.0), row(160, 12.0), row(170, 30.0), row(250, 99.0), row(155, 99.0, mode="plain_warm"),
        row(156, 99.0, batch=7), row(157, 0.0),
    ]  # fmt: skip
    (cell,) = figures.step_times([{"batch": 8, "mode": "plain_native", "from_ns": 100, "to_ns": 200}], rows)
    assert (cell["median_ms"], cell["steps"], cell["graph_share"]) == (12.0, 3, 1.0)


def test_the_engine_without_speculation_is_the_base_of_every_mode_at_its_batch_size() -> None:
    windows = [{"batch": 8, "mode": "", "from_ns": 0, "to_ns": 100}]
    alone = figures.step_times(windows, [row(50, 10.0)])
    other = [
        {"batch": 8, "mode": "plain_native", "median_ms": 10.3},
        {"batch": 1, "mode": "plain_warm", "median_ms": 5},
    ]
    assert figures.over_alone(alone, other) == {"batch 8, plain_native": 1.03}


def test_catch_ups_are_told_apart_by_batch_size_and_unread_tokens() -> None:
    rows = [
        row(1, caught_up_tokens=8 * 9, catch_up_ns=2_000_000),
        row(2, caught_up_tokens=8 * 16, catch_up_ns=4_000_000),
    ]
    assert figures.catch_ups([*rows, row(3)]) == [{"batch": 8, "unread": 16, "median_ms": 3.0, "seen": 2}]


def test_outputs_are_equal_up_to_their_first_difference() -> None:
    outputs = {"alone": [[1, 2, 3, 4], [1, 2, 3, 4]], "plain_native": [[1, 2, 9, 4], [1, 2, 3, 4]]}
    assert figures.equal_outputs(outputs) == {"alone and plain_native": 0.75}
