"""Book-keeping of KV slots: which slot of the cache holds which token of which request.

`req_to_token` has a row for each request and a column for each position in it.
"""

from __future__ import annotations

import ctypes
from typing import Any


def assign_req_to_token_pool_cpu(
    req_indices: Any, req_to_token: Any, starts: Any, ends: Any, slots: Any, pool_len: int
) -> None:
    """Write the flat `slots` into positions [start, end) of each request."""
    at = 0
    for request, start, end in zip(req_indices.tolist(), starts.tolist(), ends.tolist(), strict=True):
        req_to_token[request, start:end] = slots[at : at + end - start].to(req_to_token.dtype)
        at += end - start


def assign_extend_cache_locs_cpu(
    req_indices: Any, req_to_token: Any, starts: Any, ends: Any, slots: Any, pool_len: int
) -> None:
    """Read positions [start, end) of each request into the flat `slots`."""
    at = 0
    for request, start, end in zip(req_indices.tolist(), starts.tolist(), ends.tolist(), strict=True):
        slots[at : at + end - start] = req_to_token[request, start:end].to(slots.dtype)
        at += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_indices: Any, req_to_token: Any, seq_lens: Any, slots: Any, pool_len: int, topk: int, steps: int
) -> None:
    """Read the `topk * steps` positions after the end of each request into the flat `slots`."""
    assign_extend_cache_locs_cpu(req_indices, req_to_token, seq_lens, seq_lens + topk * steps, slots, pool_len)


def build_draft_decode_metadata_cpu(
    req_to_token: Any, req_indices: Any, seq_lens: Any, topk: int, steps: int, pool_len: int
) -> Any:
    """Slot rows for drafting, one for each request and branch: the request's prefix, then that branch's drafts."""
    rows = req_to_token[req_indices.long()].repeat_interleave(topk, 0)
    for i, length in enumerate(seq_lens.tolist()):
        source = req_to_token[req_indices[i]]
        for branch in range(topk):
            first = length + branch * steps
            rows[i * topk + branch, length : length + steps] = source[first : first + steps]
    return rows


def copy_all_layer_kv_cache_cpu(data_pointers: Any, strides: Any, targets: Any, sources: Any) -> None:
    """In every layer's buffer (pointer, bytes a slot) copy the source slots to the target slots, as if at once."""
    pairs = list(zip(targets.tolist(), sources.tolist(), strict=True))
    for pointer, stride in zip(data_pointers.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(pointer + source * stride, stride) for _, source in pairs]
        for (target, _), row in zip(pairs, rows, strict=True):
            ctypes.memmove(pointer + target * stride, row, stride)


def fill_accept_out_cache_loc_cpu(accept_index: Any, slots: Any, accepted_slots: Any, size: int | None = None) -> None:
    """Gather the slots of the accepted tokens (index above -1) at the front of `accepted_slots`."""
    accepted = accept_index.reshape(-1)[:size]
    accepted = accepted[accepted > -1].long()
    accepted_slots[: accepted.numel()] = slots[accepted]
