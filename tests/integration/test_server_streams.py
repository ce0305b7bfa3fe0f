"""What engines and the daemon say to each other on a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from support.daemon_process import DaemonProcess
from support.scripted_engine import ScriptedEngine
from trimtab.domain import speculate
from trimtabpb.v1 import admin_pb2
from trimtabpb.v1 import control_pb2 as pb


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess() as daemon:
        yield daemon
        assert "Traceback" not in daemon.text()


def seen(daemon: DaemonProcess, engine_id: str) -> admin_pb2.Engine:
    return daemon.admin.GetEngine(admin_pb2.GetEngineRequest(engine_id=engine_id)).engine


def test_a_hello_is_answered_with_a_welcome_and_a_lease_over_the_modes_on_offer(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "greeting") as engine:
        welcome = engine.start()
        lease = engine.next_lease()

    assert welcome.report_interval.ToMilliseconds() == 250
    assert welcome.limits.max_rows_per_report == 4096
    assert welcome.limits.max_message_bytes == 4 << 20
    assert welcome.controller_id
    assert lease.version == 1
    assert lease.ttl.ToMilliseconds() == 2000
    assert lease.table[0].min_batch_size <= 1
    assert {entry.mode.steps for entry in lease.table} <= {0, 1, 3}
    assert not lease.HasField("pin")


def test_a_lease_is_renewed_before_it_ends_also_without_reports(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "quiet") as engine:
        engine.start()
        first = engine.next_lease()
        engine.ack(first)
        again = engine.next_lease(timeout_s=1.6)

    assert again.version == first.version
    assert again.nonce > first.nonce
    assert again.table == first.table


def test_reports_move_the_figures_that_operators_see(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "working") as engine:
        engine.start()
        engine.follow(engine.next_lease())
        engine.report(engine.decode(20, speculate(3)), switches=2, running_requests=4, dropped={"negative_count": 7})
        engine.report(engine.decode(20, speculate(3)), switches=3, running_requests=4, dropped={"negative_count": 7})
        daemon_view = wait_for_rows(daemon, "working", 40)

    assert daemon_view.state == admin_pb2.Engine.STATE_CONNECTED
    assert daemon_view.lease.acknowledged
    assert daemon_view.measured.accepted_drafts == pytest.approx(0.75)
    assert daemon_view.measured.step_ms == pytest.approx(8)
    assert daemon_view.measured.batch_size == 4
    assert daemon_view.measured.goodput_tps == pytest.approx(700)
    assert daemon_view.measured.switches == 3
    assert daemon_view.measured.dropped == {"negative_count": 7}
    assert daemon_view.hello.speculation.algorithm == "EAGLE"


def wait_for_rows(daemon: DaemonProcess, engine_id: str, rows: int) -> admin_pb2.Engine:
    request = admin_pb2.WatchRequest(selector=admin_pb2.Selector(engine_ids=[engine_id]))
    for update in daemon.admin.Watch(request, timeout=10):
        if update.engine.measured.rows >= rows:
            return update.engine
    raise AssertionError("the watch ended")


def test_a_refused_lease_is_shown_with_its_reason(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "refusing") as engine:
        engine.start()
        engine.refuse(engine.next_lease(), pb.REFUSAL_NO_STATE, "steps 3 were not built")
        engine.report()
        engine.next_lease()
        view = seen(daemon, "refusing")

    assert not view.lease.acknowledged
    assert view.lease.refusal == "no_state: steps 3 were not built"
    assert view.refused == {"lease_no_state": 1}
    assert daemon.logged("lease_refused")["why"] == "no_state: steps 3 were not built"


def test_an_engine_that_only_observes_gets_no_lease(daemon: DaemonProcess) -> None:
    with ScriptedEngine(
        daemon.target, "watching", modes=[], acts=False, observe_reasons=["no adaptive mode"]
    ) as engine:
        engine.start()
        engine.report(engine.decode(5))
        with pytest.raises(AssertionError, match="no lease"):
            engine.next_lease(timeout_s=0.5)
        view = seen(daemon, "watching")

    assert list(view.hello.observe_reasons) == ["no adaptive mode"]
    assert not view.HasField("lease")


def test_a_goodbye_ends_the_stream_in_good_order_and_the_engine_stays_known(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "leaving") as engine:
        engine.start()
        engine.goodbye("SIGTERM")

        assert engine.end() == (grpc.StatusCode.OK, "")
    assert seen(daemon, "leaving").state == admin_pb2.Engine.STATE_DISCONNECTED


def test_an_engine_that_comes_back_gets_a_newer_lease_than_it_ever_had(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "returning") as engine:
        engine.start()
        engine.follow(engine.next_lease())
        engine.close()
        wait_until_gone(daemon, "returning")
        engine.start()

        assert engine.next_lease().version == engine.last_version + 1


def wait_until_gone(daemon: DaemonProcess, engine_id: str) -> None:
    request = admin_pb2.WatchRequest(selector=admin_pb2.Selector(engine_ids=[engine_id]))
    for update in daemon.admin.Watch(request, timeout=10):
        if update.engine.state == admin_pb2.Engine.STATE_DISCONNECTED:
            return


def test_a_second_live_stream_of_the_same_engine_is_refused_and_the_first_goes_on(daemon: DaemonProcess) -> None:
    with (
        ScriptedEngine(daemon.target, "twin") as first,
        ScriptedEngine(daemon.target, "twin", boot_id="boot-2") as second,
        ScriptedEngine(daemon.target, "twin", topology=pb.Topology(dp_rank=1)) as other_rank,
    ):
        first.start()
        second.connect()
        second.hello()
        code, words = second.end()
        other_rank.start()
        first.next_lease()
        first.report()

        assert code == grpc.StatusCode.ALREADY_EXISTS
        assert "engine twin is connected already (boot id boot-1)" in words
        assert "TRIMTAB_ENGINE_ID" in words
        assert first.next_lease()
        assert seen(daemon, "twin/1").state == admin_pb2.Engine.STATE_CONNECTED


FIRST_MESSAGES = {
    "a report": ({"report": pb.Report(seq=1)}, "hello: must be the first message of a stream, report came instead"),
    "nothing known": ({}, "hello: must be the first message of a stream, an unknown one came instead"),
    "a Hello without an id": (
        {"hello": pb.Hello(protocol_version=1, boot_id="b")},
        "hello.engine_id: is empty",
    ),
}


@pytest.mark.parametrize(("message", "words"), FIRST_MESSAGES.values(), ids=FIRST_MESSAGES)
def test_a_stream_that_does_not_begin_with_a_proper_hello_is_ended(
    daemon: DaemonProcess, message: dict[str, pb.Report], words: str
) -> None:
    with ScriptedEngine(daemon.target) as engine:
        engine.connect()
        engine.say(**message)

        assert engine.end() == (grpc.StatusCode.INVALID_ARGUMENT, words)


LATER_MESSAGES = {
    "a second Hello": (
        {"hello": pb.Hello()},
        (grpc.StatusCode.INVALID_ARGUMENT, "hello: came a second time on one stream"),
    ),
    "a report without a number": (
        {"report": pb.Report()},
        (grpc.StatusCode.INVALID_ARGUMENT, f"report.seq: must be 1 to {1 << 62}, is 0"),
    ),
    "more rows than allowed": (
        {"report": pb.Report(seq=1, rows=pb.StepRows(step=range(4097)))},
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "report.rows: has 4097 rows, at most 4096"),
    ),
    "an unknown refusal": (
        {"ack": pb.Ack(refusal=99)},  # type: ignore[arg-type]
        (grpc.StatusCode.INVALID_ARGUMENT, "ack.refusal: 99 is not a known refusal"),
    ),
}


@pytest.mark.parametrize(("message", "status"), LATER_MESSAGES.values(), ids=LATER_MESSAGES)
def test_a_message_that_cannot_be_used_ends_the_stream_and_names_the_field(
    daemon: DaemonProcess, message: dict[str, pb.Report], status: tuple[grpc.StatusCode, str]
) -> None:
    with ScriptedEngine(daemon.target, "clumsy") as engine:
        engine.start()
        engine.say(**message)

        assert engine.end() == status
    assert seen(daemon, "clumsy").refused["message"] >= 1


def test_a_message_that_is_too_large_ends_the_stream(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "verbose") as engine:
        engine.start()
        engine.say(goodbye=pb.Goodbye(reason="x" * (4 << 20)))

        assert engine.end()[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert seen(daemon, "verbose").state == admin_pb2.Engine.STATE_DISCONNECTED


def test_bytes_that_are_no_message_end_that_stream_alone(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "healthy") as engine, grpc.insecure_channel(daemon.target) as channel:
        engine.start()
        raw: Any = channel.stream_stream("/trimtab.v1.ControlService/Connect")
        with pytest.raises(grpc.RpcError):
            list(raw(iter([b"\xff\xff\xff"]), timeout=5))
        engine.report()

        assert engine.next_lease()


def test_bad_rows_are_left_out_and_counted_and_the_stream_goes_on(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "sloppy") as engine:
        engine.start()
        rows = pb.StepRows(
            launch_id=[1, 2], step=[1, 2], result_ns=[10, 20], mode_kind=[pb.Mode.KIND_SPECULATE] * 2,
            mode_steps=[3, 99], batch_size=[1, 1], emitted_tokens=[2, 2], step_ns=[5, 5], wall_gap_ns=[5],
        )  # fmt: skip
        engine.report(rows)
        view = wait_for_rows(daemon, "sloppy", 1)

    assert view.measured.rows == 1
    assert view.refused == {"mode_range": 1, "wall_gap_ns_length": 1}


def test_missing_and_repeated_reports_are_counted(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "gappy") as engine:
        engine.start()
        for seq in (1, 4, 4, 2):
            engine.report(engine.decode(1), seq=seq)
        engine.report(engine.decode(1), seq=5)
        view = wait_for_rows(daemon, "gappy", 3)

    assert view.refused == {"missing_report": 2, "duplicate_report": 2}
