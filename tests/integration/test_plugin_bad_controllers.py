"""Whatever the controller does, the engine decodes on, and is under its own rule when nobody sound leads it."""

from __future__ import annotations

import logging
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import grpc
import pytest

from support.bad_controllers import RawController, Says, in_turn, lease, read_on, welcome
from support.daemon_process import DaemonProcess
from support.hooked_engine import DrawnWorld, EmbeddedEngine, one_mode_lease
from trimtab_sglang import link as link_module
from trimtab_sglang.lease import LeaseMachine, speculate
from trimtab_sglang.settings import PluginSettings
from trimtabpb.v1 import control_pb2 as pb

LEASE_TTL_S = 2.0
# Where nearly every draft is accepted the engine's own rule never runs a single step.
OWN_RULE = {3, 5, 7}
ONE_STEP = one_mode_lease(speculate(1))
# Far above what a decode step of the embedded engine takes, far below what anybody would notice.
LONGEST_STEP_S = 0.25


class Engine(EmbeddedEngine):
    """Decodes easy requests, and remembers its slowest step."""

    def __init__(self, target: str) -> None:
        super().__init__(PluginSettings(controller=target, engine_id="engine-1"), DrawnWorld(chance=0.95), linked=True)
        self.longest_s = 0.0
        self.admit(2)

    def decode(self, steps: int = 1) -> list[int]:
        began = time.monotonic()
        ran = super().decode(steps)
        self.longest_s = max(self.longest_s, (time.monotonic() - began) / steps)
        return ran

    @property
    def machine(self) -> LeaseMachine:
        return self.plugin.machine


@contextmanager
def engine_of(target: str) -> Iterator[Engine]:
    engine = Engine(target)
    with engine:
        yield engine
    assert not engine.plugin.fuse.blown
    assert engine.longest_s < LONGEST_STEP_S


@contextmanager
def led_by(says: Says) -> Iterator[tuple[RawController, Engine]]:
    """An engine that finds this controller."""
    with RawController(says) as controller, engine_of(controller.target) as engine:
        yield controller, engine


# -- hung, slow, gone, back ----------------------------------------------------------------------


def test_a_controller_that_hangs_loses_the_engine_with_the_lease_and_has_it_back_when_it_goes_on() -> None:
    with DaemonProcess() as daemon, engine_of(daemon.target) as engine:
        engine.decode_until(lambda: engine.machine.lease)
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            engine.decode_until(lambda: engine.machine.lease is None, within_s=LEASE_TTL_S + 0.3)
            assert set(engine.decode_for(0.5)) <= OWN_RULE
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        engine.decode_until(lambda: engine.machine.lease, within_s=2)


def test_a_controller_that_hangs_before_its_welcome_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "WELCOME_TIMEOUT_S", 0.3)
    with led_by(in_turn()) as (controller, engine):
        engine.decode_until(lambda: controller.streams >= 3)
        assert set(engine.steps_run) <= OWN_RULE


def test_a_controller_that_is_slower_than_its_leases_live_leads_now_and_then() -> None:
    """One message in three lives of a lease: in between the engine is under its own rule."""
    leases = [lease(replace(ONE_STEP, version=n), n, ttl_s=0.1) for n in range(1, 5)]
    with led_by(in_turn(welcome(), *leases, every_s=0.3)) as (controller, engine):
        engine.decode_until(lambda: len(controller.acks()) == 4)
        engine.decode_until(lambda: engine.machine.lease is None)
        assert all(ack.accepted for ack in controller.acks())
        shares = engine.steps_run.count(1) / len(engine.steps_run)
        assert 0.05 < shares < 0.6
        assert set(engine.steps_run) <= {1, *OWN_RULE}


@pytest.mark.long
def test_a_controller_that_takes_ten_seconds_a_message_never_leads_and_costs_nothing() -> None:
    with led_by(in_turn(welcome(), lease(ONE_STEP, 1), every_s=10)) as (controller, engine):
        engine.decode_for(25)
        assert controller.streams >= 3
        assert set(engine.steps_run) <= OWN_RULE


