"""The controller steers a real engine: up, down, by hand, and through the controller's own death.

Controller, command line and engine are processes of their own, at the default report interval (250 ms) and
lease life (2 s).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from controller_process import ControllerProcess
from engine_server import EngineFactory, EngineServer, EngineSettings
from prompts import EASY_TOKENS, HARD_TOKENS, prompts
from step_log import LoggedStep, share_with
from traffic import Traffic
from trimtabpb.v1 import control_pb2
from waiting import wait_until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(180)]

EASY = prompts(8, EASY_TOKENS, seed=1)
HARD = prompts(8, HARD_TOKENS, seed=2)
TOKENS = 400
CONCURRENT = 4
TWO_REPORT_INTERVALS_S = 0.5
LEASE_LIFE_S = 2.0
NO_STEPS = ("policy", "--all", "--set", "fixed", "-p", "steps=0")
LEARN_S = 25.0
LOOK_BACK_S = 1.5
LONGEST_WAIT_S = 1.5
LEASE = control_pb2.InForce.SOURCE_LEASE
PIN = control_pb2.InForce.SOURCE_PIN
STOCK = control_pb2.InForce.SOURCE_STOCK


@pytest.fixture(scope="module")
def controller(controller_folder: Path) -> Iterator[ControllerProcess]:
    with ControllerProcess(controller_folder) as controller:
        yield controller


@pytest.fixture(scope="module")
def engine(controller: ControllerProcess, new_engine: EngineFactory) -> Iterator[EngineServer]:
    settings = EngineSettings("cycle", environment={"TRIMTAB_CONTROLLER": controller.address, "TRIMTAB_MODE": "act"})
    with new_engine(settings) as engine:
        controller.wait_connected(engine.engine_id)
        yield engine


def test_easy_prompts_move_the_steps_up_and_hard_ones_down(engine: EngineServer, controller: ControllerProcess) -> None:
    with Traffic(engine, EASY, TOKENS, CONCURRENT):
        wait_until("many steps on easy prompts", lambda: mostly(engine, 3, 5), LEARN_S)
        assert controller.engine(engine.engine_id).in_force.source == LEASE
    with Traffic(engine, HARD, TOKENS, CONCURRENT):
        wait_until("0 or 1 step on hard prompts", lambda: mostly(engine, 0, 1), LEARN_S)
        assert controller.engine(engine.engine_id).in_force.source == LEASE


def test_pin_all_plain_is_in_force_within_two_report_intervals_and_unpin_gives_control_back(
    engine: EngineServer, controller: ControllerProcess
) -> None:
    with Traffic(engine, EASY, TOKENS, CONCURRENT):
        wait_until("many steps on easy prompts", lambda: mostly(engine, 3, 5), LEARN_S)
        controller.run("pin", "--all", "--plain")
        pinned = controller.engine(engine.engine_id)
        assert pinned.in_force.source == PIN
        ordered_ns = monotonic_ns_of(pinned.pinned_at.ToNanoseconds())
        time.sleep(1.5)
        assert all_steps(engine.steps.since(ordered_ns + seconds_ns(TWO_REPORT_INTERVALS_S))) == {0}

        controller.run("unpin", "--all")
        wait_until("many steps again", lambda: mostly(engine, 3, 5), LEARN_S)
        assert controller.engine(engine.engine_id).in_force.source == LEASE


def test_a_killed_controller_costs_nothing_and_a_new_one_takes_over(
    engine: EngineServer, controller: ControllerProcess
) -> None:
    """Under the lease easy prompts are decoded plainly, which SGLang's own rule would never do."""
    controller.run(*NO_STEPS)
    with Traffic(engine, EASY, TOKENS, CONCURRENT) as traffic:
        wait_until("plain decoding", lambda: mostly(engine, 0), LEARN_S)
        killed_ns = time.monotonic_ns()
        controller.kill()
        time.sleep(LEASE_LIFE_S + 2.0)
        orphaned = engine.steps.since(killed_ns + seconds_ns(LEASE_LIFE_S))
        assert len(orphaned) > 20
        assert all_steps(orphaned) <= {1, 3, 5}
        assert engine.current_steps() in (1, 3, 5)

        controller.start()
        controller.wait_connected(engine.engine_id)
        controller.run(*NO_STEPS)
        wait_until("plain decoding under the new controller", lambda: mostly(engine, 0), LEARN_S)
        assert controller.engine(engine.engine_id).in_force.source == LEASE
    assert traffic.longest_wait_s < LONGEST_WAIT_S
    assert {answer.finish_reason for answer in traffic.answers} == {"length"}
    assert {len(answer.tokens) for answer in traffic.answers} == {TOKENS}


def mostly(engine: EngineServer, *wanted: int) -> bool:
    """Whether the decode steps of the last while ran with these numbers of drafts, nine of ten."""
    recent = engine.steps.since(time.monotonic_ns() - seconds_ns(LOOK_BACK_S))
    return len(recent) >= 20 and share_with(recent, wanted.__contains__) >= 0.9


def all_steps(steps: Sequence[LoggedStep]) -> set[int]:
    assert steps, "no decode step ran"
    return {step.steps for step in steps}


def seconds_ns(seconds: float) -> int:
    return round(seconds * 1e9)


def monotonic_ns_of(wall_ns: int) -> int:
    """The monotonic time at this wall-clock time, both of this machine."""
    return wall_ns - time.time_ns() + time.monotonic_ns()
