"""Counts that engines are known to report wrongly (case c08), driven through the recorder's rows.

A row's time is the time since the result before it. So the course begins with an empty batch, and what the case
gives as the time of a step becomes the distance of its result; a time that is no number, which a clock cannot
give, is a gap.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.raw_rows import Request, launch, raw_row, row_maker
from trimtab_sglang.lease import Choice, speculate
from trimtab_sglang.recorder import RawRow
from trimtab_sglang.rows import Row

CASE = Path(__file__).parents[1] / "data" / "cases" / "c08_bad_accept_counts.jsonl"
LINES = [json.loads(line) for line in CASE.read_text().splitlines()]
EXPECTED = {line["m"]: line["v"] for line in LINES if line["kind"] == "expect"}
REJECTED = ("negative_count", "count_above_steps", "late_request", "duplicate_launch")


def raw_rows() -> Iterator[RawRow]:
    """The observations as decode results."""
    now_ms = 1000.0
    yield raw_row(launch(1), [], result_ms=now_ms)
    for seen in (line for line in LINES if line["kind"] == "obs"):
        ms = float(seen["ms"])
        now_ms += 0 if math.isnan(ms) else ms
        reqs = [Request(req["rid"]) for req in seen["reqs"]]
        ended = [made for made, req in zip(reqs, seen["reqs"], strict=True) if req.get("finished")]
        yield raw_row(
            launch(seen["i"] + 2, Choice(speculate(seen["k"]), 1, 0), gap=math.isnan(ms)),
            [req["acc"] for req in seen["reqs"]],
            reqs,
            now_ms,
            released=ended,
            draft_tokens=seen["k"] + 1,
        )


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The figures that the case asks for."""
    maker = row_maker(raw_rows())
    rows = list(maker.drain(100))
    drafting = [row for row in rows if row.mode.steps]
    plain = [row for row in rows if not row.mode.steps]
    accepted = sum(sum(row.accepted) for row in drafting)
    proposed = sum(row.mode.steps * row.fresh_requests for row in drafting)
    return {
        "crash": bool(maker.dropped["unreadable_row"]),
        "valid_req_samples": sum(row.fresh_requests for row in drafting),
        "accepted_sum": accepted,
        "proposed_sum": proposed,
        "strict_accept_rate": pytest.approx(accepted / proposed, abs=1e-6),
        "accept_rate_k0_steps": rate(plain),
        "rejected_samples_total": sum(maker.dropped[reason] for reason in REJECTED),
        "timing_samples_total": sum(row.step_ns >= 0 for row in drafting),
    }


def rate(rows: list[Row]) -> float | None:
    """Accepted over offered drafts; None where none were offered."""
    offered = sum(sum(row.offered) for row in rows)
    return sum(sum(row.accepted) for row in rows) / offered if offered else None


@pytest.mark.parametrize("metric", EXPECTED)
def test_the_figures_are_those_of_the_case(metric: str, found: dict[str, Any]) -> None:
    assert found[metric] == EXPECTED[metric]


def test_every_rejected_sample_has_its_reason() -> None:
    maker = row_maker(raw_rows())
    list(maker.drain(100))
    assert +maker.dropped == {
        "negative_count": 1, "count_above_steps": 1, "late_request": 1, "duplicate_launch": 1, "empty_batch": 2,
    }  # fmt: skip


def test_no_draft_is_accepted_more_often_than_it_was_offered() -> None:
    rows = list(row_maker(raw_rows()).drain(100))
    assert all(a <= o for row in rows for a, o in zip(row.accepted, row.offered, strict=True))