def test_a_controller_that_takes_ten_seconds_a_message_after_its_welcome_leads_for_one_lease() -> None:
    def says(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from in_turn(welcome(), lease(ONE_STEP, 1, ttl_s=0.5))(messages, context)

    with led_by(says) as (_, engine):
        engine.decode_until(lambda: engine.machine.lease)
        engine.decode_until(lambda: engine.machine.lease is None, within_s=1)
        assert set(engine.decode_for(1.0)) <= OWN_RULE


def test_a_controller_that_comes_and_goes_leads_whenever_it_is_there() -> None:
    with DaemonProcess() as daemon, engine_of(daemon.target) as engine:
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
            engine.decode_until(lambda: engine.machine.lease, within_s=5)
            daemon.stop(number)
            engine.decode_until(lambda: engine.machine.lease is None, within_s=LEASE_TTL_S + 0.5)
            daemon.__init__(directory=daemon.directory)  # type: ignore[misc]
            daemon.started()


def test_a_stream_that_ends_again_and_again_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link_module, "RETRY_S", (0.01, 0.01, 0.01))

    def says(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        next(messages)
        yield welcome()

    with caplog.at_level(logging.INFO, "trimtab"), led_by(says) as (controller, engine):
        engine.decode_until(lambda: controller.streams >= 20)
    said = [record.getMessage().split(":")[0] for record in caplog.records]
    assert (
        sorted(said)
        == [
            "trimtab has no controller at unix",
            "trimtab is connected to controller bad as engine engine-1",
        ]
        or len(said) <= 3
    )


# -- lying ---------------------------------------------------------------------------------------


LYING = [
    (lease(one_mode_lease(speculate(2), 2), 2), pb.REFUSAL_NO_STATE),
    (lease(one_mode_lease(speculate(7), 3), 3, ttl_s=0), pb.REFUSAL_INVALID),
    (lease(one_mode_lease(speculate(7), 4), 4, ttl_s=3_155_760_000), pb.REFUSAL_INVALID),
    (lease(replace(one_mode_lease(speculate(7), 5), table=()), 5), pb.REFUSAL_INVALID),
]


def test_lies_are_refused_one_by_one_and_the_last_true_word_holds() -> None:
    true = [welcome(), lease(ONE_STEP, 1)]
    with led_by(in_turn(*true, *[message for message, _ in LYING])) as (controller, engine):
        engine.decode_until(lambda: len(controller.acks()) == 5)
        first, *others = controller.acks()
        assert first.accepted
        assert [ack.refusal for ack in others] == [refusal for _, refusal in LYING]
        assert engine.decode(1) == [1]
        engine.decode_until(lambda: engine.machine.lease is None, within_s=LEASE_TTL_S + 0.3)


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 50, b"\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x7f", b"\x0a\x05ab", bytes(range(256)) * 20],
    ids=["no field", "an endless length", "cut short", "anything"],
)
def test_garbage_ends_the_stream_and_the_next_one_is_tried(garbage: bytes) -> None:
    with led_by(in_turn(welcome(), lease(ONE_STEP, 1), garbage)) as (controller, engine):
        engine.decode_until(lambda: controller.streams >= 2)
        engine.decode_until(lambda: engine.machine.lease)


def test_a_message_of_a_hundred_megabytes_is_not_taken_in() -> None:
    def says(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        next(messages)
        read_on(messages)
        yield welcome()
        release = pb.Release(reason="x" * 100_000_000)
        yield pb.ControllerMessage(release=release).SerializeToString()

    with led_by(says) as (controller, engine):
        engine.decode_until(lambda: controller.streams >= 2, within_s=20)
        assert engine.plugin.link is not None
        assert set(engine.steps_run) <= OWN_RULE


def test_a_flood_of_leases_is_read_at_a_fixed_pace_and_memory_stays() -> None:
    """The controller and its flood live in this process too, so the slowest step is not looked at."""

    def says(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        next(messages)
        read_on(messages)
        yield welcome()
        nonce = 0
        while context.is_active():
            nonce += 1
            yield lease(replace(ONE_STEP, version=1 + nonce), nonce)

    with RawController(says) as controller, Engine(controller.target) as engine:
        engine.decode_until(lambda: len(controller.acks()) > 20)
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answered, began = len(controller.acks()), time.monotonic()
        engine.decode_for(3.0)
        rate = (len(controller.acks()) - answered) / (time.monotonic() - began)
        assert rate < 60
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 50_000
        assert engine.decode(1) == [1]
        assert not engine.plugin.fuse.blown


def test_a_controller_that_reads_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MAX_UNREAD_S", 0.5)
    monkeypatch.setattr(link_module, "MAX_UNSENT", 1)

    def says(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        next(messages)
        yield welcome()
        # Each refusal says why at length, so that what the network holds is soon full.
        for nonce in range(1, 1_000_000):
            if not context.is_active():
                return
            yield lease(one_mode_lease(speculate(60), nonce), nonce)

    monkeypatch.setattr("trimtab_sglang.pace.MESSAGES_PER_S", 1e6)
    monkeypatch.setattr("trimtab_sglang.pace.BURST", 1e6)
    with RawController(says) as controller, Engine(controller.target) as engine:
        engine.decode_until(lambda: controller.streams >= 2, within_s=30)
        assert not engine.plugin.fuse.blown
        assert set(engine.steps_run) <= OWN_RULE


# -- other versions ------------------------------------------------------------------------------


def unknown_field(message: bytes, number: int = 900) -> bytes:
    """The message with a field that no version of ours has."""
    key = number << 3 | 2
    return message + bytes([key & 0x7F | 0x80, key >> 7]) + b"\x03abc"


def test_a_newer_controller_leads_and_what_is_not_known_of_it_is_ignored() -> None:
    newer = pb.ControllerMessage()
    newer.MergeFromString(unknown_field(b""))
    says = in_turn(
        unknown_field(welcome(version=7, max_rows_per_report=5)),
        newer.SerializeToString(),
        unknown_field(lease(ONE_STEP, 1)),
    )
    with led_by(says) as (controller, engine):
        engine.decode_until(lambda: engine.machine.lease)
        assert engine.decode(1) == [1]
        engine.decode_for(0.5)
        reports = [message.report for message in list(controller.heard) if message.HasField("report")]
        assert reports
        assert max(len(report.rows.step) for report in reports) == 5
        assert controller.streams == 1


def test_an_older_controller_that_says_less_leads_as_well() -> None:
    bare = pb.ControllerMessage(welcome=pb.Welcome()).SerializeToString()
    with led_by(in_turn(bare, lease(ONE_STEP, 1))) as (controller, engine):
        engine.decode_until(lambda: engine.machine.lease)
        engine.decode_for(0.5)
        assert any(message.HasField("report") for message in list(controller.heard))
        assert controller.streams == 1
