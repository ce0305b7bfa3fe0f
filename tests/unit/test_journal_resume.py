"""A daemon that comes back, in good order or not, goes on where it was."""

from __future__ import annotations

import time
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from support.journals import TODAY_NS, Desk, S, rows_of, written
from trimtab.domain import PLAIN_WARM, CostKey, Pin, modes_of, speculate
from trimtab.policies.profile import ProfilePoint, profile_of
from trimtab.policies.registry import policy_factory
from trimtab.replay.journals.verify import verify
from trimtab.server.audit import AuditEntry
from trimtab.server.scribe import CHECKPOINTS_AT_A_TIME
from trimtab.server.seat import Seat
from trimtab.session.events import Pinned, PolicySet, Unpinned
from trimtab.session.profiles import KeyedProfile
from trimtab.session.state import PolicyChoice, SessionState
from trimtab.store.entries import Kind
from trimtab.store.reading import Journal
from trimtabpb.v1 import control_pb2 as pb

PIN = Pin("p1", PLAIN_WARM, "latency", "kim")
ORDERED = AuditEntry(TODAY_NS, "unix", "unix:", "kim@host", "Pin", {}, "OK", orders=True, engines=("a",))
both_ends = pytest.mark.parametrize("dies", [False, True], ids=["ended", "killed"])


def taught(desk: Desk, seconds: float = 15.0) -> Seat:
    """An engine that has reported for a while."""
    seat = desk.join()
    for _ in range(round(seconds * 4)):
        desk.report(seat)
    return seat


def come_back(directory: Path, script: Any, **options: Any) -> list[str]:
    """The next run; what it logged."""
    with capture_logs() as logs:
        written(directory, script, **options)
    return [entry["event"] for entry in logs]


def states(directory: Path, kind: Kind = Kind.CHECKPOINT) -> int:
    with Journal(directory) as journal:
        return sum(1 for _ in journal.entries(kinds={kind}))


# -- what is kept --------------------------------------------------------------------------------


def test_after_a_stop_in_good_order_everything_is_as_it_was(tmp_path: Path) -> None:
    seen: list[SessionState] = []

    def first(desk: Desk) -> None:
        seat = taught(desk)
        desk.fleet.leave(seat, "gone")
        seen.append(seat.session.state())

    def second(desk: Desk) -> None:
        (seat,) = desk.fleet.seats()
        seen.append(seat.session.state())
        desk.join()
        seen.append(seat.session.state())

    written(tmp_path, first)
    logged = come_back(tmp_path, second, begins_at_s=20.0)

    before, after, there = seen
    assert after.learned == before.learned == there.learned
    assert (after.version, after.decisions, after.refused) == (before.version, before.decisions, before.refused)
    assert "learned_dropped" not in logged
    assert verify(tmp_path).ok
    assert verify(tmp_path).lost == 0


def test_a_daemon_that_was_killed_goes_on_from_its_last_checkpoint_and_above_every_version_it_used(
    tmp_path: Path,
) -> None:
    used: list[int] = []

    def first(desk: Desk) -> None:
        seat = taught(desk, 25.0)
        used.append(seat.session.state().version)

    def second(desk: Desk) -> None:
        (seat,) = desk.fleet.seats()
        assert seat.session.state().learned is not None
        desk.join(boot_id="boot-2")
        assert seat.session.state().version > used[0]

    written(tmp_path, first, dies=True)
    come_back(tmp_path, second, begins_at_s=30.0)
    result = verify(tmp_path)
    assert (result.ok, result.lost, result.unverified_share) == (True, 1, 0.0)


@both_ends
def test_orders_outlive_the_daemon_however_it_ends(tmp_path: Path, dies: bool) -> None:
    def first(desk: Desk) -> None:
        for name in ("pinned", "released", "ordered"):
            desk.join(name)
        pinned, released, ordered = (desk.fleet.seats()[i] for i in (1, 2, 0))
        desk.clock.pass_s(1.0)
        desk.order(pinned, Pinned(PIN, 600.0))
        desk.order(released, Pinned(PIN))
        desk.order(released, Unpinned())
        desk.order(ordered, PolicySet("fixed", policy_factory("fixed", {"steps": "1"}), {"steps": "1"}))

    def second(desk: Desk) -> None:
        found = {str(seat.key): seat for seat in desk.fleet.seats()}
        assert (found["pinned"].session.pin and found["pinned"].session.pin.pin) == PIN
        assert found["released"].session.pin is None
        assert found["ordered"].session.policy_name == "fixed"
        sent = desk.join("pinned").session.lease
        assert sent is not None
        assert sent.pin == PIN
        sent = desk.join("ordered").session.lease
        assert sent is not None
        assert sent.table[0].mode == speculate(1)

    written(tmp_path, first, dies=dies)
    come_back(tmp_path, second, begins_at_s=10.0)
    assert verify(tmp_path).ok


