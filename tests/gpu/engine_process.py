"""One SGLang engine in a process of its own, for measurements: takes orders, says how long they took.

Run as a script it is that process: the first line on stdin is the engine's arguments, every further one an order, each
answered by a line of JSON on the descriptor ENGINE_ANSWERS (stdout belongs to SGLang's log).

    {"generate": REQUESTS, "prompt_tokens": N, "tokens": N, "seed": N}    all at once, to the end
    {"generate": ..., "profile": FOLDER, "steps": N}    the same, with a trace of so many steps
    {"hold": REQUESTS, ...}       the same round and round in the background, until
    {"release": true}
    {"closed": ...}, {"open": ...}, {"work": ...}     what `load_client.Clients` does, with its arguments
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bench_orders import FOLDER, Phase
from load_client import Clients
from load_file import Lengths, Open

ANSWERS = "ENGINE_ANSWERS"
LOG_END_BYTES = 500_000
VOCABULARY = "ENGINE_VOCABULARY"
# A JSON file with prompts as token ids, by class.
PROMPTS = "ENGINE_PROMPTS"


class EngineEndedError(Exception):
    """The engine's process is gone; the message is the end of its log."""


class EngineProcess:
    """An engine, seen from the script that measures it.

    Args:
        name: Of its log.
        folder: Where the log goes.
        arguments: Of `sglang.Engine`.
        environment: Further variables.
    """

    def __init__(self, name: str, folder: Path, arguments: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.log_path = folder / f"{name}.log"
        reading, writing = os.pipe()
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__], env={**os.environ, **environment, ANSWERS: str(writing)},
                stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, pass_fds=(writing,),
                start_new_session=True,
            )  # fmt: skip
        os.close(writing)
        self._answers = os.fdopen(reading)
        self._say(arguments)

    def ready(self) -> float:
        """Wait until it serves; seconds that its start took."""
        return float(self._answer()["ready"])

    def generate(self, requests: int, prompt_tokens: int, tokens: int, seed: int) -> float:
        """Generate so many tokens for each of so many requests at once; seconds."""
        self._say({"generate": requests, "prompt_tokens": prompt_tokens, "tokens": tokens, "seed": seed})
        return float(self._answer()["seconds"])

    def profile(self, folder: Path, steps: int, requests: int, prompt_tokens: int, tokens: int, seed: int) -> None:
        """Generate, and leave SGLang's own trace of the first steps in the folder."""
        wish = {"profile": str(folder), "steps": steps}
        self._say({"generate": requests, "prompt_tokens": prompt_tokens, "tokens": tokens, "seed": seed, **wish})
        self._answer()

    def hold(self, requests: int, prompt_tokens: int, tokens: int, seed: int) -> None:
        """Keep requests running until `release`."""
        self._say({"hold": requests, "prompt_tokens": prompt_tokens, "tokens": tokens, "seed": seed})
        self._answer()

    def load(self, kind: str, **arguments: Any) -> dict[str, Any]:
        """Have the engine's clients do this ("closed", "open", "work"); what came of their requests."""
        self._say({kind: msgspec.to_builtins(arguments)})
        return self._answer()

    def release(self) -> None:
        """Let the requests that run come to their end, and send no more."""
        self._say({"release": True})
        self._answer()

    def stop(self) -> None:
        """End the whole process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        _shorten(self.log_path)

    def log_tail(self, lines: int = 25) -> str:
        """The end of its log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _say(self, order: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise EngineEndedError(self.log_tail()) from error

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise EngineEndedError(self.log_tail())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineEndedError(f"{answer['error']}\n{self.log_tail()}")
        return answer


def _shorten(log: Path) -> None:
    """Leave beginning and end of a long log: results travel, and nobody reads the middle."""
    text = log.read_bytes()
    if len(text) > 2 * LOG_END_BYTES:
        log.write_bytes(text[:LOG_END_BYTES] + b"\n...\n" + text[-LOG_END_BYTES:])


class Served:
    """The engine, in its own process."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._over = threading.Event()
        self._holder: threading.Thread | None = None
        self._vocabulary = int(os.environ.get(VOCABULARY, "100000"))
        folder = os.environ.get(FOLDER)
        self._folder = Path(folder) if folder else None
        classes = json.loads(Path(os.environ[PROMPTS]).read_text()) if os.environ.get(PROMPTS) else {}
        self._clients = Clients(engine, self._folder, self._vocabulary, classes) if self._folder else None

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out one order."""
        if "release" in order:
            self._over.set()
            if self._holder is not None:
                self._holder.join()
            return {"released": True}
        if "hold" in order:
            self._over.clear()
            self._holder = threading.Thread(target=self._hold, args=(order["hold"], order))
            self._holder.start()
            return {"holding": order["hold"]}
        if "profile" in order:
            self._engine.start_profile(
                output_dir=order["profile"], num_steps=order["steps"], activities=["CPU", "GPU"], with_stack=False,
                record_shapes=False,
            )  # fmt: skip
        if "generate" in order:
            return {"seconds": self._generate(order["generate"], order)}
        ((kind, arguments),) = order.items()
        return self._load(kind, arguments)

    def _load(self, kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
        assert self._clients is not None, f"{FOLDER} is not set"
        assert self._folder is not None
        if kind == "closed":
            lengths = msgspec.convert(arguments.pop("lengths"), Lengths)
            return self._clients.closed(lengths=lengths, **arguments)
        if kind == "open":
            settings = msgspec.convert(arguments.pop("settings"), Open)
            changes = [(at, (number, label)) for at, (number, label) in arguments.pop("changes")]
            return self._clients.open(settings, changes=changes, phase=Phase(self._folder), **arguments)
        return self._clients.work(**arguments)

    def _generate(self, requests: int, order: dict[str, Any]) -> float:
        drawn = random.Random(order["seed"])
        prompts = [
            [drawn.randrange(3, self._vocabulary) for _ in range(order["prompt_tokens"])] for _ in range(requests)
        ]
        parameters = {"temperature": 0, "max_new_tokens": order["tokens"], "ignore_eos": True}
        began = time.perf_counter()
        answers = self._engine.generate(input_ids=prompts, sampling_params=[parameters] * requests)
        took = time.perf_counter() - began
        lengths = {len(answer["output_ids"]) for answer in answers}
        assert lengths == {order["tokens"]}, f"requests came back with {lengths} tokens"
        return took

    def _hold(self, requests: int, order: dict[str, Any]) -> None:
        """Batches of changing size, so that bands and (under data-parallel attention) ranks differ."""
        drawn = random.Random(order["seed"])
        while not self._over.is_set():
            self._generate(drawn.randint(1, requests), {**order, "seed": drawn.randrange(1 << 30)})


def serve() -> None:
    """Be the engine's process."""
    import sglang

    answers = os.fdopen(int(os.environ[ANSWERS]), "w", buffering=1)
    arguments = json.loads(sys.stdin.readline())
    began = time.perf_counter()
    served = Served(sglang.Engine(**arguments))
    answers.write(json.dumps({"ready": time.perf_counter() - began}) + "\n")
    for line in sys.stdin:
        try:
            answer = served.obey(json.loads(line))
        except Exception as error:  # noqa: BLE001 - the other side decides what becomes of it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    serve()
