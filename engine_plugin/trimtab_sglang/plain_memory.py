"""What native plain and the way back take on the device: the hidden ring, and the decode graph's workspace.

All of it lies beside the KV cache, in what SGLang's memory fraction leaves, so it is said in KV tokens as well. The
ring is exact before the start; the workspace is the attention backend's buffers for captured decodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
# Longer than this the return would take too long; shorter than that a catch-up would come every few steps.
MOST_WINDOW, LEAST_WINDOW = 64, 4
TOKEN_ID_BYTES = 8
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# SGLang's default for --triton-attention-num-kv-splits.
TRITON_KV_SPLITS = 8


@dataclass(frozen=True, slots=True)
class PlainMemory:
    """What native plain takes.

    Attributes:
        window_tokens: Tokens of each request that the ring holds; the draft model is caught up at least that often.
        ring_bytes: Hidden states and tokens.
        graph_bytes: Decode graph and workspace; 0 without graphs.
        kv_token_bytes: What a token takes in the KV caches of target and draft; 0 if unknown.
        start_seconds: What it added to the start; 0 if unknown.
    """

    window_tokens: int = 0
    ring_bytes: int = 0
    graph_bytes: int = 0
    kv_token_bytes: int = 0
    start_seconds: float = 0.0

    @property
    def kv_tokens(self) -> int:
        """KV tokens that would fit in the same memory; 0 if unknown."""
        return (self.ring_bytes + self.graph_bytes) // self.kv_token_bytes if self.kv_token_bytes else 0


def row_bytes(width: int, dtype_bytes: int) -> int:
    """Bytes of one token in the ring, for hidden states of this width."""
    return width * dtype_bytes + TOKEN_ID_BYTES


def window_for(budget_bytes: int, rows: int, token_bytes: int) -> int:
    """Tokens of each of `rows` requests that fit into the budget; 0 if it is too small to be of use."""
    window = min(MOST_WINDOW, budget_bytes // (rows * token_bytes))
    return window if window >= LEAST_WINDOW else 0


@dataclass(frozen=True, slots=True)
class Server:
    """What the estimate before the start is made from.

    Attributes:
        target: The target's config.json.
        draft: The draft model's.
        algorithm: "EAGLE", "EAGLE3" ...
        requests: --max-running-requests.
        graph_batch: Largest batch with a captured graph; 0 without graphs.
        context_tokens: --context-length.
        attention_backend: --attention-backend.
        tp_size: Ranks that share the KV heads.
    """

    target: Mapping[str, Any]
    draft: Mapping[str, Any]
    algorithm: str
    requests: int
    graph_batch: int
    context_tokens: int
    attention_backend: str
    tp_size: int = 1


def estimate(server: Server, budget_bytes: int) -> PlainMemory:
    """What native plain will take on each rank."""
    dtype_bytes = _dtype_bytes(server.target)
    # SGLang's pool has one row more than requests may run: padded requests write there.
    rows = server.requests + 1
    token_bytes = row_bytes(hidden_width(server), dtype_bytes)
    window = window_for(budget_bytes, rows, token_bytes)
    return PlainMemory(
        window_tokens=window,
        ring_bytes=rows * window * token_bytes,
        graph_bytes=_workspace_bytes(server),
        kv_token_bytes=sum(_kv_token_bytes(config, server.tp_size) for config in (server.target, server.draft)),
    )


def hidden_width(server: Server) -> int:
    """Width of the hidden states that the draft model reads: EAGLE3 takes those of several layers side by side."""
    hidden = int(server.target["hidden_size"])
    if server.algorithm.upper() != "EAGLE3":
        return hidden
    layers = (server.draft.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    return hidden * int(server.draft.get("num_aux_hidden_states") or len(layers or (0, 0, 0)))


def read_config(path: str) -> Mapping[str, Any]:
    """The config.json of a model's folder.

    Raises:
        ValueError: There is none that can be read.
    """
    file = Path(path) / "config.json"
    try:
        whole: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    config: dict[str, Any] = whole.get("text_config", whole)
    return config


def _workspace_bytes(server: Server) -> int:
    """Of the decode graph's attention backend; 0 for backends that are not known here."""
    batch, context = server.graph_batch, server.context_tokens
    if server.attention_backend == "triton":
        heads, head_dim = _heads(server.target, server.tp_size), _head_dim(server.target)
        logits = batch * heads * TRITON_KV_SPLITS * (head_dim + 1) * 4
        return batch * context * (8 + 1) + logits
    return batch * context * 4 if server.attention_backend in ("fa3", "fa4") else 0


def _kv_token_bytes(config: Mapping[str, Any], tp_size: int) -> int:
    kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    own = max(1, int(kv_heads) // tp_size)
    return 2 * int(config["num_hidden_layers"]) * own * _head_dim(config) * _dtype_bytes(config)


def _heads(config: Mapping[str, Any], tp_size: int) -> int:
    return max(1, int(config["num_attention_heads"]) // tp_size)


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or int(config["hidden_size"]) // int(config["num_attention_heads"]))


def _dtype_bytes(config: Mapping[str, Any]) -> int:
    return DTYPE_BYTES.get(str(config.get("torch_dtype") or config.get("dtype")), 2)
