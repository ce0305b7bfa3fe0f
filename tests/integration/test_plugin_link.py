"""The plugin's stream, word for word: an embedded engine and a controller that says what a test tells it to.

The engine's scheduler runs on a thread of its own meanwhile, as a server's does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.hooked_engine import CANDIDATES, PAUSE_S, EmbeddedEngine, one_mode_lease
from support.scripted_controller import ScriptedController
from trimtab_sglang import facts, host
from trimtab_sglang.guard import Guard
from trimtab_sglang.lease import PLAIN_COLD, PLAIN_WARM, Lease, LeaseMachine, Pin, TableEntry, speculate
from trimtab_sglang.messages import mode_to_wire
from trimtab_sglang.settings import OnExpiry, PluginMode, PluginSettings
from trimtabpb.v1 import control_pb2 as pb


@contextmanager
def decoding(engine: EmbeddedEngine) -> Iterator[EmbeddedEngine]:
    """The engine, decoding on its own thread."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(PAUSE_S):
            engine.decode()

    engine.admit(2)
    thread = threading.Thread(target=loop, name="scheduler")
    thread.start()
    try:
        with engine:
            yield engine
    finally:
        over.set()
        thread.join()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("trimtab-link")]


def linked(
    controller: ScriptedController,
    mode: PluginMode = PluginMode.ACT,
    on_expiry: OnExpiry | None = None,
    **fields: Any,
) -> EmbeddedEngine:
    settings = PluginSettings(mode, controller.target, "engine-1", {"pool": "a"}, on_expiry=on_expiry or OnExpiry())
    return EmbeddedEngine(settings, linked=True, **fields)


@pytest.fixture
def controller() -> Iterator[ScriptedController]:
    with ScriptedController() as controller:
        yield controller


@pytest.fixture
def engine(controller: ScriptedController) -> Iterator[EmbeddedEngine]:
    with decoding(linked(controller)) as engine:
        yield engine


def in_force(controller: ScriptedController, source: pb.InForce.Source.ValueType) -> pb.InForce:
    """What a report says is in force, once it has this source."""
    seen = []
    for _ in range(30):
        found = controller.next_report().in_force
        if found.source == source:
            return found
        seen.append(found)
    raise AssertionError(f"never {source}: {seen[-1]}")


# -- what goes up --------------------------------------------------------------------------------


def test_it_says_hello_then_reports_every_step_once(controller: ScriptedController, engine: EmbeddedEngine) -> None:
    hello = controller.next_hello()
    reports = [controller.next_report() for _ in range(4)]

    assert (hello.engine_id, dict(hello.labels), hello.acts) == ("engine-1", {"pool": "a"}, True)
    assert list(hello.modes) == [mode_to_wire(speculate(steps)) for steps in CANDIDATES]
    assert (hello.in_force.source, hello.last_lease_version) == (pb.InForce.SOURCE_STOCK, 0)
    assert [report.seq for report in reports] == [1, 2, 3, 4]
    launches = [launch for report in reports for launch in report.rows.launch_id]
    assert launches == list(range(1, len(launches) + 1))
    assert len(launches) > 20
    last = reports[-1]
    assert (last.running_requests, last.waiting_requests, sum(last.dropped.values())) == (2, 0, 0)
    assert last.decode_steps >= launches[-1]
    assert last.last_step_age_ns < 1_000_000_000
    assert (last.in_force.source, last.in_force.mode.steps) == (pb.InForce.SOURCE_STOCK, engine.steps_run[-1])


@pytest.mark.parametrize("report_interval_s", [0.1, 5.0])
def test_a_goodbye_ends_the_stream_at_once_and_in_good_order(report_interval_s: float) -> None:
    with ScriptedController(report_interval_s=report_interval_s) as controller:
        with decoding(linked(controller)) as engine:
            while engine.plugin.link is None or not engine.plugin.link.has_controller:
                time.sleep(PAUSE_S)
            began = time.monotonic()
        assert time.monotonic() - began < 1
        assert controller.next_goodbye().reason == "engine stops"


