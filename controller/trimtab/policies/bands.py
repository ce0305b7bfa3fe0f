"""Bands of batch sizes: how the axis is cut so that each band costs about the same.

A batch is padded to the next captured graph, so an edge lies just above a captured size: a band then holds
the sizes from one above the previous kept size up to the next.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

DEFAULT_LARGEST = 256


def band_edges(graph_batch_sizes: Sequence[int] = (), largest: int = 0) -> tuple[int, ...]:
    """Smallest batch size of each band, ascending from 1: bands end at doubling captured sizes.

    Args:
        graph_batch_sizes: Captured sizes, ascending; empty takes powers of two.
        largest: Largest batch that can occur; 0 if unknown.

    Returns:
        Edges of shape `(n_bands,)`, for example `(1, 2, 3, 5, 9, 17)` for sizes up to 32.
    """
    top = largest or (graph_batch_sizes[-1] if graph_batch_sizes else DEFAULT_LARGEST)
    sizes = [s for s in graph_batch_sizes if s > 0] or [1 << i for i in range(top.bit_length())]
    edges, last = [1], 0
    for size in sizes:
        if size >= 2 * last and size < top:
            edges.append(size + 1)
            last = size
    return tuple(edges)


def band_of(edges: Sequence[int], batch_size: int) -> int:
    """Index of the band that this batch size belongs to."""
    return max(0, bisect_right(edges, batch_size) - 1)
