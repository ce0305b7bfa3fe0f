"""How much is measured with the real model: on a card, or in small on the CPU engine, to try the scripts out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CANDIDATES = (0, 1, 3)
WIDEST = max(CANDIDATES)


@dataclass(frozen=True)
class RealSizes:
    """What is measured.

    Attributes:
        compared: Prompts whose greedy outputs are compared.
        compared_tokens: Tokens of each output.
        at_once: Of them at once: run by run the next of these.
        schedules: Schedules of modes that they go through.
        samples: Answers to one prompt whose tokens are compared as distributions.
        positions: Tokens of each such answer.
        temperature: Of what is compared as distributions.
        plain_tokens: Lengths of the plain stretch before a return.
        requests: Pairs of requests for each such length.
        together: Of them at once.
        catching_up: Requests that catch up at once.
        missed: Tokens that each of them catches up with.
        prefix_tokens: Tokens generated plainly whose prefix is reused.
        burst: Requests of a burst; the load falls to 2 between bursts.
        burst_tokens: Tokens of each of them.
        lasting_tokens: Tokens of each of the two that go on.
        lead_s: From the beginning to the first burst, and from the end of one to the next.
        swings: Times that the load swings in each way of decoding.
        many: Batch size from which on decoding is plain under that load.
        arguments: Of every engine.
        plugins: SGLang plugins for every engine.
        environment: Variables of every engine.
    """

    compared: int = 32
    compared_tokens: int = 256
    at_once: tuple[int, ...] = (32, 16, 8, 4)
    schedules: int = 20
    samples: int = 20_000
    positions: int = 20
    temperature: float = 0.8
    plain_tokens: tuple[int, ...] = (50, 500, 2000)
    requests: int = 1000
    together: int = 125
    catching_up: tuple[int, ...] = (1, 8, 32, 128)
    missed: tuple[int, ...] = (1, 8, 16, 32, 64)
    prefix_tokens: int = 256
    burst: int = 254
    burst_tokens: int = 128
    lasting_tokens: int = 3000
    lead_s: float = 0.5
    swings: int = 8
    many: int = 64
    arguments: dict[str, Any] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


CARD = RealSizes(
    arguments={
        "dtype": "bfloat16", "cuda_graph_bs_decode": [1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256],
        "disable_prefill_cuda_graph": True, "mem_fraction_static": 0.8, "sampling_backend": "pytorch",
        "max_running_requests": 256, "max_total_tokens": 600_000, "context_length": 4096,
        "chunked_prefill_size": 16384,
    },
)  # fmt: skip
CPU = RealSizes(
    compared=4, compared_tokens=24, at_once=(4, 2), schedules=2, samples=4, positions=3, temperature=0.0,
    plain_tokens=(12,), requests=4, together=4, catching_up=(2,), missed=(3, 9), prefix_tokens=80, burst=3,
    burst_tokens=12, lasting_tokens=40, swings=1, many=4,
    arguments={
        "device": "cpu", "dtype": "float32", "disable_cuda_graph": True, "mem_fraction_static": 0.5,
        "max_running_requests": 8, "max_total_tokens": 4096, "context_length": 1024, "sleep_on_idle": True,
    },
    plugins=("sglang_cpu",),
    environment={"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"},
)  # fmt: skip
SIZES = {"card": CARD, "cpu": CPU}
PROMPT_TOKENS = 48

# Kinds of engine: without speculation, with SGLang's own and fixed steps, with this plugin.
KINDS = ("plain", "stock", "ours")
# What a kind may have besides.
EXTRAS: dict[str, dict[str, Any]] = {
    "cached": {"disable_radix_cache": False},
    "deterministic": {"enable_deterministic_inference": True},
}


def engine_arguments(sizes: RealSizes, engine: str, backend: str, models: Path, folder: Path) -> dict[str, Any]:
    """Arguments of `sglang.Engine`.

    Args:
        sizes: What is measured.
        engine: A kind of engine, or one with an extra: "ours+cached".
        backend: Of attention.
        models: Where target/ and draft/ are.
        folder: Where the list of candidates goes.
    """
    kind, *extras = engine.split("+")
    arguments: dict[str, Any] = {
        "model_path": str(models / "target"), "skip_tokenizer_init": True, "attention_backend": backend,
        "grammar_backend": "none", "disable_radix_cache": True, "random_seed": 1, "log_level": "info",
        **sizes.arguments,
    }  # fmt: skip
    if kind != "plain":
        arguments |= {
            "speculative_algorithm": "EAGLE3", "speculative_draft_model_path": str(models / "draft"),
            "speculative_eagle_topk": 1, "speculative_num_steps": WIDEST, "speculative_num_draft_tokens": WIDEST + 1,
        }  # fmt: skip
    if kind == "ours":
        candidates = folder / "adaptive.json"
        candidates.write_text(json.dumps({"1": {"candidate_steps": list(CANDIDATES)}}))
        arguments |= {"speculative_adaptive": True, "speculative_adaptive_config": str(candidates)}
    for extra in extras:
        arguments |= EXTRAS[extra]
    return arguments