def test_an_idle_engine_reports_too(controller: ScriptedController) -> None:
    with linked(controller) as engine:
        engine.idle()
        report = controller.next_report()
    assert (list(report.rows.step), report.decode_steps) == ([], 0)
    assert not report.HasField("last_step_age_ns")
    assert not report.in_force.HasField("mode")


# -- leases --------------------------------------------------------------------------------------


def test_a_lease_is_accepted_and_in_force_and_later_released(
    controller: ScriptedController, engine: EmbeddedEngine
) -> None:
    assert controller.lease(one_mode_lease(speculate(7), 4)).accepted
    found = in_force(controller, pb.InForce.SOURCE_LEASE)
    assert (found.lease_version, engine.steps_run[-1]) == (4, 7)
    controller.say(release=pb.Release(reason="enough"))
    in_force(controller, pb.InForce.SOURCE_STOCK)
    assert engine.plugin.machine.lease is None


def test_a_lease_ends_by_the_clock_and_a_pin_by_its_own(controller: ScriptedController, engine: EmbeddedEngine) -> None:
    lease = one_mode_lease(speculate(7), 1, pin=Pin("p1", PLAIN_WARM))
    began = time.monotonic()
    assert controller.lease(lease, ttl_s=0.4, pin_remaining_s=0.8).accepted
    pinned = in_force(controller, pb.InForce.SOURCE_PIN)
    assert (pinned.pin_id, pinned.mode.kind) == ("p1", pb.Mode.KIND_PLAIN_WARM)
    in_force(controller, pb.InForce.SOURCE_STOCK)
    assert 0.8 <= time.monotonic() - began < 1.3
    assert engine.plugin.machine.lease is None


def test_after_its_life_a_lease_goes_on_for_as_long_as_the_operator_wants(controller: ScriptedController) -> None:
    with decoding(linked(controller, on_expiry=OnExpiry(last_s=1.0))) as engine:
        assert controller.next_hello().on_expiry == "last:1"
        began = time.monotonic()
        assert controller.lease(one_mode_lease(speculate(7)), ttl_s=0.3).accepted
        in_force(controller, pb.InForce.SOURCE_LEASE)
        in_force(controller, pb.InForce.SOURCE_STOCK)
        assert 1.3 <= time.monotonic() - began < 1.8
        assert engine.plugin.machine.lease is None


def test_after_its_life_the_mode_that_the_operator_set_runs_until_the_next_lease(
    controller: ScriptedController,
) -> None:
    with decoding(linked(controller, on_expiry=OnExpiry(PLAIN_WARM))) as engine:
        assert controller.next_hello().on_expiry == "plain_warm"
        assert controller.lease(one_mode_lease(speculate(7)), ttl_s=0.3).accepted
        in_force(controller, pb.InForce.SOURCE_LEASE)
        # An older controller reads this as the engine's own rule: a new source it would refuse.
        standing = in_force(controller, pb.InForce.SOURCE_STOCK)
        assert (standing.after_expiry, standing.mode.kind) == (True, pb.Mode.KIND_PLAIN_WARM)
        assert engine.steps_run[-1] == 0
        assert controller.lease(one_mode_lease(speculate(7))).accepted
        assert not in_force(controller, pb.InForce.SOURCE_LEASE).after_expiry


def test_a_release_means_the_engines_own_rule_whatever_the_operator_set(controller: ScriptedController) -> None:
    with decoding(linked(controller, on_expiry=OnExpiry(PLAIN_WARM))):
        assert controller.lease(one_mode_lease(speculate(7)), ttl_s=60).accepted
        in_force(controller, pb.InForce.SOURCE_LEASE)
        controller.say(release=pb.Release(reason="enough"))
        assert not in_force(controller, pb.InForce.SOURCE_STOCK).after_expiry


def test_a_mode_for_the_time_after_that_was_not_built_is_the_engines_own_rule(controller: ScriptedController) -> None:
    with decoding(linked(controller, on_expiry=OnExpiry(speculate(4)))):
        assert controller.next_hello().on_expiry == "stock"


