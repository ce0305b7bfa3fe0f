"""A real server's life around the plugin: switched off, stopped, and with other weights under it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller_process import ControllerProcess, short_folder
from engine_server import EngineFactory, EngineServer, EngineSettings
from prompts import ALL_TOKENS, prompts
from trimtabpb.v1 import admin_pb2
from waiting import wait_until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(240)]

PROMPTS = prompts(4, ALL_TOKENS, seed=5)
TOKENS = 60
# SGLang itself looks every five seconds whether it was told to stop, and then waits for its children.
STOP_WITHIN_S = 20.0

HOOKED = """
import json, sys
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
load_plugins()
ours = [target for target, hooks in HookRegistry._hooks.items() for _, _, source in hooks
        if source is not None and source.plugin_name == "trimtab"]
print(json.dumps({"ours": ours, "grpc": "grpc" in sys.modules}))
"""


@pytest.fixture
def controller() -> Iterator[ControllerProcess]:
    with short_folder() as folder, ControllerProcess(folder) as controller:
        yield controller


def acting(controller: ControllerProcess, new_engine: EngineFactory) -> EngineServer:
    environment = {"TRIMTAB_CONTROLLER": controller.address, "TRIMTAB_MODE": "act"}
    return new_engine(EngineSettings("noisy", environment=environment))


@pytest.mark.parametrize(("mode", "hooked"), [("off", False), ("act", True)])
def test_one_variable_turns_everything_off(mode: str, hooked: bool, engine_python: Path) -> None:
    done = subprocess.run(
        [engine_python, "-c", HOOKED], env={"TRIMTAB_MODE": mode, "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    assert bool(found["ours"]) == hooked
    assert not found["grpc"]


def test_a_server_that_stops_says_goodbye_and_leaves_nobody_behind(
    controller: ControllerProcess, new_engine: EngineFactory
) -> None:
    engine = acting(controller, new_engine)
    engine.launch()
    engine.wait_ready()
    controller.wait_connected(engine.engine_id)
    engine.generate_all(PROMPTS, TOKENS)
    began = time.monotonic()
    engine.send_signal(signal.SIGTERM)
    wait_until("the server is gone", lambda: not engine.processes(), STOP_WITHIN_S)
    print(f"stopped after {time.monotonic() - began:.1f} s")
    assert "goodbye: engine stops" in controller.log_path.read_text()
    assert engine.complaints() == []
    engine.stop()


def test_other_weights_make_the_controller_forget_what_was_accepted(
    controller: ControllerProcess, new_engine: EngineFactory
) -> None:
    with acting(controller, new_engine) as engine:
        controller.wait_connected(engine.engine_id)
        engine.generate_all(PROMPTS, TOKENS)
        update_weights(engine, "step-200")
        answers = engine.generate_all(PROMPTS, TOKENS)
        assert {len(answer.tokens) for answer in answers} == {TOKENS}
        wait_until("the controller forgets", lambda: "acceptance_forgotten" in controller.log_path.read_text(), 5)
        assert "step-200" in controller.log_path.read_text()
        # The log of the daemon says once what it knows; a later Hello says the same.
        assert controller.engine(engine.engine_id).state == admin_pb2.Engine.STATE_CONNECTED


def update_weights(engine: EngineServer, version: str) -> None:
    """Have the server read its weights anew."""
    body = {"model_path": str(engine.target_path), "weight_version": version, "flush_cache": True}
    request = urllib.request.Request(
        engine.url("/update_weights_from_disk"), json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.loads(response.read())
    assert answer["success"], answer
