"""What the start-up sweep measures, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab_sglang.lease import Mode

PROMPT_TOKENS = 64
# Steps to hold a mode for; the first few of each graph are warm-up.
STEPS = 24
# Steps that may pass until all requests run together, and until they are taken back.
SPARE_STEPS = 16
LARGEST_BATCH = 256
# Share of the KV cache that dummy requests may take.
KV_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Cell:
    """One batch size in one mode."""

    batch_size: int
    mode: Mode


def sizes_to_sweep(
    graph_sizes: Sequence[int], max_running: int, kv_capacity_tokens: int, modes: Sequence[Mode]
) -> list[int]:
    """Captured sizes that about double from one to the next, up to what may run and fit; powers of two without any."""
    bounds = [LARGEST_BATCH, max_running or LARGEST_BATCH]
    if kv_capacity_tokens:
        widest = max((mode.steps for mode in modes), default=0) + 1
        bounds.append(int(kv_capacity_tokens * KV_SHARE) // (PROMPT_TOKENS + (STEPS + SPARE_STEPS) * widest))
    largest = min(bounds)
    sizes = [size for size in graph_sizes or [1 << i for i in range(9)] if size <= largest]
    kept: list[int] = []
    for size in sizes:
        if not kept or size >= 2 * kept[-1] or size == sizes[-1]:
            kept.append(size)
    return kept


def spread(sizes: Sequence[int]) -> list[int]:
    """The ends first, then the middles of what lies between: whenever time runs out, the range is covered."""
    found, spans = [*sizes[:1], *sizes[1:][-1:]], [(0, len(sizes) - 1)]
    while spans:
        low, high = spans.pop(0)
        middle = (low + high) // 2
        if low < middle:
            found.append(sizes[middle])
            spans += [(low, middle), (middle, high)]
        elif middle + 1 < high:
            spans.append((middle, high))
    return found


def plan(graph_sizes: Sequence[int], max_running: int, kv_capacity_tokens: int, modes: Sequence[Mode]) -> list[Cell]:
    """Every mode at every size, the sizes in an order that covers their range early."""
    sizes = sizes_to_sweep(graph_sizes, max_running, kv_capacity_tokens, modes)
    return [Cell(size, mode) for size in spread(sizes) for mode in modes]
