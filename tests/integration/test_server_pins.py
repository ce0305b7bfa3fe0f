"""Operators hold engines in a mode and let them go, through a real daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from support.daemon_process import DaemonProcess
from support.scripted_engine import ScriptedEngine
from trimtab.domain import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, modes_of, speculate
from trimtab.wire import mode_to_wire
from trimtabpb.v1 import admin_pb2
from trimtabpb.v1 import control_pb2 as pb


@pytest.fixture
def daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess() as daemon:
        yield daemon
        assert "Traceback" not in daemon.text()


def chosen(*engine_ids: str, **selector: Any) -> admin_pb2.Selector:
    return admin_pb2.Selector(engine_ids=engine_ids, **selector)


def pin_order(selector: admin_pb2.Selector, steps: int = 0, **order: Any) -> admin_pb2.PinRequest:
    target = {"mode": mode_to_wire(speculate(steps))} if steps else {"any_plain": True}
    return admin_pb2.PinRequest(selector=selector, **{**({} if "mode" in order else target), **order})


def refusal(call: Any, request: Any) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.RpcError) as caught:
        call(request)
    return caught.value.code(), caught.value.details()


def test_a_pin_on_plain_reaches_the_engine_and_unpin_gives_control_back(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "a") as engine:
        engine.start()
        engine.follow(engine.next_lease())
        answer = daemon.admin.Pin(pin_order(chosen("a"), reason="latency", owner="kim"))
        pinned = engine.pinned_lease()

        assert mode_to_wire(PLAIN_WARM) == pinned.pin.mode == answer.engines[0].pin.mode
        assert (pinned.pin.reason, pinned.pin.owner, pinned.reason) == ("latency", "kim", "pin")
        assert pinned.version == 2
        assert not pinned.pin.HasField("remaining")
        assert pinned.table, "the policy's table stays beside the pin"

        released = daemon.admin.Unpin(admin_pb2.UnpinRequest(selector=chosen("a")))
        assert released.released == 1
        assert engine.unpinned_lease().version == 3
        assert daemon.admin.Unpin(admin_pb2.UnpinRequest(selector=chosen("a"))).released == 0


def test_plain_alone_is_the_cheapest_safe_kind_of_each_engine(daemon: DaemonProcess) -> None:
    offers = {
        "native": (PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, speculate(3)),
        "warm": (PLAIN_COLD, PLAIN_WARM, speculate(3)),
    }
    with (
        ScriptedEngine(daemon.target, "native", offers["native"]) as native,
        ScriptedEngine(daemon.target, "warm", offers["warm"]) as warm,
    ):
        native.start()
        warm.start()
        daemon.admin.Pin(pin_order(chosen(all=True)))

        assert native.pinned_lease().pin.mode.kind == pb.Mode.KIND_PLAIN_NATIVE
        assert warm.pinned_lease().pin.mode.kind == pb.Mode.KIND_PLAIN_WARM

        daemon.admin.Pin(pin_order(chosen("warm"), mode=mode_to_wire(PLAIN_COLD)))
        assert warm.pinned_lease().pin.mode.kind == pb.Mode.KIND_PLAIN_COLD


def test_a_pin_with_a_duration_ends_by_itself(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "a") as engine:
        engine.start()
        daemon.admin.Pin(pin_order(chosen("a"), steps=3, duration=Duration(seconds=1)))
        pinned = engine.pinned_lease()

        assert 0 < pinned.pin.remaining.ToMilliseconds() <= 1000
        assert pinned.pin.mode.steps == 3
        assert not engine.unpinned_lease().HasField("pin")
    assert daemon.logged("engine_unpinned")["why"] == "its time is over"


def test_a_pin_is_chosen_by_label(daemon: DaemonProcess) -> None:
    with (
        ScriptedEngine(daemon.target, "a", labels={"team": "chat"}) as chat,
        ScriptedEngine(daemon.target, "b", labels={"team": "code"}) as code,
    ):
        chat.start()
        code.start()
        answer = daemon.admin.Pin(pin_order(chosen(labels={"team": "code"}), steps=1))

        assert [engine.engine_id for engine in answer.engines] == ["b"]
        assert code.pinned_lease().pin.mode.steps == 1


def test_a_pin_goes_to_all_engines_or_to_none(daemon: DaemonProcess) -> None:
    with (
        ScriptedEngine(daemon.target, "wide", modes_of([0, 1, 3, 5])) as wide,
        ScriptedEngine(daemon.target, "narrow", modes_of([0, 1, 3])) as narrow,
    ):
        wide.start()
        narrow.start()

        assert refusal(daemon.admin.Pin, pin_order(chosen(all=True), steps=5)) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "narrow does not offer speculate(5); it offers plain_warm, speculate(1), speculate(3)",
        )
        engines = daemon.admin.ListEngines(admin_pb2.ListEnginesRequest()).engines
        assert not any(engine.HasField("pin") for engine in engines)


def test_an_engine_that_only_observes_says_so_when_it_is_to_be_pinned(daemon: DaemonProcess) -> None:
    with ScriptedEngine(
        daemon.target, "o", modes=[], acts=False, observe_reasons=["TRIMTAB_MODE is observe"]
    ) as engine:
        engine.start()

        code, words = refusal(daemon.admin.Pin, pin_order(chosen("o")))
        assert (code, words) == (grpc.StatusCode.FAILED_PRECONDITION, "o only observes: TRIMTAB_MODE is observe")


BAD_ORDERS: dict[str, tuple[admin_pb2.PinRequest, grpc.StatusCode, str]] = {
    "an engine that nobody knows": (
        pin_order(chosen("b")), grpc.StatusCode.NOT_FOUND, "there is no engine 'b': known are a",
    ),
    "labels that no engine has": (
        pin_order(chosen(labels={"x": "y"})), grpc.StatusCode.NOT_FOUND,
        "there is no engine with these labels: known are a",
    ),
    "no engine named": (
        pin_order(chosen()), grpc.StatusCode.INVALID_ARGUMENT,
        "selector: give engine_ids, all or labels, and only one of them",
    ),
    "engines named twice over": (
        pin_order(chosen("a", all=True)), grpc.StatusCode.INVALID_ARGUMENT,
        "selector: give engine_ids, all or labels, and only one of them",
    ),
    "no mode": (
        admin_pb2.PinRequest(selector=chosen("a")), grpc.StatusCode.INVALID_ARGUMENT,
        "target: name a mode or a range of steps, or any_plain, or in_force",
    ),
    "a kind with the wrong steps": (
        pin_order(chosen("a"), mode=pb.Mode(kind=pb.Mode.KIND_PLAIN_WARM, steps=2)), grpc.StatusCode.INVALID_ARGUMENT,
        "mode.steps: must be 0 for plain_warm, is 2",
    ),
    "too short": (
        pin_order(chosen("a"), duration=Duration(nanos=5)), grpc.StatusCode.INVALID_ARGUMENT,
        "duration: must be 1 s to 2592000 s, is 5e-09 s",
    ),
    "too long": (
        pin_order(chosen("a"), duration=Duration(seconds=31 * 86_400)), grpc.StatusCode.INVALID_ARGUMENT,
        "duration: must be 1 s to 2592000 s, is 2678400 s",
    ),
    "a kind that is not offered": (
        pin_order(chosen("a"), mode=pb.Mode(kind=pb.Mode.KIND_PLAIN_NATIVE)), grpc.StatusCode.INVALID_ARGUMENT,
        "a does not offer plain_native; it offers plain_warm, speculate(1), speculate(3)",
    ),
}  # fmt: skip


def test_a_bad_order_is_refused_with_what_is_wrong(daemon: DaemonProcess) -> None:
    assert refusal(daemon.admin.Pin, pin_order(chosen(all=True))) == (
        grpc.StatusCode.NOT_FOUND,
        "there is no engine: none has connected yet",
    )
    with ScriptedEngine(daemon.target, "a") as engine:
        engine.start()
        for name, (order, code, words) in BAD_ORDERS.items():
            assert refusal(daemon.admin.Pin, order) == (code, words), name


def test_a_pin_waits_for_an_engine_that_is_away_and_survives_its_restart(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "a") as engine:
        engine.start()
        engine.next_lease()
        engine.goodbye()
        engine.end()
        daemon.admin.Pin(pin_order(chosen("a"), steps=1))
    with ScriptedEngine(daemon.target, "a", boot_id="boot-2") as restarted:
        restarted.start()
        first = restarted.next_lease()

        assert first.pin.mode.steps == 1


def test_a_pin_comes_and_goes_also_where_the_policy_cannot_decide(tmp_path: Path) -> None:
    config = tmp_path / "trimtabd.toml"
    config.write_text('[policy]\nname = "fixed"\nparameters = { steps = 9 }\n')
    with DaemonProcess("--config", str(config)) as daemon, ScriptedEngine(daemon.target, "a") as engine:
        engine.start()
        with pytest.raises(AssertionError, match="no lease"):
            engine.next_lease(timeout_s=0.5)
        assert "steps 9 is not among the engine's candidates" in daemon.logged("policy_unusable")["why"]

        daemon.admin.Pin(pin_order(chosen("a"), steps=1))
        pinned = engine.pinned_lease()
        assert not pinned.table
        daemon.admin.Unpin(admin_pb2.UnpinRequest(selector=chosen("a")))
        let_go = engine.unpinned_lease()
        assert let_go.version == pinned.version + 1
        assert [entry.mode.steps for entry in let_go.table] == [1]
        assert engine.next_release().reason == "no policy decides for this engine"


def test_a_pin_that_was_released_while_the_engine_was_away_is_let_go_when_it_comes_back(tmp_path: Path) -> None:
    """Also where no policy decides, so that no lease would be due."""
    config = tmp_path / "trimtabd.toml"
    config.write_text('[policy]\nname = "fixed"\nparameters = { steps = 9 }\n')
    with DaemonProcess("--config", str(config)) as daemon, ScriptedEngine(daemon.target, "a") as engine:
        engine.start()
        daemon.admin.Pin(pin_order(chosen("a"), steps=1))
        engine.pinned_lease()
        engine.goodbye()
        engine.end()
        daemon.admin.Unpin(admin_pb2.UnpinRequest(selector=chosen("a")))
        engine.start()

        assert not engine.next_lease().HasField("pin")
        assert engine.next_release()
