"""A session that goes on from a state says what the old one would have said."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.session_talk import MS, engine
from support.step_rows import MadeUpEngine
from trimtab.domain import PLAIN_WARM, CostKey, EngineInfo, InForce, Mode, Pin, Report, modes_of, speculate
from trimtab.policies.contract import Decision
from trimtab.policies.registry import POLICIES, policy_factory
from trimtab.session.engine_session import EngineSession
from trimtab.session.events import (
    Answered,
    Connected,
    Disconnected,
    Effect,
    Event,
    Note,
    Pinned,
    PolicySet,
    Reported,
    Resumed,
    SendLease,
    ShuttingDown,
    Ticked,
    Unpinned,
)
from trimtab.session.state import PolicyChoice, SessionState

PIN = Pin("p1", PLAIN_WARM, "latency", "kim")
INFO = engine(modes=modes_of([0, 1, 3, 5]), graph_batch_sizes=(1, 2, 4, 8, 16, 32, 64), max_running_requests=64)


def session(policy: str = "goodput", **parameters: Any) -> EngineSession:
    return EngineSession(policy, policy_factory(policy, parameters), parameters=parameters)


def kept(state: SessionState) -> SessionState:
    """The state as a file gives it back."""
    return msgspec.json.decode(msgspec.json.encode(state), type=SessionState)


def restarted(old: EngineSession, new: EngineSession, now_ms: int = 0, **changes: Any) -> list[Effect]:
    """A new run of the controller takes the old one's session over."""
    return new.step(Resumed(kept(old.state()).after_restart(**changes), old.profile), now_ms * MS)


def taught(policy: str = "goodput", **info: Any) -> EngineSession:
    """A session that has seen an engine for two seconds."""
    old = session(policy)
    old.step(Connected(replace(INFO, **info)), 0)
    world = MadeUpEngine(3)
    for seq in range(1, 9):
        old.step(report(seq, world, old.decision), seq * 250 * MS)
    return old


def report(seq: int, world: MadeUpEngine, decision: Decision | None) -> Reported:
    rows = world.report(partial(mode_at, decision))
    return Reported(Report(seq, rows[-1].result_ns, tuple(rows), InForce(mode=rows[-1].mode)))


def mode_at(decision: Decision | None, batch_size: int) -> Mode:
    if decision is None:
        return speculate(3)
    return next(e.mode for e in reversed(decision.table) if e.min_batch_size <= batch_size)


def leases(effects: list[Effect]) -> list[SendLease]:
    return [effect for effect in effects if isinstance(effect, SendLease)]


def notes(effects: list[Effect]) -> dict[str, Any]:
    return {effect.event: effect.fields for effect in effects if isinstance(effect, Note)}


# -- in the middle of a run ----------------------------------------------------------------------

EVENTS: dict[str, Event] = {
    "connect": Connected(INFO),
    "restart": Connected(replace(INFO, boot_id="boot-2", in_force=InForce(mode=speculate(1)))),
    "other weights": Connected(replace(INFO, cost_key=CostKey(weight_version="w2"))),
    "observe": Connected(replace(INFO, boot_id="boot-3", modes=(), acts=False)),
    "leave": Disconnected("gone"),
    "accept": Answered(1, 1, accepted=True),
    "refuse": Answered(2, 2, accepted=False, refusal="no_state"),
    "tick": Ticked(),
    "pin": Pinned(PIN, 3.0),
    "pin for good": Pinned(replace(PIN, id="p2", mode=speculate(1))),
    "unpin": Unpinned(),
    "fixed": PolicySet("fixed", policy_factory("fixed", {"steps": "1"}), {"steps": "1"}),
    "ucb": PolicySet("ucb", policy_factory("ucb")),
    "impossible": PolicySet("fixed", policy_factory("fixed", {"steps": "4"}), {"steps": "4"}),
    "stop": ShuttingDown(),
}
NAMES = [*EVENTS, "report", "report", "report", "controller restarts"]


class Script:
    """Events by name, a quarter of a second apart; the reports are those of one made-up engine."""

    def __init__(self, seed: int = 1) -> None:
        self._world = MadeUpEngine(seed)
        self._reports: dict[int, Reported] = {}
        self._seq = 0

    def event(self, at: int, name: str) -> Event | None:
        if name != "report":
            return EVENTS.get(name)
        if at not in self._reports:
            self._seq += 1
            self._reports[at] = report(self._seq, self._world, None)
        return self._reports[at]


