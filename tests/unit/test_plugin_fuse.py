"""An exception of ours, wherever it comes from: the fuse blows once, and the engine goes on by its own rule."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from support.hooked_engine import DrawnWorld, EmbeddedEngine, one_mode_lease
from trimtab_sglang.fuse import Fuse
from trimtab_sglang.lease import LeaseMachine, Pin, speculate
from trimtab_sglang.plugin import Plugin
from trimtab_sglang.ranks import Command, Mailbox, Order
from trimtab_sglang.recorder import Recorder

Arm = Callable[[EmbeddedEngine, pytest.MonkeyPatch], object]


def boom(*_: Any, **__: Any) -> Any:
    raise RuntimeError("boom")


def arm_collecting(engine: EmbeddedEngine, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Mailbox, "collect", boom)
    engine.post(one_mode_lease(speculate(1), 2))


def arm_starting(engine: EmbeddedEngine, patch: pytest.MonkeyPatch) -> None:
    engine.plugin.started = False
    patch.setattr(Plugin, "start", boom)
    engine.post(one_mode_lease(speculate(1), 2))


def arm_applying(engine: EmbeddedEngine, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseMachine, "adopt", boom)
    engine.post(one_mode_lease(speculate(1), 2))


def arm_applying_half_a_command(engine: EmbeddedEngine, patch: pytest.MonkeyPatch) -> None:
    engine.incoming.append(Command(Order.ADOPT))


def arm_choosing(engine: EmbeddedEngine, patch: pytest.MonkeyPatch) -> None:
    # `choose` itself is bound at the start; what it calls for a new batch size is not.
    patch.setattr(LeaseMachine, "_review", boom)
    engine.post(one_mode_lease(speculate(1), 2))


def arm_tagging(engine: EmbeddedEngine, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine.plugin.recorder, "launches", None)


def arm_prefill(engine: EmbeddedEngine, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recorder, "launched_prefill", boom)
    engine.admit()


def arm_late(engine: EmbeddedEngine, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recorder, "take_released", boom)
    engine.plugin.recorder.released.append(engine.running[0])


def arm_ended(engine: EmbeddedEngine, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recorder, "take_released", boom)
    engine.end_with_next_result(engine.running[0])


def arm_recording(engine: EmbeddedEngine, patch: pytest.MonkeyPatch) -> None:
    spoiled = property(boom, lambda batch, value: None)
    patch.setattr(engine.shape.ScheduleBatch, "has_grammar", spoiled)


def arm_releasing(engine: EmbeddedEngine, patch: pytest.MonkeyPatch) -> None:
    engine.plugin.recorder.released = None  # type: ignore[assignment]
    engine.end_with_next_result(engine.running[0])


ARMS: dict[str, tuple[Arm, str]] = {
    "collecting": (arm_collecting, "collecting commands: RuntimeError: boom"),
    "starting the link": (arm_starting, "collecting commands: RuntimeError: boom"),
    "applying": (arm_applying, "applying commands: RuntimeError: boom"),
    "applying half a command": (arm_applying_half_a_command, "applying commands: AssertionError"),
    "choosing": (arm_choosing, "choosing the mode: RuntimeError: boom"),
    "tagging": (arm_tagging, "tagging a launch: TypeError"),
    "a prefill": (arm_prefill, "tagging a launch: RuntimeError: boom"),
    "late requests": (arm_late, "looking for late requests: RuntimeError: boom"),
    "ended requests": (arm_ended, "recording a result: RuntimeError: boom"),
    "recording": (arm_recording, "recording a result: RuntimeError: boom"),
    "releasing": (arm_releasing, "noting a released request: AttributeError"),
}


def engines() -> tuple[EmbeddedEngine, EmbeddedEngine]:
    """Two engines with the same luck that have run a while: one with the plugin, one bare."""
    pair = EmbeddedEngine(world=DrawnWorld(5, 0.9)), EmbeddedEngine(settings=None, world=DrawnWorld(5, 0.9))
    for engine in pair:
        engine.admit(2)
        engine.decode(3)
    return pair


@pytest.mark.parametrize(("arm", "reason"), ARMS.values(), ids=ARMS)
def test_an_exception_in_a_hook_blows_the_fuse_once_and_ends_lease_and_pin(
    arm: Arm, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, _ = engines()
    pinned = speculate(1)
    engine.post(one_mode_lease(pinned, 1, pin=Pin("p", pinned)))
    assert engine.decode(2) == [1, 1]
    with caplog.at_level(logging.INFO, "trimtab"):
        arm(engine, monkeypatch)
        # The pin's last step may be on its way when the fuse blows.
        engine.decode(1)
        assert set(engine.decode(40)) <= {3, 5, 7}

    fuse, machine = engine.plugin.fuse, engine.plugin.machine
    assert fuse.reason.startswith(reason)
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"trimtab gave up, the engine's own policy rules: {fuse.reason}"]
    assert (machine.fallen_back, machine.lease, machine.pin) == (fuse.reason, None, None)
    assert not engine.plugin.acts


SAME_LOAD = [
    arm_collecting,
    arm_starting,
    arm_applying,
    arm_applying_half_a_command,
    arm_choosing,
    arm_late,
    arm_recording,
]


@pytest.mark.parametrize("arm", SAME_LOAD)
def test_from_then_on_the_steps_are_those_of_an_engine_without_the_plugin(
    arm: Arm, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, bare = engines()
    arm(engine, monkeypatch)
    assert engine.decode(60) == bare.decode(60)
    assert engine.plugin.fuse.blown


def test_an_exception_while_attaching_leaves_an_engine_that_decodes(caplog: pytest.LogCaptureFixture) -> None:
    def spoil(plugin: Plugin) -> None:
        plugin.attach = boom  # type: ignore[method-assign]

    engine = EmbeddedEngine(before_start=spoil)
    engine.admit()
    assert engine.decode(3) == [3, 3, 3]
    assert engine.plugin.fuse.reason == "attaching to the scheduler: RuntimeError: boom"
    assert len(caplog.records) == 1
    assert not engine.plugin.acts


def test_an_exception_of_the_engine_passes_untouched() -> None:
    engine = EmbeddedEngine(prepare=lambda shape: setattr(shape.DraftWorker, "forward_batch_generation", boom))
    with pytest.raises(RuntimeError, match="boom"):
        engine.admit()
    assert not engine.plugin.fuse.blown


# -- the fuse by itself --------------------------------------------------------------------------


def test_a_fuse_blows_at_most_once() -> None:
    told: list[str] = []
    fuse = Fuse(told.append)
    fuse.blow("here", KeyError("a"))
    fuse.blow("there", ValueError("b"))
    assert told == [fuse.reason] == ["here: KeyError: 'a'"]


def test_a_fuse_does_not_raise_when_telling_fails() -> None:
    fuse = Fuse(boom)
    fuse.blow("here", KeyError("a"))
    assert fuse.blown


def test_a_reason_is_cut_to_a_line() -> None:
    fuse = Fuse(lambda reason: None)
    fuse.blow("here", ValueError("x" * 10_000))
    assert len(fuse.reason) == 500
