"""Shows Trimtab steering a real SGLang server on this machine's CPU (`make demo-sglang`).

Starts `trimtabd` and SGLang with a tiny model, sends prompts whose drafts are all right and prompts whose
drafts are all wrong, and prints once a second which steps the engine ran; then pins and releases it. The
times are a CPU's and say nothing about a GPU.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence

from controller_process import ControllerProcess, short_folder
from engine_server import (
    CANDIDATE_STEPS,
    ENGINE_PYTHON,
    NO_ENGINE,
    EngineServer,
    EngineSettings,
    make_models,
)
from prompts import EASY_TOKENS, HARD_TOKENS, prompts
from step_log import LoggedStep
from traffic import Traffic
from trimtabpb.v1 import control_pb2

TOKENS = 120
CONCURRENT = 4
DECIDED_BY = {
    control_pb2.InForce.SOURCE_STOCK: "SGLang's own rule",
    control_pb2.InForce.SOURCE_LEASE: "lease",
    control_pb2.InForce.SOURCE_PIN: "pin",
    control_pb2.InForce.SOURCE_FUSE: "SGLang's own rule (fuse)",
}


def main() -> int:
    """Tell the story; 0 if all of it happened."""
    if not ENGINE_PYTHON.exists():
        print(NO_ENGINE, file=sys.stderr)
        return 1
    with short_folder() as folder:
        print("Building a tiny model and its draft: easy prompts have every draft accepted, hard ones none.")
        make_models(folder / "models")
        with ControllerProcess(folder) as controller:
            print(f"trimtabd runs. Starting SGLang on the CPU (about 20 seconds), steps {list(CANDIDATE_STEPS)} ...")
            environment = {"TRIMTAB_CONTROLLER": controller.address}
            with EngineServer(EngineSettings(environment=environment), folder / "models", folder / "engine") as engine:
                controller.wait_connected(engine.engine_id)
                print(controller.run("engines"))
                Story(controller, engine).tell()
    return 0


class Story:
    """The scenes of the demo."""

    def __init__(self, controller: ControllerProcess, engine: EngineServer) -> None:
        self._controller = controller
        self._engine = engine
        self._easy = prompts(16, EASY_TOKENS, seed=1)
        self._hard = prompts(16, HARD_TOKENS, seed=2)

    def tell(self) -> None:
        """All scenes in order."""
        self._scene("Easy prompts: more drafts a step give more tokens a second.", self._easy, 10)
        self._scene("Hard prompts: every draft is wasted.", self._hard, 10)
        self._command("pin", "--all", "--plain", "--reason", "demo")
        self._scene("Easy prompts again, but an operator has pinned plain decoding.", self._easy, 5)
        self._command("unpin", "--all")
        self._scene("Released: the policy decides again.", self._easy, 8)
        print(self._controller.run("engines"))

    def _scene(self, title: str, texts: Sequence[Sequence[int]], seconds: int) -> None:
        print(f"\n{title}")
        with Traffic(self._engine, texts, TOKENS, CONCURRENT):
            for _ in range(seconds):
                began_ns = time.monotonic_ns()
                time.sleep(1)
                self._print_second(self._engine.steps.since(began_ns))

    def _print_second(self, steps: Sequence[LoggedStep]) -> None:
        counts = Counter(step.steps for step in steps)
        shares = "  ".join(f"{k}: {counts[k] / max(1, len(steps)):4.0%}" for k in CANDIDATE_STEPS)
        bar = "#" * (2 * max(counts, key=lambda k: counts[k], default=0))
        seen = self._controller.engine(self._engine.engine_id)
        decided_by = DECIDED_BY[seen.in_force.source]
        print(f"  steps {shares}   {bar:<10}  {seen.measured.goodput_tps:5.0f} tokens/s   decided by {decided_by}")

    def _command(self, *arguments: str) -> None:
        print(f"\n$ trimtab {' '.join(arguments)}")
        print(self._controller.run(*arguments).rstrip())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AssertionError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
