from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.policies.bands import band_edges, band_of

SGLANG_GRAPHS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 128, 160, 256)


@pytest.mark.parametrize(
    ("graph_batch_sizes", "largest", "edges"),
    [
        (SGLANG_GRAPHS, 0, (1, 2, 3, 5, 9, 17, 33, 65, 129)),
        (SGLANG_GRAPHS, 16, (1, 2, 3, 5, 9)),
        ((), 32, (1, 2, 3, 5, 9, 17)),
        ((1,), 0, (1,)),
        ((3, 5), 0, (1, 4)),
        ((1,), 8, (1, 2)),
    ],
)
def test_a_band_ends_at_a_captured_size_twice_the_last(
    graph_batch_sizes: tuple[int, ...], largest: int, edges: tuple[int, ...]
) -> None:
    assert band_edges(graph_batch_sizes, largest) == edges


@given(st.sets(st.integers(1, 512)).map(sorted).map(tuple), st.integers(0, 600), st.integers(1, 700))
def test_edges_ascend_from_one_and_every_batch_has_a_band(
    graph_batch_sizes: tuple[int, ...], largest: int, batch_size: int
) -> None:
    edges = band_edges(graph_batch_sizes, largest)
    assert edges[0] == 1
    assert list(edges) == sorted(set(edges))
    at = band_of(edges, batch_size)
    assert edges[at] <= batch_size
    assert at + 1 == len(edges) or batch_size < edges[at + 1]


@given(st.sets(st.integers(1, 512), min_size=1).map(sorted).map(tuple), st.integers(1, 512))
def test_sizes_padded_to_the_same_graph_are_in_the_same_band(
    graph_batch_sizes: tuple[int, ...], batch_size: int
) -> None:
    padded = next((size for size in graph_batch_sizes if size >= batch_size), None)
    edges = band_edges(graph_batch_sizes)
    if padded is not None:
        assert band_of(edges, batch_size) == band_of(edges, padded)
