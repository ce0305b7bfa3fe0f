"""Engines with several ranks before a real daemon, and the plugin's stream when ranks disagree."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.command_line import trimtab
from support.daemon_process import DaemonProcess
from support.hooked_engine import one_mode_lease
from support.ranked_engine import RankedEngine
from support.scripted_controller import ScriptedController
from support.scripted_engine import ScriptedEngine
from trimtab.domain import Pin, speculate
from trimtab.wire import mode_to_wire
from trimtab_sglang import together
from trimtab_sglang.settings import PluginSettings
from trimtabpb.v1 import admin_pb2
from trimtabpb.v1 import control_pb2 as pb

TWO_RANKS = pb.Topology(tp_size=2, pp_size=1, dp_size=1, ranks=2, nodes=1, summary="tensor parallel 2")


@pytest.fixture
def daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess() as daemon:
        yield daemon
        assert "Traceback" not in daemon.text()


def rank_steps(step: int, *batch_sizes: int) -> list[pb.RankStep]:
    """What the ranks chose; each batch size has a digest of its own."""
    mode = mode_to_wire(speculate(3))
    return [
        pb.RankStep(rank=rank, step=step, mode=mode, batch_size=size, digest=1_000 + size)
        for rank, size in enumerate(batch_sizes)
    ]


# -- the daemon ----------------------------------------------------------------------------------


def test_a_forged_digest_raises_the_alarm_and_pins_the_engine(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "a", topology=TWO_RANKS) as engine:
        engine.start()
        engine.follow(engine.next_lease())
        engine.report(engine.decode(), ranks=rank_steps(399, 24, 24))
        shown = trimtab(daemon.target, "show", "a", "--json").data
        assert (shown["alarms"], shown["rank_divergence"], shown["topology"]["ranks"]) == ([], None, 2)

        engine.report(engine.decode(), ranks=rank_steps(400, 24, 25))
        pinned = engine.pinned_lease()
        engine.follow(pinned)
        assert (pinned.pin.owner, pinned.pin.mode) == ("trimtab", engine.in_force.mode)
        assert pinned.pin.reason.startswith("rank_divergence at step 400")

        shown = trimtab(daemon.target, "show", "a", "--json").data
        assert shown["alarms"] == ["rank_divergence"]
        assert shown["rank_divergence"].startswith("at step 400: rank 1 ran speculate(3) for a batch of 25")
        assert shown["pin"]["owner"] == "trimtab"
        assert "disagree at step 400" in trimtab(daemon.target, "show", "a").out
        (alarm,) = [line for line in daemon.log() if line["event"] == "rank_divergence"]
        assert (alarm["level"], alarm["engine"], alarm["step"]) == ("warning", "a", 400)


def test_an_engine_that_dies_right_after_it_has_raised_the_alarm(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "a", topology=TWO_RANKS) as engine:
        engine.start()
        engine.follow(engine.next_lease())
        engine.report(engine.decode(), ranks=rank_steps(7, 1, 2))
        engine.pinned_lease()
        engine.close()
    assert [line["event"] for line in daemon.log()].count("rank_divergence") == 1


def test_ranks_out_of_range_end_the_stream(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "a") as engine:
        engine.start()
        engine.report(ranks=[pb.RankStep(rank=1 << 30, mode=mode_to_wire(speculate(3)))])
        assert "report.ranks[0].rank" in engine.end()[1]


# -- replicas of one server ----------------------------------------------------------------------


def replica(daemon: DaemonProcess, rank: int) -> ScriptedEngine:
    return ScriptedEngine(daemon.target, "a", boot_id=f"boot-{rank}", topology=pb.Topology(dp_size=2, dp_rank=rank))


def test_the_id_of_a_server_means_all_its_replicas_and_id_rank_one(daemon: DaemonProcess) -> None:
    with replica(daemon, 0) as first, replica(daemon, 1) as second, ScriptedEngine(daemon.target, "b") as other:
        for engine in (first, second, other):
            engine.start()
            engine.follow(engine.next_lease())

        listed = trimtab(daemon.target, "engines", "--json").data
        assert [engine["engine_id"] for engine in listed] == ["a", "a/1", "b"]

        def order(*ids: str) -> list[str]:
            selector = admin_pb2.Selector(engine_ids=ids)
            answer = daemon.admin.Pin(admin_pb2.PinRequest(selector=selector, any_plain=True))
            return [engine.engine_id for engine in answer.engines]

        assert order("a") == ["a", "a/1"]
        first.pinned_lease()
        second.pinned_lease()
        assert order("a/0") == ["a"]
        assert order("a/1", "a/1") == ["a/1"]
        assert order("a", "a/1") == ["a", "a/1"]
        assert trimtab(daemon.target, "show", "a", "--json").data["engine_id"] == "a"
        assert trimtab(daemon.target, "show", "a/1", "--json").data["topology"]["dp_rank"] == 1
        assert "there is no engine a/2" in trimtab(daemon.target, "show", "a/2").complaint.replace("'", "")


# -- the plugin's stream -------------------------------------------------------------------------


@contextmanager
def decoding(engine: RankedEngine) -> Iterator[RankedEngine]:
    """The engine, decoding on a thread of its own."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(0.002):
            engine.now_ns = time.monotonic_ns()
            engine.step(4)

    thread = threading.Thread(target=loop, name="scheduler")
    thread.start()
    try:
        with engine.ranks[0]:
            yield engine
    finally:
        over.set()
        thread.join()


