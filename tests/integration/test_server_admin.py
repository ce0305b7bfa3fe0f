"""What operators can ask of a real daemon besides pins: lists, watching, policies, health, reflection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.daemon_process import DaemonProcess
from support.scripted_engine import ScriptedEngine
from trimtab import __version__
from trimtab.policies.registry import DEFAULT_POLICY
from trimtabpb.v1 import admin_pb2


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess("--reflection") as daemon:
        yield daemon
        assert "Traceback" not in daemon.text()


def one(engine_id: str) -> admin_pb2.Selector:
    return admin_pb2.Selector(engine_ids=[engine_id])


def test_the_list_has_every_engine_in_order_and_the_controllers_version(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "list-b") as second, ScriptedEngine(daemon.target, "list-a") as first:
        second.start()
        first.start()
        answer = daemon.admin.ListEngines(admin_pb2.ListEnginesRequest())

    ids = [engine.engine_id for engine in answer.engines]
    assert ids == sorted(ids)
    assert {"list-a", "list-b"} <= set(ids)
    assert answer.controller_version == __version__


def test_an_engine_is_shown_with_the_decision_for_every_band(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "shown") as engine:
        engine.start()
        engine.next_lease()
        view = daemon.admin.GetEngine(admin_pb2.GetEngineRequest(engine_id="shown")).engine

    assert view.policy.name == DEFAULT_POLICY
    assert view.policy.bands[0].min_batch_size == 1
    assert all(band.reason and band.probability > 0 for band in view.policy.bands)
    assert view.lease.version == 1
    assert view.connected_at.seconds > 1_700_000_000


def test_a_watch_begins_with_the_engines_that_there_are_and_follows_every_report(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "watched") as engine:
        engine.start()
        updates = daemon.admin.Watch(admin_pb2.WatchRequest(selector=one("watched")), timeout=10)
        assert next(updates).engine.measured.rows == 0
        for wanted in (5, 10, 15):
            engine.report(engine.decode(5))
            while next(updates).engine.measured.rows < wanted:
                pass
        updates.cancel()


def test_a_watch_of_everything_sees_engines_that_come_later(daemon: DaemonProcess) -> None:
    updates = daemon.admin.Watch(admin_pb2.WatchRequest(), timeout=10)
    with ScriptedEngine(daemon.target, "latecomer") as engine:
        threading.Timer(0.1, engine.start).start()
        assert any(update.engine.engine_id == "latecomer" for update in updates)
    updates.cancel()


def test_a_watch_by_label_sees_only_engines_with_it(daemon: DaemonProcess) -> None:
    selector = admin_pb2.Selector(labels={"team": "watch"})
    updates = daemon.admin.Watch(admin_pb2.WatchRequest(selector=selector), timeout=10)
    with (
        ScriptedEngine(daemon.target, "other") as other,
        ScriptedEngine(daemon.target, "mine", labels={"team": "watch"}) as mine,
    ):
        other.start()
        mine.start()
        assert next(updates).engine.engine_id == "mine"
    updates.cancel()


def status_of(call: Any, request: Any) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.RpcError) as caught:
        next(call(request, timeout=10))
    return caught.value.code(), caught.value.details()


def test_unknown_engines_are_named_and_so_are_those_that_there_are(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "known") as engine:
        engine.start()
        answers = [
            status_of(daemon.admin.GetEngine, admin_pb2.GetEngineRequest(engine_id="ghost")),
            status_of(daemon.admin.Watch, admin_pb2.WatchRequest(selector=one("ghost"))),
            status_of(daemon.admin.Unpin, admin_pb2.UnpinRequest(selector=one("ghost"))),
        ]

    for code, words in answers:
        assert code == grpc.StatusCode.NOT_FOUND
        assert words is not None
        assert words.startswith("there is no engine 'ghost': known are ")
        assert "known" in words


def test_a_policy_is_set_and_learns_afresh(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "switching") as engine:
        engine.start()
        engine.follow(engine.next_lease())
        request = admin_pb2.SetPolicyRequest(selector=one("switching"), policy="fixed", parameters={"steps": "1"})
        answer = daemon.admin.SetPolicy(request)
        lease = engine.next_lease()

    assert answer.engines[0].policy.name == "fixed"
    assert {entry.mode.steps for entry in lease.table} == {1}
    assert {"fixed", "sglang-ema", "ucb"} <= {policy.name for policy in answer.known}


def test_without_a_name_set_policy_says_what_is_there_and_changes_nothing(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "asked") as engine:
        engine.start()
        answer = daemon.admin.SetPolicy(admin_pb2.SetPolicyRequest(selector=one("asked")))

    assert answer.engines[0].policy.name == DEFAULT_POLICY
    assert all(policy.summary for policy in answer.known)


BAD_POLICIES = {
    "unknown name": (
        {"policy": "ucbb"},
        grpc.StatusCode.INVALID_ARGUMENT,
        "unknown policy 'ucbb'; there are: ",
    ),
    "unknown parameter": (
        {"policy": "fixed", "parameters": {"stepz": "1"}},
        grpc.StatusCode.INVALID_ARGUMENT,
        "policy 'fixed' has no parameter 'stepz'; it takes: ",
    ),
    "not for this engine": (
        {"policy": "fixed", "parameters": {"steps": "9"}},
        grpc.StatusCode.FAILED_PRECONDITION,
        "strict cannot have policy fixed: steps 9 is not among the engine's candidates",
    ),
}


@pytest.mark.parametrize(("order", "code", "words"), BAD_POLICIES.values(), ids=BAD_POLICIES)
def test_a_policy_that_cannot_be_set_changes_nothing(
    daemon: DaemonProcess, order: dict[str, Any], code: grpc.StatusCode, words: str
) -> None:
    with ScriptedEngine(daemon.target, "strict") as engine:
        engine.start()
        got, said = status_of(daemon.admin.SetPolicy, admin_pb2.SetPolicyRequest(selector=one("strict"), **order))
        view = daemon.admin.GetEngine(admin_pb2.GetEngineRequest(engine_id="strict")).engine

    assert got == code
    assert said is not None
    assert said.startswith(words)
    assert view.policy.name == DEFAULT_POLICY


@pytest.mark.parametrize("service", ["", "trimtab.v1.ControlService", "trimtab.v1.AdminService"])
def test_health_says_serving(daemon: DaemonProcess, service: str) -> None:
    stub: Any = health_pb2_grpc.HealthStub(daemon.channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_names_the_services(daemon: DaemonProcess) -> None:
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    names = ProtoReflectionDescriptorDatabase(daemon.channel).get_services()
    assert {"trimtab.v1.ControlService", "trimtab.v1.AdminService", "grpc.health.v1.Health"} <= set(names)