@both_ends
def test_orders_outlive_a_second_restart_as_well_with_the_engine_away(tmp_path: Path, dies: bool) -> None:
    def first(desk: Desk) -> None:
        desk.order(desk.join(), Pinned(PIN))

    def later(desk: Desk) -> None:
        assert desk.fleet.seats()[0].session.pin is not None

    written(tmp_path, first, dies=dies)
    for run in range(3):
        come_back(tmp_path, later, dies=dies, begins_at_s=10.0 * run + 10)
    assert verify(tmp_path).ok


def test_a_pin_counts_the_time_that_the_machine_was_down(tmp_path: Path) -> None:
    def first(desk: Desk) -> None:
        desk.order(desk.join(), Pinned(PIN, 600.0))

    def second(desk: Desk) -> None:
        (seat,) = desk.fleet.seats()
        pin = seat.session.pin
        assert pin is not None
        assert pin.deadline_ns is not None
        seen.append(pin.deadline_ns)

    seen: list[int] = []
    written(tmp_path, first)
    # Another boot of the machine, five minutes of wall time ago; the monotonic clock began again.
    path = tmp_path / "journal.db"
    rows_of(path, "UPDATE runs SET boot_id = 'another'")
    rows_of(path, "UPDATE entries SET wall_ns = ?", (time.time_ns() - 300 * S,))
    come_back(tmp_path, second)

    left_s = (seen[0] - time.monotonic_ns()) / 1e9
    assert left_s == pytest.approx(600 - 300, abs=20)


def test_an_engine_that_nobody_has_seen_for_too_long_is_forgotten(tmp_path: Path) -> None:
    written(tmp_path, lambda desk: desk.order(desk.join(), Pinned(PIN)))
    rows_of(tmp_path / "journal.db", "UPDATE entries SET wall_ns = ?", (TODAY_NS - 15 * 86_400 * S,))
    come_back(tmp_path, lambda desk: desk.fleet.seats() == [] or pytest.fail("it is there"))


def test_with_more_engines_than_seats_the_pinned_and_the_newest_are_seated(tmp_path: Path) -> None:
    def first(desk: Desk) -> None:
        for name in ("pinned", "old", "young"):
            desk.clock.pass_s(1.0)
            seat = desk.join(name)
            if name == "pinned":
                desk.order(seat, Pinned(PIN))

    def second(desk: Desk) -> None:
        seen.extend(str(seat.key) for seat in desk.fleet.seats())

    def narrow(desk: Desk) -> None:
        assert len(desk.fleet.seats()) == 3
        desk.fleet._seats.clear()
        desk.fleet._max_engines = 2
        desk.resume()
        second(desk)

    seen: list[str] = []
    written(tmp_path, first)
    come_back(tmp_path, narrow, begins_at_s=10.0)
    assert seen == ["pinned", "young"]


# -- what no longer fits -------------------------------------------------------------------------


def test_a_state_that_cannot_be_read_is_said_and_the_others_go_on(tmp_path: Path) -> None:
    def first(desk: Desk) -> None:
        for name in "abc":
            desk.join(name)

    written(tmp_path, first)
    path = tmp_path / "journal.db"
    kept = "UPDATE entries SET payload = ?, packed = 0 WHERE engine = ? AND kind = 'checkpoint'"
    rows_of(path, kept, (b"{}", "a"))
    ((packed,),) = rows_of(path, "SELECT payload FROM entries WHERE engine = 'c' AND kind = 'checkpoint'")
    content = msgspec.json.decode(zlib.decompress(packed))
    rows_of(path, kept, (msgspec.json.encode({**content, "hello": "/////w=="}), "c"))
    seen: list[str] = []
    logged = come_back(tmp_path, lambda desk: seen.extend(str(seat.key) for seat in desk.fleet.seats()))

    assert seen == ["b"]
    assert logged.count("checkpoint_dropped") == 2


def test_other_settings_of_the_policy_are_followed_and_a_pin_stays(tmp_path: Path) -> None:
    def first(desk: Desk) -> None:
        desk.order(taught(desk), Pinned(PIN))

    def second(desk: Desk) -> None:
        (seat,) = desk.fleet.seats()
        desk.join()
        state = seat.session.state()
        assert state.policy == PolicyChoice("goodput", {"random_share": 0.05})
        assert state.pin is not None

    written(tmp_path, first)
    logged = come_back(tmp_path, second, parameters={"random_share": 0.05}, begins_at_s=20.0)
    assert "learned_dropped" in logged
    assert verify(tmp_path).ok


def profile(ms: float) -> KeyedProfile:
    points = [ProfilePoint(8, {mode: ms + mode.steps for mode in modes_of([0, 1, 3])})]
    return KeyedProfile("h200.json", CostKey(model="/models/8b", device_name="NVIDIA H200"), profile_of(points))


ABOUT = pb.Speculation(model="/models/8b", device_name="NVIDIA H200", initial_steps=3)


def with_profile(desk: Desk) -> Seat:
    seat = desk.join(speculation=ABOUT)
    for _ in range(50):
        desk.report(seat)
    return seat


