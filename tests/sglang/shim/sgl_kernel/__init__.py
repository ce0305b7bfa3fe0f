"""Stand-in in pure torch for the CPU operators of `sgl_kernel` that SGLang's speculative path calls.

For tests on tiny models: right first, fast never. Names and argument orders are SGLang's (0.5.16 to
0.5.23). Everything else of `sgl_kernel` is left out on purpose, above all `convert_weight_packed`:
without it SGLang reports a CPU without AMX and its layers take their plain torch paths.
"""

import torch

from .attention import decode_attention_cpu, extend_attention_cpu, scales_optional
from .kv_slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
)
from .trees import (
    build_tree_kernel_efficient_cpu,
    fill_bonus_tokens_cpu,
    reconstruct_indices_from_tree_mask,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)

reconstruct_indices_from_tree_mask_cpu = reconstruct_indices_from_tree_mask

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "reconstruct_indices_from_tree_mask",
    "reconstruct_indices_from_tree_mask_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

torch.ops.sgl_kernel.decode_attention_cpu = scales_optional(decode_attention_cpu, 3)
torch.ops.sgl_kernel.extend_attention_cpu = scales_optional(extend_attention_cpu, 6)
