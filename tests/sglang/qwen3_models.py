"""Builds a tiny Qwen3 target with an EAGLE3 draft, the pair that data-parallel attention runs on a CPU.

SGLang's Llama target shares its embedding over all ranks and its EAGLE draft takes the target's layout, so neither
works there. Tokens, successors and noise are those of `tiny_models.py`: easy prompts have most drafts accepted,
hard ones none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tiny_models import VOCABULARY, ModelBuilder, Shape, save

NOISE = 0.2
# RMS norm makes every embedding this many times as long: the square root of the hidden size.
EMBEDDING_SCALE = 8.0
# Of queries: a token attends to itself (score 32) and not to others (at most 24).
FOCUS = 4.0
# What the draft reads off the last token outweighs the hidden state that it starts from.
LOUDNESS = 100.0


@dataclass(frozen=True)
class Qwen3Shape(Shape):
    """The same sizes; Qwen3 names its head width and normalises queries and keys."""

    @property
    def config(self) -> dict[str, Any]:
        """What Qwen3's configuration has beyond Llama's."""
        return {"model_type": "qwen3", "head_dim": self.head_dim, "attention_bias": False}


class Qwen3Builder(ModelBuilder):
    """Makes the Qwen3 target and its EAGLE3 draft from one seed."""

    def __init__(self, seed: int) -> None:
        self._qwen3 = Qwen3Shape()
        super().__init__(self._qwen3, NOISE, seed)

    def save(self, folder: Path) -> None:
        """Write target/ and draft/ in the form that SGLang loads."""
        target = self._target()
        for layer in range(self._shape.target_layers):
            for name in ("q_norm", "k_norm"):
                target[f"model.layers.{layer}.self_attn.{name}.weight"] = torch.ones(self._shape.head_dim)
        save(
            folder / "target", "Qwen3ForCausalLM", target, self._shape, self._shape.target_layers, **self._qwen3.config
        )
        draft = self._eagle3(target["lm_head.weight"], target["model.embed_tokens.weight"])
        save(
            folder / "draft", "LlamaForCausalLMEagle3", draft, self._shape, 1, draft_vocab_size=VOCABULARY,
            norm_output=True, eagle_config={"eagle_aux_hidden_state_layer_ids": [0], "use_aux_hidden_state": True},
        )  # fmt: skip

    def _eagle3(self, head: Any, embedding: Any) -> dict[str, Any]:
        """One layer whose attention looks at the last token alone and passes the easy half of its embedding on."""
        shape, half, width = self._shape, self._shape.hidden // 2, self._shape.head_dim
        easy = torch.eye(half, 2 * shape.hidden)
        to_output = torch.zeros(shape.hidden, shape.hidden)
        to_output[:width, :width] = to_output[width:half, 2 * width : 3 * width] = torch.eye(width) * LOUDNESS
        ones = {
            f"midlayer.{name}.weight": torch.ones(shape.hidden)
            for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        }
        return ones | {
            "embed_tokens.weight": embedding,
            "fc.weight": torch.zeros(shape.hidden, shape.hidden),
            "norm.weight": torch.ones(shape.hidden),
            "lm_head.weight": head,
            "midlayer.self_attn.q_proj.weight": FOCUS
            * easy.view(shape.kv_heads, 1, width, -1).repeat(1, 2, 1, 1).view(shape.hidden, -1),
            "midlayer.self_attn.k_proj.weight": easy,
            "midlayer.self_attn.v_proj.weight": easy / EMBEDDING_SCALE,
            "midlayer.self_attn.o_proj.weight": to_output,
            "midlayer.mlp.gate_proj.weight": torch.zeros(shape.intermediate, shape.hidden),
            "midlayer.mlp.up_proj.weight": torch.zeros(shape.intermediate, shape.hidden),
            "midlayer.mlp.down_proj.weight": torch.zeros(shape.hidden, shape.intermediate),
        }


def build(folder: Path, seed: int = 0) -> None:
    """Make the pair below the folder."""
    Qwen3Builder(seed).save(folder / "qwen3")
