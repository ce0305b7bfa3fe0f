"""The engines that are compared, and how each is started.

| name | what it is |
|---|---|
| `shared` | adaptive, every candidate built, with Trimtab: all contenders that can change places at run time |
| `adaptive` | the same without Trimtab, held at one step count by its own table |
| `alone` | no speculation |
| `stock:K` | K steps for good, as a server without adaptive mode, with all the KV cache that it can have |
| `stock:adaptive` | SGLang's adaptive mode with its default table, likewise |
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dummy_models
from bench_orders import FOLDER, Orders
from engine_process import PROMPTS, VOCABULARY, EngineProcess
from plugin_path import TRIMTAB, install

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CODE = (HERE, ROOT / "engine_plugin", ROOT / "proto", ROOT / "controller")
SHARED, ADAPTIVE, ALONE, STOCK = "shared", "adaptive", "alone", "stock"
STOCK_ADAPTIVE = f"{STOCK}:adaptive"
CANDIDATES = (0, 1, 2, 3, 5, 7)
# SGLang's own table must find all its steps among the candidates, in every version: 0.5.16 has 1, 3, 7, later ones 5.
WIDEST = max(CANDIDATES)
FIRST_PORT = 31_000
PROMPT_FILE = "prompts.json"
# Nothing of ours runs beyond this batch size.
NEVER = 1_000_000


@dataclass(frozen=True)
class Setting:
    """Where the engines run: a card, or the CPU to try things out.

    Attributes:
        shape: Of the dummy model.
        vocabulary: Prompts are drawn from the tokens below.
        arguments: Of `sglang.Engine`.
        environment: Of its processes.
        plugins: Further SGLang plugins.
        load: The load file unless another is named.
        beside: Arguments where several engines live at once: each may take a part of the memory only.
    """

    shape: str
    vocabulary: int
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    plugins: tuple[str, ...]
    load: str
    beside: Mapping[str, Any] = field(default_factory=dict)


# NVLink multicast stays off: on a host whose GPUs others share too, a program that leaves it in a bad state takes them
# all out of service.
CARD = Setting(
    "8b", 120_000,
    {
        "dtype": "bfloat16", "disable_prefill_cuda_graph": True, "mem_fraction_static": 0.8,
        "cuda_graph_bs_decode": [1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256],
        "sampling_backend": "pytorch", "max_running_requests": 256, "chunked_prefill_size": 16384,
        "context_length": 8192,
    },
    {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"},
    (), "load.toml",
    {
        "max_total_tokens": 82_000, "max_running_requests": 128, "cuda_graph_bs_decode": [1, 2, 4, 8, 16, 32, 64, 128],
        "sleep_on_idle": True,
    },
)  # fmt: skip
CPU = Setting(
    "tiny", 400,
    {
        "device": "cpu", "dtype": "float32", "disable_cuda_graph": True, "mem_fraction_static": 0.3,
        "max_total_tokens": 16_384, "max_running_requests": 8, "chunked_prefill_size": 4096, "context_length": 2048,
        "sleep_on_idle": True,
    },
    {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "SGLANG_CPU_FORCE_OVERLAP": "1", "TRITON_INTERPRET": "1"},
    ("sglang_cpu",), "load_cpu.toml",
    {"max_total_tokens": 8192},
)  # fmt: skip
SETTINGS = {"card": CARD, "cpu": CPU}


@dataclass(frozen=True)
class Bench:
    """What all engines of a run have in common.

    Attributes:
        setting: Where they run.
        backend: SGLang's attention backend.
        models: Folder with target/ and draft/.
        real: Whether the models have weights, and an acceptance of their own.
        work: Folder for what engines and harness tell each other.
        out: Folder for the engines' logs.
        probabilities: Of the drawn acceptance by phase and depth; empty with real models.
        seed: Of everything drawn.
        port: Engines take ports from this one up, each a thousand further on.
    """

    setting: Setting
    backend: str
    models: Path
    real: bool
    work: Path
    out: Path
    probabilities: list[list[float]]
    seed: int
    port: int = FIRST_PORT


class Engine:
    """One engine, on its way up at once; `ready` waits for it."""

    def __init__(
        self, bench: Bench, name: str, controller: str = "", together: bool = False, held: int = 0, number: int = 0
    ) -> None:
        self.name = name
        self.started_at = time.strftime("%Y-%m-%dT%H:%M:%S")
        self._bench = bench
        folder = bench.work / name.replace(":", "-")
        self.orders = Orders(folder, bench.probabilities, bench.seed)
        install(folder, TRIMTAB | {"trimtab_bench": "bench_plugin:register"})
        self._arguments = arguments = engine_arguments(bench, name, together, held)
        # SGLang takes further ports from this one up.
        arguments["port"] = bench.port + 1000 * number
        environment = _environment(bench, folder, name, controller)
        self.process = EngineProcess(name.replace(":", "-"), bench.out, arguments, environment)
        self._start_s = 0.0

    def ready(self) -> None:
        """Wait until it serves."""
        self._start_s = self.process.ready()

    def facts(self) -> dict[str, Any]:
        """What it is and what it takes, for the results."""
        return {
            **self.orders.engine(),
            "arguments": self._arguments,
            "start_s": round(self._start_s, 1),
            "kv_bytes_per_token": dummy_models.kv_bytes_per_token(self._bench.models),
            "started_at": self.started_at,
        }

    def stop(self) -> None:
        """End it."""
        self.process.stop()


def engine_arguments(bench: Bench, name: str, together: bool = False, held: int = 0) -> dict[str, Any]:
    """Arguments of `sglang.Engine`; `held` is the step count at which the table of `adaptive` holds it."""
    arguments: dict[str, Any] = {
        "model_path": str(bench.models / "target"), "skip_tokenizer_init": True, "grammar_backend": "none",
        "attention_backend": bench.backend, "disable_radix_cache": True, "random_seed": 1, "log_level": "info",
        **bench.setting.arguments, **(bench.setting.beside if together else {}),
    }  # fmt: skip
    if bench.real:
        # As long as the model itself takes.
        del arguments["context_length"]
    else:
        arguments["load_format"] = "dummy"
    if name == ALONE:
        return arguments
    kind, _, word = name.partition(":")
    steps = int(word) if kind == STOCK and name != STOCK_ADAPTIVE else WIDEST
    arguments |= {
        "speculative_algorithm": _algorithm(bench.models), "speculative_draft_model_path": str(bench.models / "draft"),
        "speculative_eagle_topk": 1, "speculative_num_steps": steps, "speculative_num_draft_tokens": steps + 1,
    }  # fmt: skip
    if name == STOCK_ADAPTIVE:
        arguments["speculative_adaptive"] = True
    elif kind != STOCK:
        table: dict[str, Any] = {"1": {"candidate_steps": list(CANDIDATES)}}
        if name == ADAPTIVE:
            # One slot for every batch that occurs; the other is there so that the same candidates are built.
            table = {"1": {"candidate_steps": [held]}, str(NEVER): {"candidate_steps": list(CANDIDATES)}}
        path = bench.work / f"{name}.json"
        path.write_text(json.dumps(table))
        arguments |= {"speculative_adaptive": True, "speculative_adaptive_config": str(path)}
    return arguments


def _algorithm(models: Path) -> str:
    """EAGLE or EAGLE3, whichever the draft is for."""
    (architecture,) = json.loads((models / "draft" / "config.json").read_text())["architectures"]
    return "EAGLE3" if architecture.endswith("Eagle3") else "EAGLE"


def _environment(bench: Bench, folder: Path, name: str, controller: str) -> dict[str, str]:
    path = os.pathsep.join([str(folder), *map(str, CODE), os.environ.get("PYTHONPATH", "")])
    plugins = ["trimtab_bench", *bench.setting.plugins, *(["trimtab"] if controller else [])]
    ours = {"TRIMTAB_CONTROLLER": controller, "TRIMTAB_ENGINE_ID": name} if controller else {}
    return {
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "SGLANG_PLUGINS": ",".join(plugins),
        FOLDER: str(folder),
        VOCABULARY: str(bench.setting.vocabulary),
        PROMPTS: str(bench.models / PROMPT_FILE) if bench.real else "",
        **bench.setting.environment,
        **ours,
    }
