"""A Llama in a few lines of torch, that writes many texts at once and keeps its hidden states.

For draft heads to train on: it needs no other library than torch and safetensors, allocates its cache once, and gives
the states that SGLang would hand to an EAGLE3 head.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn import functional


@dataclass(frozen=True)
class States:
    """What comes out of some positions.

    Attributes:
        features: Hidden states in front of the layers that are read, side by side, shape (rows, positions, 3 * hidden).
        last: States behind the final norm, shape (rows, positions, hidden).
    """

    features: Any
    last: Any


class SmallLlama:
    """The model of a checkpoint.

    Args:
        folder: With config.json and model.safetensors, as `real_model.py` writes them.
        device: Where it runs.
        dtype: What it computes in.
        read: The layers in front of which hidden states are taken.
    """

    def __init__(self, folder: Path, device: str, dtype: Any, read: tuple[int, ...]) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.tensors = {k: v.to(device, dtype) for k, v in load_file(folder / "model.safetensors").items()}
        self.embedding = self.tensors["model.embed_tokens.weight"]
        self.output = self.tensors.get("lm_head.weight", self.embedding)
        self._device, self._dtype, self._read = device, dtype, read
        self._layers = range(self.config["num_hidden_layers"])
        self._heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        half = torch.arange(0, self.config["head_dim"], 2, device=device).float() / self.config["head_dim"]
        self._frequencies = self.config["rope_theta"] ** -half
        self._cache: list[tuple[Any, Any]] = []
        self._length = 0

    def begin(self, rows: int, longest: int) -> None:
        """Forget what was read, and make room for rows of at most so many tokens."""
        size = rows, self._heads[1], longest, self.config["head_dim"]
        # The room of before must be free first: it may be most of the memory.
        self._cache, self._length = [], 0
        self._cache = [(self._room(size), self._room(size)) for _ in self._layers]

    def read(self, tokens: Any) -> States:
        """Go on with tokens of shape (rows, positions): several at the beginning, one at a time then."""
        assert tokens.shape[1] == 1 or not self._length, "several tokens can only be read at the beginning"
        hidden = functional.embedding(tokens, self.embedding)
        turns = self._turns(tokens.shape[1])
        taken: dict[int, Any] = {}
        for layer in self._layers:
            if layer in self._read:
                taken[layer] = hidden
            hidden = self._layer(layer, hidden, turns)
        self._length += tokens.shape[1]
        return States(torch.cat([taken[layer] for layer in self._read], -1), self._norm(hidden, "model.norm"))

    def _layer(self, layer: int, hidden: Any, turns: tuple[Any, Any]) -> Any:
        at = f"model.layers.{layer}."
        hidden = hidden + self._attention(layer, self._norm(hidden, f"{at}input_layernorm"), turns)
        x = self._norm(hidden, f"{at}post_attention_layernorm")
        gate = functional.silu(self._linear(x, f"{at}mlp.gate_proj"))
        return hidden + self._linear(gate * self._linear(x, f"{at}mlp.up_proj"), f"{at}mlp.down_proj")

    def _attention(self, layer: int, x: Any, turns: tuple[Any, Any]) -> Any:
        at, (rows, positions, _) = f"model.layers.{layer}.self_attn.", x.shape
        q, k, v = (
            self._linear(x, f"{at}{name}_proj").view(rows, positions, heads, -1).transpose(1, 2)
            for name, heads in zip("qkv", (self._heads[0], self._heads[1], self._heads[1]), strict=True)
        )
        keys, values = self._cache[layer]
        end = self._length + positions
        keys[:, :, self._length : end] = _turned(k, *turns)
        values[:, :, self._length : end] = v
        out = functional.scaled_dot_product_attention(
            _turned(q, *turns), keys[:, :, :end], values[:, :, :end], is_causal=positions > 1, enable_gqa=True
        )
        return self._linear(out.transpose(1, 2).reshape(rows, positions, -1), f"{at}o_proj")

    def _turns(self, positions: int) -> tuple[Any, Any]:
        places = torch.arange(self._length, self._length + positions, device=self._device).float()
        angles = places[:, None] * self._frequencies
        cos, sin = (torch.cat([part, part], -1).to(self._dtype) for part in (angles.cos(), angles.sin()))
        return cos, sin

    def _room(self, size: tuple[int, ...]) -> Any:
        return torch.empty(size, device=self._device, dtype=self._dtype)

    def _linear(self, x: Any, name: str) -> Any:
        return functional.linear(x, self.tensors[f"{name}.weight"])

    def _norm(self, x: Any, name: str) -> Any:
        return functional.rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"], self.config["rms_norm_eps"])


def _turned(x: Any, cos: Any, sin: Any) -> Any:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
