"""What a session makes of reports and of engines that go and come back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.session_talk import MS, Talk
from support.step_rows import step_row
from trimtab.domain import InForce, Source, modes_of, speculate
from trimtab.session.engine_session import SessionSettings
from trimtab.session.events import Answered, Disconnected, SendLease
from trimtab.session.measured import MAX_ROWS, Measured, Window

ROWS = tuple(step_row(step=i, launch_id=i, result_ns=i * 10 * MS) for i in range(1, 4))


def connected() -> Talk:
    talk = Talk()
    talk.connect()
    return talk


# -- reports -------------------------------------------------------------------------------------


def test_rows_of_a_report_are_learnt_and_measured() -> None:
    talk = connected()
    talk.report(250, rows=ROWS, in_force=InForce(Source.LEASE, speculate(3), 1))
    assert talk.policies[0].learned == list(ROWS)
    assert talk.session.window.measure().rows == 3
    assert talk.session.in_force == InForce(Source.LEASE, speculate(3), 1)


def test_a_report_that_comes_twice_is_counted_and_changes_nothing() -> None:
    talk = connected()
    talk.report(250, rows=ROWS)
    for seq in (1, 0):
        talk.report(500, seq=seq, rows=ROWS)
    assert talk.session.refused == {"duplicate_report": 2}
    assert talk.policies[0].learned == list(ROWS)


def test_missing_reports_are_counted() -> None:
    talk = connected()
    talk.report(250)
    talk.report(500, seq=5)
    talk.report(750, seq=6)
    assert talk.session.refused == {"missing_report": 3}


def test_reports_count_from_one_on_every_stream() -> None:
    talk = connected()
    talk.report(250)
    talk.report(500)
    talk.at(600, Disconnected())
    talk.connect(700)
    talk.report(950)
    assert not talk.session.refused


NOTES = [
    (InForce(), []),
    (InForce(Source.LEASE, speculate(3), 1), [("engine_source_changed", "lease")]),
    (InForce(Source.PIN, speculate(3), 1, "p"), [("engine_source_changed", "pin")]),
    (InForce(Source.FUSE, speculate(3), fuse_reason="KeyError: 3"), [("engine_fuse_blown", "KeyError: 3")]),
]


@pytest.mark.parametrize(("in_force", "noted"), NOTES)
def test_a_change_of_who_decides_is_noted_once(in_force: InForce, noted: list[tuple[str, str]]) -> None:
    talk = connected()
    talk.notes.clear()
    talk.report(250, in_force=in_force)
    talk.report(500, in_force=in_force)
    assert [(n.event, n.fields.get("source") or n.fields.get("reason")) for n in talk.notes] == noted


# -- engines that come back ----------------------------------------------------------------------


def test_a_known_engine_that_comes_back_gets_its_lease_again_and_keeps_what_was_learnt() -> None:
    talk = connected()
    talk.report(250, rows=ROWS)
    talk.at(300, Disconnected("connection lost"))
    (sent,) = talk.connect(400, last_lease_version=1)
    assert isinstance(sent, SendLease)
    assert (sent.lease.version, sent.nonce) == (2, 2)
    assert len(talk.policies) == 1
    assert talk.session.window.measure().rows == 3
    assert talk.noted == ["engine_connected", "engine_disconnected", "engine_connected"]


def test_an_engine_that_restarted_gets_a_new_policy_and_an_empty_window() -> None:
    talk = connected()
    talk.report(250, rows=ROWS)
    talk.at(300, Disconnected())
    talk.connect(400, boot_id="boot-2")
    assert len(talk.policies) == 2
    assert talk.session.window.measure() == Measured()
    assert talk.policies[-1].learned == []
    assert {"engine": "e1", "restarted": True} in [note.fields for note in talk.notes]


def test_an_engine_that_offers_other_modes_is_decided_for_afresh() -> None:
    talk = connected()
    talk.at(300, Disconnected())
    talk.connect(400, modes=modes_of([0, 5]))
    assert [policy.context.modes for policy in talk.policies] == [modes_of([0, 1, 3]), modes_of([0, 5])]


def test_versions_go_on_from_the_highest_that_either_side_knows() -> None:
    talk = connected()
    talk.at(300, Disconnected())
    (sent,) = talk.connect(400, last_lease_version=70)
    assert isinstance(sent, SendLease)
    assert sent.lease.version == 71
    talk.at(500, Disconnected())
    (sent,) = talk.connect(600, last_lease_version=3)
    assert isinstance(sent, SendLease)
    assert sent.lease.version == 72


# -- stalls --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age_s", "running", "later_s", "stalled"),
    [
        (0.1, 4, 0.0, False),
        (9.9, 4, 0.0, False),
        (10.1, 4, 0.0, True),
        (9.0, 4, 1.5, True),
        (60.0, 0, 0.0, False),
        (None, 4, 0.0, False),
    ],
)
def test_an_engine_stalls_when_requests_run_and_no_step_ends(
    age_s: float | None, running: int, later_s: float, stalled: bool
) -> None:
    talk = connected()
    assert not talk.session.stalled(0)
    age_ns = None if age_s is None else round(age_s * 1e9)
    talk.report(1000, last_step_age_ns=age_ns, running_requests=running)
    assert talk.session.stalled(round((1 + later_s) * 1e9)) == stalled


def test_answers_without_reports_do_not_hide_a_stall() -> None:
    talk = connected()
    talk.report(1000, last_step_age_ns=0, running_requests=4)
    talk.at(12_000, Answered(1, 1, accepted=True))
    assert talk.session.stalled(12_000 * MS)


def test_an_engine_that_is_away_is_not_stalled() -> None:
    talk = connected()
    talk.report(1000, last_step_age_ns=60_000 * MS, running_requests=4)
    talk.at(1001, Disconnected())
    assert not talk.session.stalled(2000 * MS)


def test_when_a_stall_is_one_is_a_setting() -> None:
    talk = Talk(SessionSettings(stall_after_s=0.5))
    talk.connect()
    talk.report(1000, last_step_age_ns=600 * MS, running_requests=1)
    assert talk.session.stalled(1000 * MS)


# -- the window ----------------------------------------------------------------------------------


def test_an_empty_window_measures_nothing() -> None:
    assert Window().measure() == Measured(0.0, None, None, 0.0, 0)


def test_figures_of_a_window() -> None:
    window = Window()
    row = step_row(speculate(3), 4, accepted=6, step_ns=8 * MS, wall_gap_ns=10 * MS, result_ns=1)
    gap = replace(row, step_ns=None, wall_gap_ns=30 * MS, batch_size=2, emitted_tokens=2)
    plain = step_row(modes_of([0])[0], 4, accepted=0, step_ns=4 * MS, result_ns=1)
    window.add([row, gap, plain], 1)
    found = window.measure()
    assert found.goodput_tps == pytest.approx((10 + 2 + 4) / 0.044)
    assert found.accepted_drafts == pytest.approx(12 / 8)
    assert found.step_ms == pytest.approx((8 + 4) / 2)
    assert found.batch_size == pytest.approx(10 / 3)
    assert found.rows == 3


def test_rows_leave_the_window_by_the_engines_clock() -> None:
    window = Window(length_ns=100 * MS)
    window.add([step_row(result_ns=t * MS) for t in (0, 50, 100)], 100 * MS)
    assert window.measure().rows == 3
    window.add([], 151 * MS)
    assert window.measure().rows == 1
    window.add([], 1000 * MS)
    assert window.measure() == Measured()


def test_rows_with_a_wrong_clock_do_not_stay_for_ever() -> None:
    window = Window()
    window.add([step_row(result_ns=10**18)], 1)
    for _ in range(2):
        window.add([step_row(result_ns=1) for _ in range(MAX_ROWS)], 1)
    assert window.measure().rows == MAX_ROWS
