"""Builds tiny Llama targets with EAGLE drafts whose acceptance is known in advance.

Tokens below `EASY_TOKENS` are easy, the rest hard. The target continues token t with `successor[t]`, a
single cycle through the easy tokens and one through the hard ones. The draft knows the successors of easy
tokens only: an easy prompt has every draft accepted, a hard one none. `noise` mixes attention into the
target, so that its output depends on the whole context (and on every KV slot being right); then some drafts
are accepted. `echo` (echo_model.py) has a draft that needs every entry of its own KV cache.

    python make_models.py FOLDER        makes FOLDER/cycle, /noisy and /echo, each with target/ and draft/ (and more)

Runs in the engine environment (torch, safetensors). The same arguments give the same bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import echo_model
import tiny_tokenizer

VOCABULARY = 512
EASY_TOKENS = VOCABULARY // 2
NOISE = {"cycle": 0.0, "noisy": 0.35}
LOGIT_SCALE = 4.0


@dataclass(frozen=True)
class Shape:
    """Sizes that target and draft share."""

    hidden: int = 64
    intermediate: int = 128
    heads: int = 4
    kv_heads: int = 2
    target_layers: int = 2

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads


class ModelBuilder:
    """Makes one target and its draft from one seed."""

    def __init__(self, shape: Shape, noise: float, seed: int) -> None:
        self._shape = shape
        self._noise = noise
        self._generator = torch.Generator().manual_seed(seed)

    def save(self, folder: Path) -> None:
        """Write target/ and draft/ in the form that SGLang loads."""
        save(folder / "target", "LlamaForCausalLM", self._target(), self._shape, self._shape.target_layers)
        save(folder / "draft", "LlamaForCausalLMEagle", self._draft(), self._shape, 1)

    def _target(self) -> dict[str, Any]:
        """Easy and hard tokens lie in different halves of the hidden space: neither leads to the other."""
        shape, half = self._shape, self._shape.hidden // 2
        embedding = torch.zeros(VOCABULARY, shape.hidden)
        embedding[:EASY_TOKENS, :half] = self._unit_rows(EASY_TOKENS, half)
        embedding[EASY_TOKENS:, half:] = self._unit_rows(VOCABULARY - EASY_TOKENS, shape.hidden - half)
        successor = torch.cat([self._cycle(0, EASY_TOKENS), self._cycle(EASY_TOKENS, VOCABULARY)])
        head = torch.zeros(VOCABULARY, shape.hidden)
        head[successor] = embedding * LOGIT_SCALE
        tensors = {
            "model.embed_tokens.weight": embedding,
            "lm_head.weight": head,
            "model.norm.weight": torch.ones(shape.hidden),
        }
        for layer in range(shape.target_layers):
            tensors |= self._layer(f"model.layers.{layer}.", self._noise)
            tensors[f"model.layers.{layer}.input_layernorm.weight"] = torch.ones(shape.hidden)
        return tensors

    def _draft(self) -> dict[str, Any]:
        """Passes the easy half of the last token's embedding on and is blind for the hard half."""
        hidden, half = self._shape.hidden, self._shape.hidden // 2
        fusion = torch.zeros(hidden, 2 * hidden)
        fusion[:half, :half] = torch.eye(half)
        return {"fc.weight": fusion, "fc.bias": torch.zeros(hidden)} | self._layer("layers.0.", 0.0)

    def _layer(self, prefix: str, noise: float) -> dict[str, Any]:
        shape = self._shape
        kv = shape.kv_heads * shape.head_dim
        inner = shape.hidden**-0.5
        return {
            f"{prefix}self_attn.q_proj.weight": self._random(shape.hidden, shape.hidden) * inner,
            f"{prefix}self_attn.k_proj.weight": self._random(kv, shape.hidden) * inner,
            f"{prefix}self_attn.v_proj.weight": self._random(kv, shape.hidden) * inner,
            f"{prefix}self_attn.o_proj.weight": self._random(shape.hidden, shape.hidden) * inner * noise,
            f"{prefix}mlp.gate_proj.weight": self._random(shape.intermediate, shape.hidden) * inner,
            f"{prefix}mlp.up_proj.weight": self._random(shape.intermediate, shape.hidden) * inner,
            f"{prefix}mlp.down_proj.weight": self._random(shape.hidden, shape.intermediate)
            * shape.intermediate**-0.5
            * noise,
            f"{prefix}post_attention_layernorm.weight": torch.ones(shape.hidden),
        }

    def _random(self, *size: int) -> Any:
        return torch.randn(*size, generator=self._generator)

    def _unit_rows(self, rows: int, columns: int) -> Any:
        return torch.nn.functional.normalize(self._random(rows, columns), dim=-1)

    def _cycle(self, first: int, end: int) -> Any:
        """The successor of every token in [first, end) on one random cycle through them."""
        order = torch.randperm(end - first, generator=self._generator)
        successor = torch.empty(end - first, dtype=torch.long)
        successor[order] = order.roll(-1)
        return successor + first


def save(folder: Path, architecture: str, tensors: dict[str, Any], shape: Any, layers: int, **more: Any) -> None:
    """Write a model of these sizes (`Shape`, or another with its names) with configuration and tokenizer."""
    config = {
        "architectures": [architecture],
        "bos_token_id": 0,
        "eos_token_id": VOCABULARY - 1,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": 8192,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": VOCABULARY,
        **more,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    tiny_tokenizer.save(folder, VOCABULARY)


def build(folder: Path, seed: int = 0) -> None:
    """Make every model of `NOISE`, and `echo`, below the folder."""
    for name, noise in NOISE.items():
        ModelBuilder(Shape(), noise, seed).save(folder / name)
    sizes = echo_model.Sizes()
    save(folder / "echo" / "target", "LlamaForCausalLM", echo_model.target(), sizes, echo_model.LAYERS)
    save(folder / "echo" / "draft", "LlamaForCausalLMEagle", echo_model.draft(), sizes, 1)