def test_the_profile_that_was_used_is_in_the_journal_and_learning_goes_on_with_it(tmp_path: Path) -> None:
    def second(desk: Desk) -> None:
        (seat,) = desk.fleet.seats()
        before = seat.session.state().learned
        with_profile(desk)
        assert seat.session.profile.name == "h200.json"
        assert before is not None

    written(tmp_path, with_profile, profiles=(profile(5.0 + 1 / 3),))
    logged = come_back(tmp_path, second, profiles=(profile(5.0 + 1 / 3),), begins_at_s=20.0)

    assert not {"profile_used", "learned_dropped"} & set(logged)
    assert verify(tmp_path).ok
    with Journal(tmp_path) as journal:
        ((kept_id,),) = rows_of(tmp_path / "journal.db", "SELECT id FROM profiles")
        assert journal.profile(kept_id) == profile(5.0 + 1 / 3)


def test_with_another_profile_learning_begins_afresh(tmp_path: Path) -> None:
    written(tmp_path, with_profile, profiles=(profile(5.0),))
    logged = come_back(tmp_path, with_profile, profiles=(profile(6.0),), begins_at_s=20.0)

    assert "profile_used" in logged
    result = verify(tmp_path)
    assert (result.ok, result.unverified_share) == (True, 0.0)
    assert len(rows_of(tmp_path / "journal.db", "SELECT id FROM profiles")) == 2


# -- checkpoints ---------------------------------------------------------------------------------


def test_a_new_engine_has_a_state_in_the_journal_with_its_first_word(tmp_path: Path) -> None:
    written(tmp_path, lambda desk: desk.join(), dies=True)
    with Journal(tmp_path) as journal:
        kinds = [str(entry.kind) for entry in journal.entries("a")]
    assert kinds == ["session", "hello", "note", "lease", "decision", "checkpoint"]


def test_states_are_written_every_ten_seconds_in_which_something_happened(tmp_path: Path) -> None:
    def script(desk: Desk) -> None:
        seat = taught(desk, 35.0)
        desk.fleet.leave(seat, "gone")
        for _ in range(100):
            desk.clock.pass_s(1.0)
            desk.fleet.tick()

    written(tmp_path, script)
    # With the first word, after 10, 20 and 30 s, and once more after it left.
    assert states(tmp_path) == 5


def test_engines_that_came_all_at_once_have_their_states_written_one_after_the_other(tmp_path: Path) -> None:
    many = 3 * CHECKPOINTS_AT_A_TIME

    async def script(desk: Desk) -> None:
        for i in range(many):
            desk.join(f"e{i}")
        assert await desk.written() == ""
        for turn in range(1, 5):
            desk.clock.pass_s(10.0 if turn == 1 else 0.125)
            desk.fleet.tick()
            assert await desk.written() == ""
            assert states(tmp_path) == many + min(many, turn * CHECKPOINTS_AT_A_TIME)

    written(tmp_path, script)


def test_a_journal_that_somebody_took_away_gets_every_state_anew(tmp_path: Path) -> None:
    async def script(desk: Desk) -> None:
        desk.order(desk.join("a"), Pinned(PIN))
        seat = desk.join("b")
        assert await desk.written() == ""
        (tmp_path / "journal.db").unlink()
        desk.report(seat)
        assert await desk.written() == ""
        desk.clock.pass_s(2.0)
        desk.fleet.tick()
        assert await desk.written() == ""

    written(tmp_path, script, dies=False)
    with Journal(tmp_path) as journal:
        assert journal.engines() == ["a", "b"]
    come_back(tmp_path, lambda desk: desk.fleet.seats()[0].session.pin or pytest.fail("the pin is gone"))
    assert verify(tmp_path).ok


def test_an_order_that_there_was_no_room_for_is_in_the_next_state(tmp_path: Path) -> None:
    async def script(desk: Desk) -> None:
        seat = desk.join()
        assert await desk.written() == ""
        before = desk.fleet.left_out
        desk.journal.writer._queue_bytes = 0
        desk.order(seat, Pinned(PIN))
        desk.journal.writer._queue_bytes = 300
        desk.fleet.note_order(ORDERED)
        assert await desk.fleet.settled(before) == "its queue is full"
        desk.journal.writer._queue_bytes = 1 << 20
        desk.clock.pass_s(1.5)
        desk.fleet.tick()
        assert await desk.written() == ""

    written(tmp_path, script, dies=True)
    come_back(tmp_path, lambda desk: desk.fleet.seats()[0].session.pin or pytest.fail("the pin is gone"))
    result = verify(tmp_path)
    assert result.ok
    assert result.lost >= 2


def test_a_policy_that_cannot_be_put_into_words_steers_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(desk: Desk) -> None:
        seat = desk.join()
        with monkeypatch.context() as broken:
            broken.setattr("trimtab.policies.goodput.GoodputPolicy.snapshot", lambda self: {"x": object()})
            desk.clock.pass_s(11.0)
            desk.report(seat)
        assert seat.leases > 1
        assert desk.journal.writer.figures.dropped == {"unwritable": 1}

    written(tmp_path, script)
    assert verify(tmp_path).ok
