"""Starts the real SGLang server of `.venv-sglang` on the CPU and talks to it over HTTP.

The server is SGLang's own `python -m sglang.launch_server`; Trimtab's plugin gets into it through its entry
point, as in any installation.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from step_log import Launch, StepLogReader, read_launches

HERE = Path(__file__).resolve().parent
# Another environment made by install.sh, with another SGLang, can take the place of .venv-sglang.
ENGINE_VENV = Path(os.environ.get("SGLANG_VENV") or HERE.parents[1] / ".venv-sglang")
ENGINE_PYTHON = ENGINE_VENV / "bin" / "python"
NO_ENGINE = f"there is no SGLang engine in {ENGINE_VENV.name}: run `make test`, which installs it"
START_TIMEOUT_S = 100.0
STOP_TIMEOUT_S = 15.0
REQUEST_TIMEOUT_S = 60.0
MAX_CONCURRENT_REQUESTS = 32

# Overlap scheduling, as on a GPU: results come one step after their launch.
OVERLAP = {"SGLANG_CPU_FORCE_OVERLAP": "1", "TRITON_INTERPRET": "1"}
# SGLang's rule in small: the same candidates for every batch size, quick to react.
ADAPTIVE_CONFIG = {
    "ema_alpha": 0.5,
    "update_interval": 2,
    "warmup_batches": 2,
    "1": {"candidate_steps": [0, 1, 3, 5]},
}
CANDIDATE_STEPS = (0, 1, 3, 5)
INITIAL_STEPS = 3
USED_MODEL_FILES = frozenset({"__init__", "llama", "llama_eagle", "llama_eagle3", "qwen2", "qwen3"})
# An exception anywhere, and what the plugin says when it gives up.
COMPLAINTS = ("Traceback", "trimtab stays off", "trimtab gave up")

# What goes beside the sampling parameters in a request.
REQUEST_FIELDS = frozenset({"return_logprob", "rid"})

COMMON_ARGUMENTS = {
    "device": "cpu",
    "attention-backend": "intel_amx",
    "dtype": "float32",
    "mem-fraction-static": "0.5",
    "max-total-tokens": "16384",
    "max-running-requests": "16",
    "context-length": "2048",
    "random-seed": "1",
    "log-level": "info",
    "host": "127.0.0.1",
    "skip-tokenizer-init": "",
    "disable-cuda-graph": "",
    "sleep-on-idle": "",
}


@dataclass(frozen=True)
class EngineSettings:
    """What kind of server to start.

    Attributes:
        model: Folder below the tiny models: "cycle", "noisy", "echo" or "qwen3".
        speculation: "adaptive" (SGLang's own rule), "fixed" (3 steps) or "none".
        arguments: Further server arguments, without their dashes; an empty value is a switch.
        environment: Further environment variables.
        tokenizer: Load the tokenizer, which grammars and stop strings need.
    """

    model: str = "cycle"
    speculation: str = "adaptive"
    arguments: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    tokenizer: bool = False


@dataclass(frozen=True)
class Answer:
    """What came back for one request.

    Attributes:
        tokens: The ids that were generated.
        finish_reason: SGLang's word for the end: "length", "abort" ...
        rounds: Verify steps that it took; None without speculation.
        cached_tokens: Tokens of the prompt that came from the prefix cache.
        logprobs: Logarithm of each token's probability; empty unless asked for.
        accept_length: Tokens a verify step on average; None without speculation.
        arrivals_ns: CLOCK_MONOTONIC when each piece came in, the start of the request first.
    """

    tokens: tuple[int, ...]
    finish_reason: str
    accept_length: float | None
    arrivals_ns: tuple[int, ...]
    rounds: int | None = None
    cached_tokens: int = 0
    logprobs: tuple[float, ...] = ()

    @property
    def longest_wait_s(self) -> float:
        """The longest time between two pieces of the answer."""
        pairs = zip(self.arrivals_ns, self.arrivals_ns[1:], strict=False)
        return max(later - earlier for earlier, later in pairs) / 1e9


class EngineError(AssertionError):
    """The server did not start, ended, or failed a request."""


class EngineServer:
    """One SGLang server as a process group of its own. Use as a context manager: entering starts it."""

    def __init__(self, settings: EngineSettings, models: Path, folder: Path) -> None:
        if not ENGINE_PYTHON.exists():
            raise EngineError(NO_ENGINE)
        self.settings = settings
        self.log_path = folder / "server.log"
        self.steps = StepLogReader(folder / "steps.0")
        self._folder = folder
        self._models = models
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS, thread_name_prefix="request")

    @property
    def engine_id(self) -> str:
        """The id that the plugin gives itself without TRIMTAB_ENGINE_ID: the host's name and the server's port."""
        return f"{platform.node()}:{self._port}"

    @property
    def ranks(self) -> int:
        """Tensor-parallel ranks."""
        return int(self.settings.arguments.get("tp-size", "1"))

    def launches(self) -> list[list[Launch]]:
        """Every decode launch so far, by rank; only of an engine with several."""
        return [read_launches(self._folder / f"launches.{rank}") for rank in range(self.ranks)]

    def has_ended(self) -> bool:
        """Whether its process is gone."""
        return self._process is None or self._process.poll() is not None

    def __enter__(self) -> EngineServer:
        self.launch()
        self.wait_ready()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        complaints = self.complaints()
        self.stop()
        if complaints and kind is None:
            raise EngineError("the engine's log has:\n" + "\n".join(complaints))

    def launch(self) -> None:
        """Start the process; `wait_ready` waits until it serves."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(), env=self._environment(), cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return once a request would be served; `EngineError` with the end of the log if that does not come."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self._check_alive()
            try:
                self._get("/health", timeout_s=5)
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise EngineError(f"the engine did not get ready within {timeout_s:g} s:\n{self.log_tail()}")

    def stop(self) -> None:
        """End the whole process group."""
        process, self._process = self._process, None
        if process is not None:
            # SGLang's children end with their parent, and Python's resource tracker cleans up after them. To
            # ask nicely takes five seconds longer, and a dead child gets diagnosed before the rest ends.
            process.kill()
            process.wait()
            _wait_group_gone(process.pid, STOP_TIMEOUT_S)
        self._requests.shutdown(wait=True, cancel_futures=True)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the server's main process."""
        assert self._process is not None
        self._process.send_signal(number)

    def processes(self) -> list[int]:
        """The server's processes that still run."""
        assert self._process is not None
        self._process.poll()
        session = self._process.pid
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _runs_in(pid, session)]

    def url(self, path: str) -> str:
        """Where the server answers."""
        return self._url(path)

    @property
    def target_path(self) -> Path:
        """Folder of the model that it serves."""
        return self._models / self.settings.model / "target"

    def generate(self, prompt: Sequence[int], tokens: int, **wishes: Any) -> Answer:
        """Generate exactly this many tokens, greedily.

        Wishes are further sampling parameters of SGLang's, and fields of the request (`return_logprob`, `rid`).
        """
        return self._stream(prompt, tokens, wishes)

    def submit(self, prompt: Sequence[int], tokens: int, **wishes: Any) -> Future[Answer]:
        """The same while the caller goes on."""
        return self._requests.submit(self._stream, tuple(prompt), tokens, wishes)

    def abort(self, rid: str) -> None:
        """Take back a request."""
        body = json.dumps({"rid": rid}).encode()
        request = urllib.request.Request(self._url("/abort_request"), body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S).close()

    def flush_cache(self) -> None:
        """Empty the prefix cache; the server must be idle."""
        request = urllib.request.Request(self._url("/flush_cache"), b"", method="POST")
        urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S).close()

    def generate_all(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[Answer]:
        """All prompts at once, so that they share batches."""
        return [answer.result() for answer in [self.submit(prompt, tokens) for prompt in prompts]]

    def current_steps(self) -> int:
        """Steps that SGLang's worker is set to at this moment, as the server itself reports them."""
        state = json.loads(self._get("/server_info", timeout_s=REQUEST_TIMEOUT_S))["internal_states"][0]
        return int(state["speculative_num_steps"])

    def complaints(self) -> list[str]:
        """Lines of the server's log that no sound engine and plugin write."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return [line for line in lines if any(sign in line for sign in COMPLAINTS)]

    def log_tail(self, lines: int = 40) -> str:
        """The end of the server's log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _stream(self, prompt: Sequence[int], tokens: int, wishes: Mapping[str, Any]) -> Answer:
        parameters = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body: dict[str, Any] = {"input_ids": list(prompt), "sampling_params": parameters, "stream": True}
        for name, value in wishes.items():
            (body if name in REQUEST_FIELDS else parameters)[name] = value
        request = urllib.request.Request(
            self._url("/generate"), json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        arrivals, last = [time.monotonic_ns()], None
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as response:
                for event in _events(response):
                    arrivals.append(time.monotonic_ns())
                    last = event
        except (OSError, ValueError) as error:
            raise EngineError(f"a request failed: {error}\n{self.log_tail()}") from error
        if last is None or "output_ids" not in last:
            raise EngineError(f"a request came back as {last}\n{self.log_tail()}")
        meta = last["meta_info"]
        reason = (meta["finish_reason"] or {}).get("type", "")
        return Answer(
            tokens=tuple(last["output_ids"]),
            finish_reason=reason,
            accept_length=meta.get("spec_accept_length"),
            arrivals_ns=tuple(arrivals),
            rounds=meta.get("spec_verify_ct"),
            cached_tokens=meta.get("cached_tokens", 0),
            logprobs=tuple(entry[0] for entry in meta.get("output_token_logprobs") or ()),
        )

    def _command(self) -> list[str]:
        models = self._models / self.settings.model
        arguments = {**COMMON_ARGUMENTS, "port": str(self._port), "model-path": str(models / "target")}
        if self.settings.speculation != "none":
            arguments |= {
                "speculative-algorithm": "EAGLE",
                "speculative-draft-model-path": str(models / "draft"),
                "speculative-eagle-topk": "1",
                "speculative-num-steps": str(INITIAL_STEPS),
                "speculative-num-draft-tokens": str(INITIAL_STEPS + 1),
            }
        if self.settings.speculation == "adaptive":
            config = self._folder / "adaptive.json"
            config.write_text(json.dumps(ADAPTIVE_CONFIG))
            arguments |= {"speculative-adaptive": "", "speculative-adaptive-config": str(config)}
        arguments |= self.settings.arguments
        if self.settings.tokenizer:
            del arguments["skip-tokenizer-init"]
        command = [str(ENGINE_PYTHON), "-m", "sglang.launch_server"]
        for name, value in arguments.items():
            command += [f"--{name}", value] if value else [f"--{name}"]
        return command

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TRIMTAB_", "SGLANG_"))}
        return inherited | {
            "OMP_NUM_THREADS": "1",
            # Compiling takes half of the start-up, and again at every new batch size; it changes no result.
            "TORCHDYNAMO_DISABLE": "1",
            # The files of other models are only slow to import.
            "SGLANG_DISABLED_MODEL_ARCHS": ",".join(_other_model_files()),
            "SGLANG_CPU_STEP_LOG": str(self._folder / "steps"),
            # SGLang leaves the files of its sockets behind.
            "TMPDIR": str(self._folder),
            **({"SGLANG_CPU_LAUNCH_LOG": str(self._folder / "launches")} if self.ranks > 1 else {}),
            **self.settings.environment,
        }  # fmt: skip

    def _check_alive(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise EngineError(f"the engine ended at start:\n{self.log_tail()}")

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}"

    def _get(self, path: str, timeout_s: float) -> bytes:
        with urllib.request.urlopen(self._url(path), timeout=timeout_s) as response:
            return bytes(response.read())


EngineFactory = Callable[[EngineSettings], EngineServer]


def make_models(folder: Path) -> None:
    """Build the tiny models below the folder."""
    subprocess.run([ENGINE_PYTHON, HERE / "make_models.py", folder], check=True, timeout=60)


def free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _events(response: Any) -> Iterator[dict[str, Any]]:
    """The objects of a stream of server-sent events; an error object is an exception."""
    for line in response:
        text = line.decode().strip().removeprefix("data: ")
        if not text or text == "[DONE]":
            continue
        event = json.loads(text)
        if "error" in event:
            raise ValueError(event["error"])
        yield event


def _other_model_files() -> list[str]:
    """Names of SGLang's model files that the tiny models do not need."""
    (models,) = (ENGINE_VENV / "lib").glob("python3.*/site-packages/sglang/srt/models")
    return sorted(file.stem for file in models.glob("*.py") if file.stem not in USED_MODEL_FILES)


def _runs_in(pid: int, session: int) -> bool:
    """Whether the process belongs to the session, and is more than an entry in a table."""
    try:
        state, _, _, its_session = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[:4]
    except OSError:
        return False
    return int(its_session) == session and state != "Z"


def _wait_group_gone(group: int, timeout_s: float) -> None:
    """Return when no process of the group is left; kill what is left after the timeout."""
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(ProcessLookupError):
        while True:
            late = time.monotonic() > deadline
            os.killpg(group, signal.SIGKILL if late else 0)
            time.sleep(0.05)