REFUSALS: list[tuple[Lease, float, pb.Refusal.ValueType, str]] = [
    (
        one_mode_lease(speculate(2), 6),
        2.0,
        pb.REFUSAL_NO_STATE,
        "mode speculate(2) was not built; there are: "
        "plain_warm, speculate(1), speculate(3), speculate(5), speculate(7)",
    ),
    (one_mode_lease(PLAIN_COLD, 6), 2.0, pb.REFUSAL_NO_STATE, "mode plain_cold was not built"),
    (one_mode_lease(speculate(3), 6, pin=Pin("p", speculate(2))), 2.0, pb.REFUSAL_NO_STATE, "mode speculate(2)"),
    (
        Lease(6, (TableEntry(1, speculate(3), 0.5, ((speculate(4), 0.5),)),)),
        2.0,
        pb.REFUSAL_NO_STATE,
        "mode speculate(4)",
    ),
    (one_mode_lease(speculate(3), 6), 0.05, pb.REFUSAL_INVALID, "ttl must be 0.1 to 600.0 s, is 0.05"),
    (one_mode_lease(speculate(3), 6), 3600.0, pb.REFUSAL_INVALID, "ttl must be 0.1 to 600.0 s"),
    (Lease(6, (TableEntry(2, speculate(3)),)), 2.0, pb.REFUSAL_INVALID, "table must begin at 1, begins at 2"),
    (one_mode_lease(speculate(3), 4), 2.0, pb.REFUSAL_OUTDATED, "version 5 was applied before"),
]


def test_a_lease_that_cannot_be_followed_is_refused_and_what_ran_before_goes_on(
    controller: ScriptedController, engine: EmbeddedEngine
) -> None:
    assert controller.lease(one_mode_lease(speculate(7), 5)).accepted
    in_force(controller, pb.InForce.SOURCE_LEASE)
    for lease, ttl_s, refusal, detail in REFUSALS:
        ack = controller.lease(lease, ttl_s)
        assert (ack.accepted, ack.refusal) == (False, refusal)
        assert ack.detail.startswith(detail)
    controller.next_report()
    assert controller.next_report().in_force.lease_version == 5
    assert set(engine.steps_run[-20:]) == {7}


def test_an_observing_engine_refuses_and_a_release_does_not_disturb_it(controller: ScriptedController) -> None:
    with decoding(linked(controller, PluginMode.OBSERVE)) as engine:
        hello = controller.next_hello()
        assert (hello.acts, list(hello.modes), list(hello.observe_reasons)) == (False, [], ["TRIMTAB_MODE=observe"])
        ack = controller.lease(one_mode_lease(speculate(3)))
        assert (ack.refusal, ack.detail) == (pb.REFUSAL_OBSERVING, "TRIMTAB_MODE=observe")
        controller.say(release=pb.Release(reason="controller stops"))
        before = len(engine.steps_run)
        for _ in range(3):
            controller.next_report()
        assert len(engine.steps_run) > before + 10
        assert not engine.plugin.mailbox.posted


