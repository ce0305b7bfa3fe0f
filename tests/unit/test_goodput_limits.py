from __future__ import annotations

import math

import numpy as np
import pytest

from support.step_rows import step_row
from trimtab.domain import StepRow, modes_of
from trimtab.policies.limits import Limits
from trimtab.policies.row_reader import RowReader

MODES = modes_of([0, 1, 3])
LOG_MS = np.log(np.array([[10.0, 12.0, 16.0], [20.0, 30.0, 60.0]]))
ACCEPTED = np.array([0.0, 0.6, 1.2])


def allowed(limits: Limits, only_plain: bool = False) -> list[list[bool]]:
    mask: list[list[bool]] = limits.allowed(LOG_MS, ACCEPTED, only_plain).tolist()
    return mask


def fed(limits: Limits, *rows: StepRow) -> Limits:
    limits.learn(RowReader(MODES, (1,), None).read(rows))
    return limits


@pytest.mark.parametrize(
    ("step_ms_p95", "token_ms", "expected"),
    [
        (None, None, [[True, True, True], [True, True, True]]),
        (15.0, None, [[True, True, False], [True, False, False]]),
        (5.0, None, [[True, False, False], [True, False, False]]),
        (None, 8.0, [[False, True, True], [False, True, False]]),
        (15.0, 8.0, [[False, True, False], [True, False, False]]),
    ],
)
def test_modes_that_break_a_latency_limit_are_out_and_the_least_bad_stays(
    step_ms_p95: float | None, token_ms: float | None, expected: list[list[bool]]
) -> None:
    assert allowed(Limits(MODES, step_ms_p95, token_ms)) == expected


def test_step_times_that_scatter_reach_the_limit_earlier() -> None:
    limits = Limits(MODES, 15.0, None)
    jitter = [step_row(MODES[1], step_ns=ns) for ns in (5_000_000, 25_000_000) * 10]
    for _ in range(40):
        fed(limits, *jitter)
    assert allowed(limits)[0] == [True, False, False]


def test_nothing_is_tried_close_to_a_limit() -> None:
    limits = Limits(MODES, 12.0, None)
    assert limits.in_danger(LOG_MS, ACCEPTED, 0, 0)
    assert not Limits(MODES, 13.0, None).in_danger(LOG_MS, ACCEPTED, 0, 0)
    assert not Limits(MODES, None, None).in_danger(LOG_MS, ACCEPTED, 1, 2)
    assert math.isclose(math.exp(LOG_MS[0, 0]), 10.0)


@pytest.mark.parametrize(
    ("row", "widest"),
    [
        (step_row(MODES[1], kv_used_tokens=950), 1),
        (step_row(MODES[1], kv_used_tokens=800), 3),
        (step_row(MODES[1], retracted_requests=1), 1),
    ],
)
def test_when_the_kv_cache_runs_out_the_drafts_are_few(row: StepRow, widest: int) -> None:
    limits = fed(Limits(MODES, None, None, kv_capacity_tokens=1_000), row, row)
    assert [MODES[m].steps for m in range(3) if allowed(limits)[0][m]][-1] == widest


def test_a_closed_guard_leaves_plain_where_there_is_plain() -> None:
    assert allowed(Limits(MODES, None, None), only_plain=True) == [[True, False, False]] * 2
    no_plain = Limits(modes_of([1, 3, 5]), None, None)
    assert no_plain.allowed(LOG_MS, ACCEPTED, True).all()
