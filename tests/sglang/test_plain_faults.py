"""Whatever fails in native plain: the engine goes on as SGLang's own, no token changes, and the draft comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from circles import PERIOD, circle
from engine_server import INITIAL_STEPS, OVERLAP, EngineFactory, EngineSettings
from plain_faults import FAULT, install
from steering import Steering
from support.scripted_controller import ScriptedController
from trimtab.domain import PLAIN_NATIVE, speculate

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(180)]

PROMPT_TOKENS = PERIOD + 8
PLAIN_ROUNDS, TOKENS = 40, 300


@pytest.mark.parametrize(("kind", "number"), [("native", PLAIN_ROUNDS), ("catch_up", 1)])
def test_after_a_fault_the_request_ends_right_and_the_engine_serves_on(
    new_engine: EngineFactory, tmp_path: Path, kind: str, number: int
) -> None:
    overlap = OVERLAP if kind == "native" else {}
    with ScriptedController() as controller:
        environment = {"TRIMTAB_CONTROLLER": controller.target, FAULT: f"{kind}:{number}", **install(tmp_path / "f")}
        engine = new_engine(EngineSettings("echo", "fixed", environment=environment | overlap))
        # Not entered: the log has the fault.
        engine.launch()
        try:
            engine.wait_ready()
            steering = Steering(controller).meet()
            steering.run(PLAIN_NATIVE)
            answer = engine.submit(circle(0, PROMPT_TOKENS), TOKENS)
            engine.steps.wait_for(lambda steps: len(steps) >= PLAIN_ROUNDS, 0, 60)
            if kind == "catch_up":
                steering.run(speculate(INITIAL_STEPS))
            first, second = answer.result(), engine.generate(circle(3, PROMPT_TOKENS), TOKENS)
            complaints = [line for line in engine.complaints() if "trimtab" in line]
        finally:
            engine.stop()
    assert first.tokens == tuple(circle(0, TOKENS, PROMPT_TOKENS))
    assert second.tokens == tuple(circle(3, TOKENS, PROMPT_TOKENS))
    assert ["a fault made by a test" in line for line in complaints] == [True]
    drafted = TOKENS // (INITIAL_STEPS + 1)
    assert second.rounds is not None
    assert second.rounds <= drafted + 2
    if kind == "native":
        assert first.rounds is not None
        assert PLAIN_ROUNDS <= first.rounds <= PLAIN_ROUNDS + drafted