def linked(controller: ScriptedController, **fields: Any) -> RankedEngine:
    return RankedEngine(settings=PluginSettings(controller=controller.target, engine_id="e"), linked=True, **fields)


def test_reports_say_what_every_rank_chose() -> None:
    with ScriptedController() as controller, decoding(linked(controller)):
        hello = controller.next_hello()
        assert (hello.acts, hello.topology.ranks) == (True, 2)
        assert controller.lease(one_mode_lease(speculate(5))).accepted
        time.sleep(0.1)
        controller.forget_reports()
        first, second = controller.next_report().ranks
        assert (first.rank, second.rank) == (0, 1)
        assert (first.step, first.mode, first.batch_size, first.digest) == (
            second.step, second.mode, second.batch_size, second.digest,
        )  # fmt: skip
        assert (first.mode.steps, first.batch_size) == (5, 4)


def test_a_failure_on_the_second_rank_is_the_first_ones_fuse() -> None:
    with ScriptedController() as controller, decoding(linked(controller)) as engine:
        controller.next_hello()
        engine.ranks[1].plugin.fuse.blow("here", ValueError("x"))
        time.sleep(0.1)
        controller.forget_reports()
        in_force = controller.next_report().in_force
        assert in_force.source == pb.InForce.SOURCE_FUSE
        assert in_force.fuse_reason == "rank 1: RankGaveUpError: here: ValueError: x"


@pytest.mark.parametrize("report_interval_s", [0.1, 5.0])
def test_a_rank_that_goes_under_is_reported_before_it_does(report_interval_s: float) -> None:
    with ScriptedController(report_interval_s=report_interval_s) as controller, linked(controller).ranks[0] as first:
        engine_ranks = first.plugin.team
        assert engine_ranks is not None
        first.idle()
        controller.next_hello()
        while not (first.plugin.link and first.plugin.link.has_controller):
            time.sleep(0.01)
        for rank in (0, 1):
            engine_ranks.words.noter(rank)(1, speculate(3), 3, 4 + rank)
        answered: list[float] = []

        def answer() -> None:
            while not controller.next_report().ranks:
                pass
            controller.lease(one_mode_lease(speculate(3), pin=Pin("p", speculate(3))))
            answered.append(time.monotonic())

        thread = threading.Thread(target=answer)
        thread.start()
        began = time.monotonic()
        together.wait_until_heard(engine_ranks)
        waited_s = time.monotonic() - began
        thread.join()
        assert answered
        assert waited_s < together.LAST_WORDS_S
