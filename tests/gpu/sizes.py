"""What is measured: on a card, or in small on the CPU engine, to try the scripts out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Sizes:
    """How much is measured, and on which engine.

    Attributes:
        shape: Of the model; see `dummy_models`.
        batches: Batch sizes.
        passes: Turns in which every engine is measured.
        most_tokens: Length of the answers that are measured.
        token_limit: Prompts are drawn from the tokens below.
        arguments: Of the engine, besides the model's.
        plugins: SGLang plugins to load.
    """

    shape: str
    batches: tuple[int, ...]
    passes: int
    most_tokens: int
    token_limit: int
    arguments: dict[str, Any] = field(default_factory=dict)
    plugins: tuple[str, ...] = ("trimtab_gpu",)


CARD = Sizes(
    "8b", (1, 8, 32, 128), 3, 220, 120_000,
    {
        "dtype": "bfloat16", "cuda_graph_bs_decode": [1, 8, 32, 128], "disable_prefill_cuda_graph": True,
        "mem_fraction_static": 0.8, "sampling_backend": "pytorch",
    },
)  # fmt: skip
CPU = Sizes(
    "tiny", (1, 4), 2, 60, 400,
    {"device": "cpu", "dtype": "float32", "disable_cuda_graph": True, "mem_fraction_static": 0.3},
    ("trimtab_gpu", "sglang_cpu"),
)  # fmt: skip
SIZES = {"card": CARD, "cpu": CPU}
PROMPT_TOKENS = 64
WIDEST = 3


def engine_arguments(sizes: Sizes, backend: str, models: Path, speculation: bool) -> dict[str, Any]:
    """Arguments of `sglang.Engine`."""
    most = max(sizes.batches)
    arguments: dict[str, Any] = {
        "model_path": str(models / "target"), "load_format": "dummy", "skip_tokenizer_init": True,
        "attention_backend": backend, "grammar_backend": "none", "max_running_requests": most,
        "chunked_prefill_size": 16384, "disable_radix_cache": True, "context_length": 8192, "random_seed": 1,
        "max_total_tokens": most * (PROMPT_TOKENS + sizes.most_tokens + 64), "log_level": "info", **sizes.arguments,
    }  # fmt: skip
    if speculation:
        arguments |= {
            "speculative_algorithm": "EAGLE3", "speculative_draft_model_path": str(models / "draft"),
            "speculative_eagle_topk": 1, "speculative_num_steps": WIDEST, "speculative_num_draft_tokens": WIDEST + 1,
            "speculative_adaptive": True, "speculative_adaptive_config": str(models / "adaptive.json"),
        }  # fmt: skip
    return arguments
