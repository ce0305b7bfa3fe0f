"""The goodput policy beside native plain: cheap to be in, and the dearer to leave the longer it lasted."""

from __future__ import annotations

import pytest

from support.step_rows import depth_counts, step_row
from trimtab.domain import PLAIN_NATIVE, PLAIN_WARM, Mode, StepRow, speculate
from trimtab.policies.contract import PolicyContext
from trimtab.policies.goodput import GoodputPolicy
from trimtab.policies.profile import ProfilePoint, profile_of

MS = {PLAIN_NATIVE: 10.0, PLAIN_WARM: 12.0, speculate(3): 15.0}
PROFILE = profile_of([ProfilePoint(64, MS)])
REPORT_ROWS = 25


def policy() -> GoodputPolicy:
    context = PolicyContext(tuple(MS), (1,), incumbent=PLAIN_NATIVE, initial_steps=3, profile=PROFILE)
    return GoodputPolicy(context)


def report(mode: Mode, accepted: int, unread: float = 0.0, catch_up_ms: float = 0.0, tokens: int = 0) -> list[StepRow]:
    """Rows of 8 requests that accept so many drafts; the first one follows a catch-up, if there was one."""
    native = mode == PLAIN_NATIVE
    return [
        step_row(
            mode,
            8,
            step_ns=round((MS[mode] + (catch_up_ms if i == 0 else 0.0)) * 1e6),
            depths=depth_counts([accepted] * 8 if mode.steps else [], mode.steps),
            fresh_requests=0 if native else 8,
            stale_requests=8 if native else 0,
            missed_tokens=round(8 * unread),
            caught_up_tokens=8 * tokens if i == 0 else 0,
            catch_up_ns=round(catch_up_ms * 1e6) if native or (i == 0 and tokens) else None,
            step=i + 1,
        )
        for i in range(REPORT_ROWS)
    ]


def reports_until_it_leaves(unread: float, ms_a_token: float) -> int:
    """Reports in native plain until the policy drafts, once acceptance has turned out to be good."""
    subject = policy()
    subject.learn(report(speculate(3), accepted=3, catch_up_ms=64 * ms_a_token, tokens=64))
    subject._planner.table[0] = 0
    for n in range(200):
        (band,) = subject.choose().bands
        if band.mode.steps and band.probability > 0.5:
            return n
        subject.learn(report(PLAIN_NATIVE, 0, unread))
    return 200


def test_of_two_plain_modes_it_takes_the_cheaper_one_though_its_draft_model_falls_behind() -> None:
    subject = policy()
    for _ in range(6):
        (band,) = subject.choose().bands
        subject.learn(report(band.mode, accepted=0))
    assert subject.choose().bands[0].mode == PLAIN_NATIVE


def test_it_leaves_later_the_more_the_draft_model_has_to_read_first() -> None:
    soon, later = (reports_until_it_leaves(unread, ms_a_token=40.0) for unread in (0.0, 60.0))
    assert soon < later < 200


def test_where_catching_up_costs_little_it_makes_no_difference() -> None:
    assert reports_until_it_leaves(60.0, ms_a_token=0.01) == reports_until_it_leaves(0.0, ms_a_token=0.01)


@pytest.mark.parametrize("reports", [1, 7])
def test_what_a_catch_up_costs_survives_a_snapshot(reports: int) -> None:
    subject, again = policy(), policy()
    for _ in range(reports):
        subject.learn(report(speculate(3), 3, catch_up_ms=32.0, tokens=64))
    again.restore(subject.snapshot())
    assert again._planner._switching.catch_up_ms(10) == subject._planner._switching.catch_up_ms(10) > 0.5
