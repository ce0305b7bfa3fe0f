"""Cases of native plain: the price of the way back, draining stale requests, and what goes into the prefix cache."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.plain_worker import PlainHost, Request
from support.step_rows import depth_counts, step_row
from trimtab.domain import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, Mode, StepRow, speculate
from trimtab.policies.contract import PolicyContext
from trimtab.policies.goodput import GoodputPolicy
from trimtab.policies.profile import ProfilePoint, profile_of
from trimtab.policies.row_reader import RowReader
from trimtab.policies.switching import SwitchingCost
from trimtab_sglang.draft_gap import DraftGap, committed_len

CASES = Path(__file__).parents[1] / "data" / "cases"
REPORT_ROWS = 25


def lines(case: str, kind: str) -> list[dict[str, Any]]:
    """The lines of one kind."""
    return [
        line for line in map(json.loads, (CASES / f"{case}.jsonl").read_text().splitlines()) if line["kind"] == kind
    ]


# -- c03: plain leaves the draft cache of running requests behind --------------------------------


def plays(catches_up: bool) -> PlainHost:
    """The modes of c03 on the plugin; whoever does not catch up decodes cold."""
    host = PlainHost()
    wanted = "caught_up" if catches_up else "no_catch_up"
    for seen in lines("c03_stale_draft_kv", "obs"):
        if seen.get("variant", wanted) == wanted:
            plain = PLAIN_NATIVE if catches_up else PLAIN_COLD
            host.lease(speculate(seen["k"]) if seen["k"] else plain)
            host.decode()
    return host


def test_c03_native_plain_never_resumes_with_a_gap() -> None:
    host = plays(catches_up=True)
    resumed = [note for note in host.recorder.notes if note.behind and not note.missed_tokens]
    assert resumed == []
    assert host.native_plain.gap.stale_resumes == 0
    caught_up = sum(int(what.split()[-1]) for what in host.ran if what.startswith("catch up"))
    assert caught_up == host.ran.count("native") == 30


def test_c03_whoever_resumes_with_a_gap_is_counted() -> None:
    assert plays(catches_up=False).native_plain.gap.stale_resumes >= 1


# -- n01: what the way back costs ----------------------------------------------------------------


def rows_of_n01() -> Iterator[StepRow]:
    for seen in lines("n01_catch_up", "obs"):
        mode = speculate(seen["k"]) if seen["k"] else PLAIN_NATIVE
        yield step_row(
            mode,
            seen["bs"],
            step_ns=round(seen["ms"] * 1e6),
            depths=depth_counts(seen.get("acc", []), seen["k"]),
            fresh_requests=seen["bs"] if seen["k"] else 0,
            stale_requests=0 if seen["k"] else seen["bs"],
            missed_tokens=seen["missed"],
            caught_up_tokens=seen.get("caught_up", 0),
            catch_up_ns=round(seen.get("catch_up_ms", 0.0) * 1e6),
        )


def test_n01_the_price_of_leaving_native_plain_grows_with_what_the_draft_model_missed() -> None:
    modes = (PLAIN_NATIVE, PLAIN_WARM, speculate(3))
    reader, switching = RowReader(modes, (1,), None), SwitchingCost()
    rows = list(rows_of_n01())
    prices, native = [], []
    for first in range(0, len(rows), REPORT_ROWS):
        sums = reader.read(rows[first : first + REPORT_ROWS])
        switching.add_prices(sums.switch_ms)
        switching.add_catch_ups(sums.catch_ups)
        prices += sums.switch_ms
        native += [(t.rows, t.ratio) for key, t in sums.tallies.items() if key[1] == 0]
    found: dict[str, Callable[[dict[str, Any]], float]] = {
        "catch_up_ms_per_token": lambda _: switching.catch_up_ms(1.0),
        "switch_ms": lambda _: sum(prices) / len(prices),
        "leaving_ms": lambda line: switching.price_ms + switching.catch_up_ms(line["unread"]),
        "native_step_ms": lambda _: sum(ratio for _, ratio in native) / sum(n for n, _ in native),
    }
    for line in lines("n01_catch_up", "expect"):
        assert found[line["m"]](line) == pytest.approx(line["v"], abs=line["within"]), line


# -- n02: drain before drafting again ------------------------------------------------------------


def test_n02_the_policy_stays_in_plain_until_enough_stale_requests_have_ended() -> None:
    modes = (PLAIN_WARM, speculate(3))
    profile = profile_of([ProfilePoint(64, {PLAIN_WARM: 10.0, speculate(3): 13.0})])
    context = PolicyContext(modes, (1,), incumbent=PLAIN_WARM, initial_steps=3, profile=profile)
    policy = GoodputPolicy(context)
    policy.learn([n02_row(speculate(3), stale=0)] * REPORT_ROWS)
    for phase in lines("n02_drain", "phase"):
        ran = [n02_report(policy, phase["stale"]) for _ in range(phase["reports"])]
        if phase["may_draft"] is False:
            assert set(ran[1:]) == {PLAIN_WARM}, phase
        if phase["may_draft"] is True:
            assert ran[-1] == speculate(3), phase


def n02_report(policy: GoodputPolicy, stale: int) -> Mode:
    """One report under the policy's table; the mode that it ran."""
    (band,) = policy.choose().bands
    policy.learn([n02_row(band.mode, stale)] * REPORT_ROWS)
    return band.mode


def n02_row(mode: Mode, stale: int) -> StepRow:
    """Fresh requests accept four drafts of five at every position, stale ones none."""
    fresh = 8 - stale
    runs = [3, 3, 3, 3, 2, 2, 1, 0][:fresh]
    return step_row(
        mode,
        8,
        step_ns=13_000_000 if mode.steps else 10_000_000,
        depths=depth_counts(runs, mode.steps),
        fresh_requests=fresh,
        stale_requests=stale,
        stale=depth_counts([0] * stale, mode.steps),
    )


# -- n03: what goes into the prefix cache --------------------------------------------------------


@pytest.mark.parametrize("line", lines("n03_prefix_reuse", "release"), ids=lambda line: line["id"])
def test_n03_the_prefix_cache_gets_what_the_draft_model_has_read(line: dict[str, Any]) -> None:
    first_unread = math.inf if line["first_unread"] is None else line["first_unread"]
    gap, request = DraftGap(), Request(min(line["committed"], first_unread), 0)
    if line["first_unread"] is not None:
        (gap.lose if line.get("stale") else gap.miss)([request])
    if line.get("caught_up"):
        gap.caught_up([request])
    request.kv.kv_committed_len, request.kv.cache_protected_len = line["committed"], line["protected"]
    gap.release(request)
    assert committed_len(request) == line["want"]
