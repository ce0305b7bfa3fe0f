"""What the candidate step counts take: device memory, and room in the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class CandidateCost:
    """0 where it is not known.

    Attributes:
        memory_bytes: Device memory that building the candidates beside the initial one took, graphs included.
        kv_tokens: The same in tokens of the KV cache.
        reserved_kv_tokens_per_request: KV slots that a running request keeps free for drafts, in every mode.
    """

    memory_bytes: int = 0
    kv_tokens: int = 0
    reserved_kv_tokens_per_request: int = 0

    def __str__(self) -> str:
        parts = []
        if self.memory_bytes:
            parts.append(f"{self.memory_bytes / GIB:.2f} GiB of device memory")
        if self.kv_tokens:
            parts.append(f"as much as {self.kv_tokens} KV tokens")
        if self.reserved_kv_tokens_per_request:
            parts.append(f"{self.reserved_kv_tokens_per_request} KV tokens kept free by every running request")
        return ", ".join(parts) or "nothing that could be measured"


UNKNOWN_COST = CandidateCost()


def free_device_bytes() -> int | None:
    """Free memory of this process's GPU by its driver; None without one."""
    import sys

    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return int(cuda.mem_get_info()[0]) if cuda is not None and cuda.is_available() else None
    except Exception:  # noqa: BLE001 - a driver's errors are its own, and no figure is worth a fuse
        return None


def candidate_cost(scheduler: Any, candidate_steps: Sequence[int], memory_bytes: int) -> CandidateCost:
    """The cost of these candidates, of which `memory_bytes` were measured while they were built."""
    if not candidate_steps:
        return CandidateCost()
    token_bytes = _kv_token_bytes(scheduler)
    return CandidateCost(
        memory_bytes=memory_bytes,
        kv_tokens=round(memory_bytes / token_bytes) if token_bytes else 0,
        # SGLang reserves twice the widest step, so that a result may lag one step behind its launch.
        reserved_kv_tokens_per_request=2 * (max(candidate_steps) + 1),
    )


def _kv_token_bytes(scheduler: Any) -> float:
    """Bytes of one token in the target's KV cache; 0 if this version does not say."""
    try:
        pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
        return float(pool.mem_usage) * GIB / int(scheduler.max_total_num_tokens)
    except Exception:  # noqa: BLE001 - names differ between versions, and no figure is worth a fuse
        return 0.0