def test_a_blown_fuse_is_reported_and_refuses(
    controller: ScriptedController, engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def boom(*_: Any) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(LeaseMachine, "adopt", boom)
    assert controller.lease(one_mode_lease(speculate(7))).accepted
    found = in_force(controller, pb.InForce.SOURCE_FUSE)
    assert found.fuse_reason == "applying commands: RuntimeError: boom"
    assert controller.lease(one_mode_lease(speculate(7), 2)).refusal == pb.REFUSAL_FUSE
    controller.hang_up()
    hello = controller.next_hello()
    while hello.acts:
        hello = controller.next_hello()
    assert list(hello.observe_reasons) == ["the fuse is blown: applying commands: RuntimeError: boom"]


def test_a_fuse_that_blows_while_attaching_is_reported_all_the_same(
    controller: ScriptedController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "hook_status", lambda *_: 1 / 0)
    with decoding(linked(controller)) as engine:
        hello = controller.next_hello()
        assert (hello.acts, hello.in_force.source) == (False, pb.InForce.SOURCE_FUSE)
        reason = "attaching to the scheduler: ZeroDivisionError: division by zero"
        assert hello.in_force.fuse_reason == reason
        assert list(hello.observe_reasons) == [f"the fuse is blown: {reason}"]
        assert controller.lease(one_mode_lease(speculate(7))).refusal == pb.REFUSAL_FUSE
        assert set(engine.steps_run[-10:]) <= {3, 5, 7}


def test_a_scheduler_that_cannot_be_read_at_all_is_reported_with_what_is_known(
    controller: ScriptedController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "server_settings", lambda *_: 1 / 0)
    with decoding(linked(controller)):
        hello = controller.next_hello()
        assert (hello.engine_id, hello.software.sglang_version) == ("engine-1", "embedded")
        assert hello.in_force.fuse_reason.startswith("attaching to the scheduler: ZeroDivisionError")


def test_an_exception_on_the_links_own_thread_blows_the_fuse_as_well_and_the_link_goes_on(
    controller: ScriptedController, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with decoding(linked(controller)) as engine:
        assert controller.lease(one_mode_lease(speculate(1)), ttl_s=60).accepted
        in_force(controller, pb.InForce.SOURCE_LEASE)
        watch = Guard.watch
        monkeypatch.setattr(Guard, "watch", lambda *_: 1 / 0)
        while not engine.plugin.fuse.blown:
            time.sleep(PAUSE_S)
        monkeypatch.setattr(Guard, "watch", watch)
        found = in_force(controller, pb.InForce.SOURCE_FUSE)
        assert found.fuse_reason == "talking to the controller: ZeroDivisionError: division by zero"
        assert engine.plugin.machine.fallen_back == found.fuse_reason
        assert set(engine.steps_run[-5:]) <= {3, 5, 7}
    assert [r.levelname for r in caplog.records if "gave up" in r.getMessage()] == ["ERROR"]


# -- a controller that comes and goes ------------------------------------------------------------


def test_after_a_hang_up_it_comes_back_and_says_what_it_runs(
    controller: ScriptedController, engine: EmbeddedEngine
) -> None:
    first = controller.next_hello()
    lease = one_mode_lease(speculate(7), 8, pin=Pin("p1", PLAIN_WARM, "latency", "kim"))
    assert controller.lease(lease, pin_remaining_s=100).accepted
    in_force(controller, pb.InForce.SOURCE_PIN)
    controller.hang_up()
    hello = controller.next_hello()

    assert hello.boot_id == first.boot_id
    assert hello.last_lease_version == 8
    assert (hello.in_force.source, hello.in_force.pin_id) == (pb.InForce.SOURCE_PIN, "p1")
    assert (hello.pin.id, hello.pin.reason, hello.pin.owner) == ("p1", "latency", "kim")
    assert 95 < hello.pin.remaining.seconds <= 100
    assert controller.next_report().seq == 1


def test_a_controller_that_says_nothing_costs_no_step() -> None:
    with ScriptedController(welcoming=False) as silent, decoding(linked(silent)) as engine:
        silent.next_hello()
        before = len(engine.steps_run)
        time.sleep(0.3)
        assert len(engine.steps_run) > before + 30


def test_without_a_controller_nothing_piles_up(caplog: pytest.LogCaptureFixture) -> None:
    settings = PluginSettings(controller="unix:/nowhere/trimtabd.sock", engine_id="alone")
    with caplog.at_level(logging.WARNING, "trimtab"), EmbeddedEngine(settings, linked=True) as engine:
        engine.admit()
        engine.decode_for(0.2)
        link = engine.plugin.link
        assert link is not None
        engine.decode_until(lambda: link._rows.dropped["no_controller"] > 20)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("trimtab has no controller at unix:/nowhere/trimtabd.sock: UNAVAILABLE: ")