def stepped(old: EngineSession, event: Event | None, at_ns: int) -> tuple[EngineSession, list[Effect]]:
    """The session after the event, or the one that takes over where the controller restarts."""
    if event is None:
        new = session(old.configured.name)
        return new, restarted(old, new, at_ns // MS)
    if isinstance(event, Reported | Answered) and not old.connected:
        return old, []
    return old, old.step(event, at_ns)


@settings(max_examples=60)
@given(
    policy=st.sampled_from(["goodput", "ucb", "exp3", "sglang-ema", "table"]),
    names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=30),
    cut=st.integers(0, 29),
)
def test_a_session_that_resumes_at_any_moment_goes_on_as_the_old_one_would(
    policy: str, names: list[str], cut: int
) -> None:
    old, script = session(policy), Script()
    timed = [(250 * i * MS, script.event(i, name)) for i, name in enumerate(names)]
    for at_ns, event in timed[:cut]:
        old, _ = stepped(old, event, at_ns)
    new = session(policy)
    new.step(Resumed(kept(old.state()), old.profile), 0)

    assert new.state() == old.state()
    for at_ns, event in timed[cut:]:
        (new, said), (old, would_say) = stepped(new, event, at_ns), stepped(old, event, at_ns)
        assert said == would_say
    assert kept(new.state()) == kept(old.state())


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_what_a_policy_learned_survives_the_way_through_a_file(policy: str) -> None:
    old, new = taught(policy), session(policy)
    new.step(Resumed(kept(old.state()), old.profile), 0)

    assert new.state() == old.state()
    assert new.decision == old.decision


# -- after a restart of the controller -----------------------------------------------------------


def test_an_engine_that_did_not_restart_is_decided_for_as_before() -> None:
    old, new = taught(), session()
    assert restarted(old, new) == []
    assert not new.connected

    effects = new.step(Connected(INFO), 3000 * MS)
    (sent,) = leases(effects)
    assert sent.lease.table == old.decision.table if old.decision else False
    assert new.state().learned == old.state().learned
    assert "learned_dropped" not in notes(effects)


def test_an_engine_that_restarted_meanwhile_keeps_what_steps_cost() -> None:
    old, new = taught(), session()
    restarted(old, new)
    effects = new.step(Connected(replace(INFO, boot_id="boot-2")), 3000 * MS)

    assert notes(effects)["engine_connected"]["restarted"]
    assert notes(effects)["learned_kept"] == {"policy": "goodput"}


def test_versions_never_fall_even_if_both_sides_restart() -> None:
    old, new = taught(), session()
    used = old.state().version
    restarted(old, new, unknown_leases=20)
    (sent,) = leases(new.step(Connected(replace(INFO, boot_id="boot-2", last_lease_version=0)), 3000 * MS))

    assert sent.lease.version == used + 21


@pytest.mark.parametrize(("away_s", "left_s"), [(1.0, 57.0), (57.5, 0.5)])
def test_a_pin_goes_on_while_the_controller_is_down(away_s: float, left_s: float) -> None:
    old, new = taught(), session()
    old.step(Pinned(PIN, 60.0), 2000 * MS)
    old.step(Disconnected(), 3000 * MS)
    restarted(old, new)
    (sent,) = leases(new.step(Connected(INFO), round((4 + away_s) * 1e9)))

    assert sent.lease.pin == PIN
    assert sent.pin_remaining_s == pytest.approx(left_s)


def test_a_pin_whose_time_was_over_meanwhile_is_dropped_at_the_first_tick() -> None:
    old, new = taught(), session()
    old.step(Pinned(PIN, 60.0), 2000 * MS)
    restarted(old, new)

    assert notes(new.step(Ticked(), 100_000 * MS))["engine_unpinned"]["why"] == "its time is over"
    assert new.pin is None


def test_after_a_restart_of_the_machine_the_times_are_those_of_the_new_clock() -> None:
    old, new = taught(), session()
    old.step(Pinned(PIN, 60.0), 2000 * MS)
    restarted(old, new, shift_ns=-1500 * MS)

    assert new.pin is not None
    assert (new.pin.since_ns, new.pin.deadline_ns) == (500 * MS, 60_500 * MS)
    assert new.last_message_ns == old.last_message_ns - 1500 * MS


