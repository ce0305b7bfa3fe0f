"""Configurations of Llama and Qwen3 shapes with EAGLE3 drafts for `--load-format dummy`: times need no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "8b": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "vocab_size": 128256,
    },
    "32b": {
        "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40,
        "vocab_size": 152064,
    },
    "qwen3": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "vocab_size": 128256, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"],
    },
    "tiny": {
        # With fewer layers the three that EAGLE3 reads would not all be there.
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "torch_dtype": "float32",
    },
}  # fmt: skip
COMMON = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_key_value_heads": 8, "head_dim": 128,
    "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
DRAFT = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1}


def make(folder: Path, shape: str = "8b", candidate_steps: tuple[int, ...] = (0, 1, 3)) -> None:
    """Write target/, draft/ and adaptive.json below the folder."""
    draft = DRAFT | {"draft_vocab_size": SHAPES[shape]["vocab_size"] // 4}
    for name, more in (("target", {}), ("draft", draft)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps({**COMMON, **SHAPES[shape], **more}))
    (folder / "adaptive.json").write_text(json.dumps({"1": {"candidate_steps": list(candidate_steps)}}))


def kv_bytes_per_token(models: Path) -> int:
    """What a token takes in the caches of target and draft, with 2 bytes a number."""
    return sum(_kv_bytes(json.loads((models / name / "config.json").read_text())) for name in ("target", "draft"))


def _kv_bytes(config: dict[str, Any]) -> int:
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(2 * 2 * config["num_hidden_layers"] * heads * head_dim)
