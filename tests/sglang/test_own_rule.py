"""Without a controller an engine with the plugin does exactly what SGLang does by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine_server import EngineFactory, EngineServer, EngineSettings
from prompts import ALL_TOKENS, prompts
from step_log import changes

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(240)]

PROMPTS = prompts(50, ALL_TOKENS, seed=50)
TOKENS = 48
WITHOUT_TRIMTAB = {"SGLANG_PLUGINS": "sglang_cpu,step_log"}


@pytest.fixture(scope="module")
def engines(new_engine: EngineFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EngineServer]]:
    """A stock engine, and one whose plugin looks for a controller that is not there."""
    nobody = tmp_path_factory.mktemp("nobody") / "trimtabd.sock"
    alone = {"TRIMTAB_CONTROLLER": f"unix:{nobody}", "TRIMTAB_MODE": "act"}
    engines = [new_engine(EngineSettings("cycle", environment=variables)) for variables in (WITHOUT_TRIMTAB, alone)]
    try:
        for engine in engines:
            engine.launch()
        for engine in engines:
            engine.wait_ready()
        yield engines
        assert [engine.complaints() for engine in engines] == [[], []]
    finally:
        for engine in engines:
            engine.stop()


def test_the_sequence_of_steps_is_a_stock_engines_on_50_prompts_at_batch_1(engines: list[EngineServer]) -> None:
    stock, alone = engines
    for engine in engines:
        assert loads_trimtab(engine) == (engine is alone)
    assert steps_of_each_prompt(alone) == steps_of_each_prompt(stock)
    # The comparison says something only if there was something to decide.
    assert changes(stock.steps.all()) > 100


def steps_of_each_prompt(engine: EngineServer) -> list[list[int]]:
    """The steps of every decode step, prompt by prompt, one prompt at a time."""
    sequences = []
    for prompt in PROMPTS:
        before = len(engine.steps.all())
        assert len(engine.generate(prompt, TOKENS).tokens) == TOKENS
        sequences.append([step.steps for step in engine.steps.all()[before:]])
    return sequences


def loads_trimtab(engine: EngineServer) -> bool:
    return "trimtab acts beside SGLang" in engine.log_path.read_text()
