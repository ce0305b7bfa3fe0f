"""Builds a tiny target with an EAGLE draft that predicts through its own KV cache alone, and needs all of it.

The target goes round in circles of `PERIOD` tokens. A token is a pair of digits; its embedding is one of 16 unit
vectors for each digit. The draft knows no circle: for the first digit of the token after next it looks at the token
that it read `PERIOD` positions ago, for the second at the target's hidden state of `PERIOD - 1` positions ago. So it
is right every time while it has read every token and every hidden state, and wrong for `PERIOD` rounds behind a hole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from circles import DIGITS, PERIOD, TOKENS, circle

VOCABULARY = 512
HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, LAYERS = 128, 4, 2, 16, 1
HEAD_DIM = HIDDEN // HEADS
ROPE_THETA = 10_000.0
# Where the draft keeps what it read of the token and of the hidden state, and a constant.
TOKEN_AT, STATE_AT, ONE_AT = 32, 64, 127
# How sharply a head looks at a single position.
SHARPNESS = 40.0


@dataclass(frozen=True)
class Sizes:
    """What `ModelBuilder` needs to write a configuration."""

    hidden: int = HIDDEN
    intermediate: int = INTERMEDIATE
    heads: int = HEADS
    kv_heads: int = KV_HEADS


def target() -> dict[str, Any]:
    """Hands the embedding through; the head of every token answers to the one before it on the circle."""
    embedding = torch.zeros(VOCABULARY, HIDDEN)
    head = torch.zeros(VOCABULARY, HIDDEN)
    for number in range(TOKENS):
        token, following = circle(number, 2)
        embedding[token, token // DIGITS] = embedding[token, DIGITS + token % DIGITS] = 1.0
        head[following] = embedding[token]
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": torch.ones(HIDDEN)}
    for layer in range(LAYERS):
        tensors |= _layer(f"model.layers.{layer}.")
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = torch.ones(HIDDEN)
    return tensors


def draft() -> dict[str, Any]:
    """Two heads, each with an eye for one distance: the first digit from the token, the second from the state."""
    fusion, bias = torch.zeros(HIDDEN, 2 * HIDDEN), torch.zeros(HIDDEN)
    both = 2 * DIGITS
    fusion[TOKEN_AT : TOKEN_AT + both, :both] = torch.eye(both)
    fusion[STATE_AT : STATE_AT + both, HIDDEN : HIDDEN + both] = torch.eye(both)
    bias[ONE_AT] = 1.0
    tensors = {"fc.weight": fusion, "fc.bias": bias} | _layer("layers.0.")
    queries, keys, values, out = (tensors[f"layers.0.self_attn.{name}_proj.weight"] for name in "qkvo")
    for head, distance, source, digit in ((0, PERIOD, TOKEN_AT, 0), (2, PERIOD - 1, STATE_AT + DIGITS, 1)):
        kv_head = head // (HEADS // KV_HEADS)
        queries[head * HEAD_DIM : (head + 1) * HEAD_DIM, ONE_AT] = _looking_back(distance)
        keys[kv_head * HEAD_DIM : (kv_head + 1) * HEAD_DIM, ONE_AT] = _looking_back(0)
        values[kv_head * HEAD_DIM : kv_head * HEAD_DIM + DIGITS, source : source + DIGITS] = torch.eye(DIGITS)
        out[digit * DIGITS : (digit + 1) * DIGITS, head * HEAD_DIM : head * HEAD_DIM + DIGITS] = torch.eye(DIGITS)
    # The target's normed hidden state is 8 times as long as an embedding.
    out[DIGITS : 2 * DIGITS] /= 8.0
    return tensors


def _looking_back(distance: int) -> Any:
    """A query that meets an unturned key `distance` positions back in phase; 0 is the key.

    Rotary embeddings turn component pair i by `position * theta ** (-i / pairs)`.
    """
    pairs = HEAD_DIM // 2
    angles = torch.tensor([-distance * ROPE_THETA ** (-i / pairs) for i in range(pairs)])
    return SHARPNESS * torch.cat([torch.cos(angles), torch.sin(angles)])


def _layer(prefix: str) -> dict[str, Any]:
    """A layer that adds nothing."""
    kv = KV_HEADS * HEAD_DIM
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (kv, HIDDEN), "self_attn.v_proj": (kv, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN), "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }  # fmt: skip
    tensors = {f"{prefix}{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
    return tensors | {f"{prefix}post_attention_layernorm.weight": torch.ones(HIDDEN)}
