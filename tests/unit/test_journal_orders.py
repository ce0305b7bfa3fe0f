"""Standing orders and trials outlive the daemon, and what came of them verifies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from support.journals import Desk, rows_of, written
from support.small_fleet import steps_order
from trimtab.domain import Pin, StepRange, speculate
from trimtab.policies.registry import policy_factory
from trimtab.replay.journals.verify import verify
from trimtab.server.scribe import STANDING_EVERY_S
from trimtab.server.trials import Trials
from trimtab.session.events import Pinned, PolicySet, ShadowSet
from trimtab.session.orders import PinOrder, PolicyOrder, Selector
from trimtab.session.pins import Relative
from trimtab.store.entries import Kind

EVERYBODY, CHAT = Selector(), Selector(labels={"team": "chat"})
both_ends = pytest.mark.parametrize("dies", [False, True], ids=["ended", "killed"])


def stand(desk: Desk, selector: Selector, target: Any = Relative.ANY_PLAIN, seconds: float | None = None) -> None:
    """A standing pin."""
    now_ns = desk.clock.now_ns
    deadline_ns = None if seconds is None else now_ns + round(seconds * 1e9)
    desk.fleet.orders.add_pin(PinOrder("p1", selector, target, now_ns, deadline_ns, "latency", "kim"))
    desk.fleet.tick()


def pinned(desk: Desk, engine_id: str, **hello: Any) -> str | None:
    """What an engine that comes now is pinned to."""
    pin = desk.join(engine_id, **hello).session.pin
    return str(pin.pin.mode) if pin else None


def come_back(directory: Path, script: Any, **options: Any) -> list[str]:
    """The next run; what it logged."""
    with capture_logs() as logs:
        written(directory, script, **options)
    return [entry["event"] for entry in logs]


def standing(directory: Path) -> int:
    ((count,),) = rows_of(directory / "journal.db", "SELECT count(*) FROM entries WHERE kind = ?", (Kind.STANDING,))
    return int(count)


# -- standing orders -----------------------------------------------------------------------------


@both_ends
def test_a_pin_for_labels_holds_for_engines_that_come_after_a_restart(tmp_path: Path, dies: bool) -> None:
    written(tmp_path, lambda desk: stand(desk, CHAT), dies=dies)

    def second(desk: Desk) -> None:
        assert pinned(desk, "new", labels={"team": "chat"}) == "plain_warm"
        assert pinned(desk, "other", labels={"team": "code"}) is None

    come_back(tmp_path, second)


def test_a_pin_for_labels_is_over_when_its_time_is_although_the_daemon_was_away(tmp_path: Path) -> None:
    written(tmp_path, lambda desk: stand(desk, EVERYBODY, seconds=60))

    def second(desk: Desk) -> None:
        assert pinned(desk, "a") == "plain_warm"
        desk.clock.pass_s(45)
        desk.fleet.tick()
        assert desk.fleet.seats()[0].session.pin is None

    come_back(tmp_path, second, begins_at_s=20.0)
    come_back(tmp_path, lambda desk: pinned(desk, "b") and pytest.fail("it holds for ever"), begins_at_s=70.0)


@both_ends
def test_a_policy_for_all_is_that_of_engines_that_come_after_a_restart(tmp_path: Path, dies: bool) -> None:
    def first(desk: Desk) -> None:
        desk.join("a")
        Trials(desk.fleet).act(steps_order(1))
        desk.fleet.tick()

    def second(desk: Desk) -> None:
        for name in ("a", "b"):
            decision = desk.join(name).session.decision
            assert decision is not None
            assert decision.bands[0].mode == speculate(1)

    written(tmp_path, first, dies=dies)
    come_back(tmp_path, second)
    assert verify(tmp_path).ok


def test_an_order_that_this_trimtab_does_not_know_is_said_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first(desk: Desk) -> None:
        desk.fleet.orders.add_policy(steps_order(1, labels={"team": "chat"}))
        stand(desk, EVERYBODY)

    written(tmp_path, first)
    monkeypatch.delitem(__import__("trimtab.policies.registry", fromlist=["POLICIES"]).POLICIES, "fixed")

    def second(desk: Desk) -> None:
        assert desk.fleet.orders.policies == []
        assert pinned(desk, "a") == "plain_warm"

    assert "standing_order_dropped" in come_back(tmp_path, second)


def test_orders_are_written_when_they_change_and_now_and_then(tmp_path: Path) -> None:
    def script(desk: Desk) -> None:
        for _ in range(3):
            desk.fleet.tick()
        stand(desk, CHAT)
        desk.fleet.tick()
        desk.clock.pass_s(STANDING_EVERY_S)
        desk.fleet.tick()
        desk.fleet.orders.release(EVERYBODY, ())
        desk.fleet.tick()

    assert standing(written(tmp_path, script)) == 3
    come_back(tmp_path, lambda desk: pinned(desk, "a", labels={"team": "chat"}) and pytest.fail("it was released"))


# -- trials --------------------------------------------------------------------------------------


def on_trial(desk: Desk) -> None:
    """A canary on one engine of two, and some load."""
    seats = [desk.join("a"), desk.join("b")]
    order = PolicyOrder(EVERYBODY, "ucb", policy_factory("ucb", {"margin": "0.1"}), {"margin": "0.1"})
    Trials(desk.fleet).start_canary(order, 0.01)
    for _ in range(60):
        for seat in seats:
            desk.report(seat)


@both_ends
def test_a_canary_goes_on_where_it_was_and_can_be_withdrawn(tmp_path: Path, dies: bool) -> None:
    def second(desk: Desk) -> None:
        (trial,) = [seat for seat in desk.fleet.seats() if seat.canary]
        assert trial.session.policy_name == "ucb"
        assert trial.session.shadow is not None
        assert trial.session.shadow.name == "goodput"
        assert trial.session.shadow.steps > 500
        desk.join(str(trial.key))
        assert trial.session.shadow.policy is not None
        for _ in range(20):
            desk.report(trial)
        Trials(desk.fleet).withdraw(None)
        assert (trial.session.policy_name, trial.canary) == ("goodput", False)
        assert trial.session.state().shadow is None

    written(tmp_path, on_trial, dies=dies)
    come_back(tmp_path, second, begins_at_s=40.0)
    result = verify(tmp_path)
    assert result.ok, result.difference
    assert result.unverified_share == 0.0


@both_ends
def test_a_canary_can_be_promoted_before_its_engines_are_back(tmp_path: Path, dies: bool) -> None:
    def second(desk: Desk) -> None:
        Trials(desk.fleet).promote(None)
        assert {desk.join(name).session.policy_name for name in ("a", "b", "new")} == {"ucb"}

    written(tmp_path, on_trial, dies=dies)
    come_back(tmp_path, second, begins_at_s=40.0)
    assert verify(tmp_path).ok


@both_ends
def test_a_shadow_keeps_what_it_learned_and_counted(tmp_path: Path, dies: bool) -> None:
    seen: list[Any] = []

    def first(desk: Desk) -> None:
        seat = desk.join()
        desk.order(seat, ShadowSet("exp3", policy_factory("exp3")))
        for _ in range(60):
            desk.report(seat)
        desk.fleet.save()
        assert seat.session.shadow is not None
        seen.append(seat.session.shadow.state())

    def second(desk: Desk) -> None:
        (seat,) = desk.fleet.seats()
        assert seat.session.shadow is not None
        seen.append(seat.session.shadow.state())
        desk.join()
        seen.append(seat.session.shadow.state())
        for _ in range(60):
            desk.report(seat)

    written(tmp_path, first, dies=dies)
    come_back(tmp_path, second, begins_at_s=40.0)
    assert seen[0] == seen[1] == seen[2]
    assert verify(tmp_path).ok


@both_ends
def test_orders_that_came_after_the_last_state_are_not_lost(tmp_path: Path, dies: bool) -> None:
    def first(desk: Desk) -> None:
        seat = desk.join()
        desk.report(seat)
        desk.fleet.save()
        desk.order(seat, ShadowSet("ucb", policy_factory("ucb")))
        Trials(desk.fleet).promote(Selector(("a",)))
        desk.order(seat, ShadowSet("exp3", policy_factory("exp3")))
        desk.order(seat, Pinned(Pin("p9", speculate(1), "latency", "kim", StepRange(1, 2))))

    def second(desk: Desk) -> None:
        seat = desk.join()
        assert seat.session.policy_name == "ucb"
        assert seat.session.shadow is not None
        assert seat.session.shadow.name == "exp3"
        assert seat.session.pin is not None
        assert seat.session.pin.pin.range == StepRange(1, 2)
        for _ in range(60):
            desk.report(seat)
        assert all(entry.mode in StepRange(1, 2) for entry in seat.session.state().lease.table)  # type: ignore[union-attr]

    written(tmp_path, first, dies=dies)
    come_back(tmp_path, second)
    assert verify(tmp_path).ok


def test_a_verification_that_begins_in_the_middle_of_a_trial_under_a_range_agrees(tmp_path: Path) -> None:
    def script(desk: Desk) -> None:
        seat = desk.join()
        desk.order(seat, Pinned(Pin("p9", speculate(1), "latency", "kim", StepRange(1, 2))))
        desk.order(seat, ShadowSet("ucb", policy_factory("ucb")))
        for turn in range(160):
            desk.report(seat)
            if turn == 100:
                desk.order(seat, PolicySet("exp3", policy_factory("exp3")))

    written(tmp_path, script)
    rows_of(
        tmp_path / "journal.db",
        "DELETE FROM entries WHERE seq > 2"
        " AND seq < (SELECT min(seq) FROM entries WHERE kind = 'checkpoint' AND seq > 9)",
    )
    (verdict,) = verify(tmp_path).engines
    assert verdict.difference is None
    assert verdict.checkpoints > 1
