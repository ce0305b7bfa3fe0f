"""Paged attention over a KV buffer, request by request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def decode_attention_cpu(
    q: Any, k_buffer: Any, v_buffer: Any, k_scale: Any, v_scale: Any, out: Any, k: Any, v: Any, slots: Any,
    attn_logits: Any, req_to_token: Any, req_indices: Any, seq_lens: Any, scaling: float, logit_cap: float,
    is_cross: bool = False, window: int = 0, encoder_lens: Any = None, sinks: Any = None,
) -> None:  # fmt: skip
    """Store the new keys and values, then attend with one query a request into `out`.

    Shapes: q and out (n_requests, n_heads, head_dim); k_buffer and v_buffer (n_slots, n_kv_heads, head_dim).
    """
    _refuse(is_cross, sinks)
    if k is not None:
        k_buffer[slots] = k.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[slots] = v.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for i, (request, length) in enumerate(zip(req_indices.tolist(), seq_lens.tolist(), strict=False)):
        seen = req_to_token[request, :length].long()
        mask = _within(window, torch.ones(1, length, dtype=torch.bool), torch.tensor([length - 1]))
        out[i : i + 1] = _attend(q[i : i + 1], k_buffer[seen], v_buffer[seen], mask, scaling, logit_cap).to(out.dtype)


def extend_attention_cpu(
    q: Any, k: Any, v: Any, out: Any, k_buffer: Any, v_buffer: Any, k_scale: Any, v_scale: Any, req_to_token: Any,
    req_indices: Any, seq_lens: Any, extend_lens: Any, extend_starts: Any, max_extend: int, scaling: float,
    logit_cap: float, is_cross: bool = False, window: int = 0, encoder_lens: Any = None, sinks: Any = None,
    tree_mask: Any = None, causal: bool = True,
) -> None:  # fmt: skip
    """Attend with the last `extend_lens[i]` tokens of each request into `out`.

    Their keys and values are in the buffers already. `tree_mask` is flat, one (n, n) block a request (SGLang's
    QLEN_ONLY): which of the n new tokens a new token may look at. Under data-parallel attention SGLang pads the
    requests and their tokens, not the lengths: what has no length gets zeros.
    """
    _refuse(is_cross, sinks)
    block_at = 0
    out.zero_()
    lengths = zip(req_indices.tolist(), seq_lens.tolist(), extend_lens.tolist(), extend_starts.tolist(), strict=False)
    for request, length, n_new, start in lengths:
        if n_new == 0:
            continue
        seen = req_to_token[request, :length].long()
        query_at = torch.arange(length - n_new, length)
        if tree_mask is not None:
            block = tree_mask[block_at : block_at + n_new * n_new].view(n_new, n_new).bool()
            mask = torch.cat([torch.ones(n_new, length - n_new, dtype=torch.bool), block], 1)
            block_at += n_new * n_new
        elif causal:
            mask = torch.arange(length)[None] <= query_at[:, None]
        else:
            mask = torch.ones(n_new, length, dtype=torch.bool)
        rows = slice(start, start + n_new)
        mask = _within(window, mask, query_at)
        out[rows] = _attend(q[rows], k_buffer[seen], v_buffer[seen], mask, scaling, logit_cap).to(out.dtype)


def scales_optional(function: Callable[..., None], at: int) -> Callable[..., None]:
    """Accept calls without the two KV scales at position `at`, as SGLang 0.5.16 and 0.5.18 make them."""

    def call(*args: Any) -> None:
        if torch.is_tensor(args[at]):
            args = (*args[:at], 1.0, 1.0, *args[at:])
        function(*args)

    return call


def _refuse(is_cross: bool, sinks: Any) -> None:
    if is_cross or sinks is not None:
        raise NotImplementedError("cross attention and attention sinks are not in this stand-in for sgl_kernel")


def _attend(q: Any, k: Any, v: Any, mask: Any, scaling: float, logit_cap: float) -> Any:
    """Grouped-query attention of q (n, heads, dim) over k and v (m, kv_heads, dim); mask (n, m) is True to look."""
    group = q.shape[1] // k.shape[1]
    k = k.float().repeat_interleave(group, 1)
    v = v.float().repeat_interleave(group, 1)
    scores = torch.einsum("nhd,mhd->hnm", q.float(), k) * scaling
    if logit_cap and logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v)


def _within(window: int, mask: Any, query_at: Any) -> Any:
    """The mask, narrowed to a sliding window if there is one."""
    if not window or window <= 0:
        return mask
    key_at = torch.arange(mask.shape[1])
    return mask & (key_at[None] > query_at[:, None] - window)
