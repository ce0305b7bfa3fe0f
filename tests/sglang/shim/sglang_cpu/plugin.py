"""SGLang plugin that keeps the `intel_amx` attention backend although the CPU has no AMX.

SGLang's speculative path on CPUs needs that backend; its two kernels come from our `sgl_kernel`. Layers
still see "no AMX" and take their plain torch paths.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

FORCE_OVERLAP = "SGLANG_CPU_FORCE_OVERLAP"
GRAMMAR = "sglang.srt.constrained.xgrammar_backend.XGrammarGrammar"
ATTENTION_BACKEND = "sglang.srt.layers.attention.intel_amx_backend.IntelAMXAttnBackend"


def register() -> None:
    """Called by SGLang in each of its processes."""
    try:
        from sglang.srt.runtime_context import override_platform
    except ImportError:
        _mend_old_sglang()
    else:
        override_platform(has_amx=True).install()
    if os.environ.get(FORCE_OVERLAP) == "1":
        _force_overlap()


def _mend_old_sglang() -> None:
    """0.5.16 to 0.5.18: another switch for AMX, a bug in the attention backend, and no grammars on a CPU."""
    import sglang.srt.arg_groups.overrides as overrides

    overrides.cpu_has_amx_support = lambda: True
    HookRegistry.register(f"{ATTENTION_BACKEND}.forward_extend", _with_verify_lengths, HookType.AROUND)
    HookRegistry.register(f"{GRAMMAR}.apply_vocab_mask", _apply_vocab_mask, HookType.REPLACE)


def _apply_vocab_mask(_grammar: Any, logits: Any, vocab_mask: Any) -> None:
    """As later versions do on a CPU."""
    from xgrammar import apply_token_bitmask_inplace

    apply_token_bitmask_inplace(logits, vocab_mask, backend="cpu")


def _with_verify_lengths(
    extend: Callable[..., Any], backend: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """These versions work out the lengths of a verify (prefix and drafts), then overwrite them with the prefix."""
    if not batch.forward_mode.is_target_verify():
        return extend(backend, q, k, v, layer, batch, *args, **kwargs)
    prefix_lengths, batch.seq_lens = batch.seq_lens, backend.extend_metadata[0]
    try:
        return extend(backend, q, k, v, layer, batch, *args, **kwargs)
    finally:
        batch.seq_lens = prefix_lengths


def _force_overlap() -> None:
    """Keep overlap scheduling, which SGLang switches off for speculation on CPUs.

    It works on the tiny models with TRITON_INTERPRET=1; results then come one step after their launch,
    as they do on a GPU.
    """
    import torch

    # Keeps memory alive for another stream; a CPU has one, and torch's own refuses CPU tensors.
    torch.Tensor.record_stream = _nothing
    HookRegistry.register(
        "sglang.srt.arg_groups.speculative_hook._disable_overlap_schedule_for_cpu", _nothing, HookType.REPLACE
    )


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Stands in for a resolution step that is not wanted."""
