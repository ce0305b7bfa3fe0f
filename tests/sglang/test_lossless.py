"""Speculation changes how fast tokens come, never which tokens: also while the steps change all the time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import cycle
from pathlib import Path

import pytest

from controller_process import ControllerProcess
from engine_server import OVERLAP, Answer, EngineFactory, EngineServer, EngineSettings
from prompts import ALL_TOKENS, prompts
from step_log import changes
from trimtab.cli.client import Controller
from trimtabpb.v1 import admin_pb2, control_pb2

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(240)]

PROMPTS = prompts(24, ALL_TOKENS, seed=3)
TOKENS = 240
BETWEEN_PINS_S = 0.25
WANTED_CHANGES = 20
MOST_ROUNDS = 5


@pytest.fixture(scope="module")
def controller(controller_folder: Path) -> Iterator[ControllerProcess]:
    with ControllerProcess(controller_folder) as controller:
        yield controller


@pytest.fixture(scope="module")
def engine(controller: ControllerProcess, new_engine: EngineFactory) -> Iterator[EngineServer]:
    """An engine whose results come one step after their launch, as on a GPU."""
    environment = {"TRIMTAB_CONTROLLER": controller.address, "TRIMTAB_MODE": "act", **OVERLAP}
    settings = EngineSettings("noisy", environment=environment)
    with new_engine(settings) as engine:
        controller.wait_connected(engine.engine_id)
        yield engine


def test_greedy_output_is_plain_decodings_token_for_token_while_the_steps_change(
    plain_engine: EngineServer, engine: EngineServer, controller: ControllerProcess
) -> None:
    expected = [answer.tokens for answer in plain_engine.generate_all(PROMPTS, TOKENS)]
    modes = cycle(controller.engine(engine.engine_id).hello.modes)
    began_ns = time.monotonic_ns()
    for _ in range(MOST_ROUNDS):
        answers = [engine.submit(prompt, TOKENS) for prompt in PROMPTS]
        with controller.admin() as admin:
            while not all(answer.done() for answer in answers):
                pin(admin, engine, next(modes))
                time.sleep(BETWEEN_PINS_S)
        assert tokens_of(answers) == expected
        if changes(engine.steps.since(began_ns)) >= WANTED_CHANGES:
            break
    ran = engine.steps.since(began_ns)
    assert changes(ran) >= WANTED_CHANGES
    assert {step.steps for step in ran} == {0, 1, 3, 5}


def pin(admin: Controller, engine: EngineServer, mode: control_pb2.Mode) -> None:
    admin.pin(admin_pb2.PinRequest(selector=admin_pb2.Selector(engine_ids=[engine.engine_id]), mode=mode))


def tokens_of(answers: list[Future[Answer]]) -> list[tuple[int, ...]]:
    return [answer.result().tokens for answer in answers]