def held(pin: Pin) -> EngineInfo:
    return replace(INFO, pin=pin, pin_remaining_s=30.0, in_force=InForce(mode=pin.mode, pin_id=pin.id))


def test_a_pin_that_the_engine_holds_and_the_journal_lost_is_taken_over() -> None:
    old, new = taught(), session()
    restarted(old, new)
    (sent,) = leases(new.step(Connected(held(PIN)), 3000 * MS))

    assert (sent.lease.pin, sent.pin_remaining_s) == (PIN, 30.0)


def test_a_pin_that_was_released_while_the_engine_was_away_is_not_taken_over() -> None:
    old, new = taught(), session()
    old.step(Pinned(PIN), 2000 * MS)
    old.step(Disconnected(), 2100 * MS)
    old.step(Unpinned(), 2200 * MS)
    restarted(old, new)
    (sent,) = leases(new.step(Connected(held(PIN)), 3000 * MS))

    assert sent.lease.pin is None


def test_only_the_first_hello_after_the_restart_can_bring_a_pin() -> None:
    old, new = taught(), session()
    restarted(old, new)
    new.step(Connected(INFO), 3000 * MS)
    new.step(Disconnected(), 3100 * MS)
    new.step(Connected(held(PIN)), 3200 * MS)

    assert new.pin is None


# -- which policy --------------------------------------------------------------------------------


def test_a_policy_that_an_operator_set_outlives_the_controller() -> None:
    old, new = taught(), session()
    old.step(PolicySet("fixed", policy_factory("fixed", {"steps": "1"}), {"steps": "1"}), 2000 * MS)
    restarted(old, new)
    (sent,) = leases(new.step(Connected(INFO), 3000 * MS))

    assert new.policy_name == "fixed"
    assert {entry.mode for entry in sent.lease.table} == {speculate(1)}


def test_a_policy_of_the_settings_gives_way_to_other_settings() -> None:
    old, new = taught(), session("goodput", margin=0.1)
    effects = restarted(old, new)

    assert notes(effects) == {"learned_dropped": {"why": "the settings name policy goodput now, with its parameters"}}
    new.step(Connected(INFO), 3000 * MS)
    assert new.state().policy == PolicyChoice("goodput", {"margin": 0.1})
    assert new.state().learned != old.state().learned


def test_a_policy_that_this_version_does_not_have_is_said_and_the_configured_one_decides() -> None:
    old, new = taught(), session()
    state = replace(kept(old.state()), policy=PolicyChoice("oracle")).after_restart()
    effects = new.step(Resumed(state), 0)

    assert notes(effects)["learned_dropped"]["why"].startswith("unknown policy 'oracle'")
    assert leases(new.step(Connected(INFO), 3000 * MS))
    assert new.policy_name == "goodput"


def test_a_snapshot_that_no_longer_fits_is_said_and_learning_begins_afresh() -> None:
    old, new = taught(), session()
    state = kept(old.state())
    assert state.learned is not None
    broken = replace(state, learned=replace(state.learned, snapshot={"policy": "goodput"}))
    new.step(Resumed(broken.after_restart()), 0)
    effects = new.step(Connected(INFO), 3000 * MS)

    assert "the snapshot's modes are None" in notes(effects)["learned_dropped"]["why"]
    assert leases(effects)


def test_a_policy_set_while_the_engine_is_away_forgets_what_was_learned() -> None:
    old, new = taught(), session()
    restarted(old, new)
    new.step(PolicySet("goodput", policy_factory("goodput")), 2500 * MS)
    new.step(Connected(INFO), 3000 * MS)

    assert new.state().learned != old.state().learned


# -- orders that came after the state ------------------------------------------------------------


def test_orders_that_came_after_the_state_change_it() -> None:
    state = taught().state()
    pinned = state.pinned(PIN, 5000 * MS, 60.0)
    assert pinned.pin is not None
    assert (pinned.pin.pin, pinned.pin.deadline_ns) == (PIN, 65_000 * MS)
    assert (pinned.unpinned().pin, pinned.unpinned().released_pin) == (None, "p1")
    assert state.unpinned() == state
    ordered = state.under(PolicyChoice("ucb"))
    assert (ordered.ordered, ordered.learned, state.ordered) == (True, None, False)
