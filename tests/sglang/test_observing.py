"""Where there is no mode to choose the plugin observes: rows come in, and it says why it does not act."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller_process import ControllerProcess
from engine_server import EngineFactory, EngineServer, EngineSettings
from prompts import ALL_TOKENS, prompts
from trimtabpb.v1 import admin_pb2
from waiting import wait_until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(240)]

PROMPTS = prompts(8, ALL_TOKENS, seed=8)
TOKENS = 100


@pytest.fixture(scope="module")
def fixed_engine(observing_controller: ControllerProcess, new_engine: EngineFactory) -> Iterator[EngineServer]:
    environment = {
        "TRIMTAB_CONTROLLER": observing_controller.address, "TRIMTAB_MODE": "act", "TRIMTAB_NATIVE_PLAIN": "0",
    }  # fmt: skip
    with new_engine(EngineSettings("cycle", "fixed", environment=environment)) as engine:
        yield engine


def test_beside_a_server_with_fixed_steps_and_no_native_plain_the_plugin_observes(
    fixed_engine: EngineServer, observing_controller: ControllerProcess
) -> None:
    seen = observed(fixed_engine, observing_controller)
    assert any("adaptive" in reason for reason in seen.hello.observe_reasons)
    assert seen.hello.speculation.algorithm == "EAGLE"
    assert not seen.hello.speculation.adaptive
    assert {step.steps for step in fixed_engine.steps.all()} == {3}
    assert seen.measured.accepted_drafts > 0


def test_beside_a_server_without_speculation_the_plugin_observes(
    plain_engine: EngineServer, observing_controller: ControllerProcess
) -> None:
    seen = observed(plain_engine, observing_controller)
    assert any("specul" in reason for reason in seen.hello.observe_reasons)
    assert seen.hello.speculation.algorithm == ""
    assert not seen.measured.HasField("accepted_drafts")


def observed(engine: EngineServer, controller: ControllerProcess) -> admin_pb2.Engine:
    """What the controller knows of the engine after some traffic; checks what all observed engines share."""
    assert not controller.wait_connected(engine.engine_id).hello.acts
    began = len(engine.steps.all())
    answers = engine.generate_all(PROMPTS, TOKENS)
    assert {len(answer.tokens) for answer in answers} == {TOKENS}
    ran = len(engine.steps.all()) - began
    seen = wait_until("rows come in", lambda: with_rows(controller.engine(engine.engine_id), ran), 5)
    assert list(seen.hello.modes) == []
    assert seen.measured.goodput_tps > 0
    return seen


def with_rows(engine: admin_pb2.Engine, at_least: int) -> admin_pb2.Engine | None:
    return engine if engine.measured.rows >= at_least else None
