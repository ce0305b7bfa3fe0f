"""How each of the compared engines is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bench_engines
import dummy_models


@pytest.fixture
def bench(tmp_path: Path) -> bench_engines.Bench:
    dummy_models.make(tmp_path / "models", "tiny", bench_engines.CANDIDATES)
    (tmp_path / "work").mkdir()
    return bench_engines.Bench(
        bench_engines.CARD, "fa3", tmp_path / "models", False, tmp_path / "work", tmp_path, [[0.5] * 7], 8
    )


def table(arguments: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(arguments["speculative_adaptive_config"]).read_text())
    return found


def test_the_shared_engine_builds_every_candidate_and_starts_at_the_widest(bench: bench_engines.Bench) -> None:
    arguments = bench_engines.engine_arguments(bench, "shared")
    assert arguments["speculative_adaptive"]
    assert (arguments["speculative_num_steps"], arguments["speculative_num_draft_tokens"]) == (7, 8)
    assert table(arguments) == {"1": {"candidate_steps": [0, 1, 2, 3, 5, 7]}}


def test_an_engine_without_speculation_has_no_word_of_it(bench: bench_engines.Bench) -> None:
    assert not [name for name in bench_engines.engine_arguments(bench, "alone") if name.startswith("speculative")]


def test_a_stock_server_has_one_step_count_or_sglangs_own_table(bench: bench_engines.Bench) -> None:
    fixed = bench_engines.engine_arguments(bench, "stock:3")
    assert (fixed["speculative_num_steps"], fixed["speculative_num_draft_tokens"]) == (3, 4)
    assert "speculative_adaptive" not in fixed
    adaptive = bench_engines.engine_arguments(bench, "stock:adaptive")
    assert adaptive["speculative_adaptive"]
    assert "speculative_adaptive_config" not in adaptive


def test_the_stock_engine_of_the_price_is_held_at_its_steps_and_builds_what_ours_builds(
    bench: bench_engines.Bench,
) -> None:
    slots = table(bench_engines.engine_arguments(bench, "adaptive", together=True, held=3))
    assert slots["1"] == {"candidate_steps": [3]}
    (never,) = set(slots) - {"1"}
    assert int(never) > 100_000
    assert slots[never] == {"candidate_steps": [0, 1, 2, 3, 5, 7]}


def test_engines_side_by_side_take_a_part_of_the_memory_and_sleep_while_idle(bench: bench_engines.Bench) -> None:
    alone, beside = (bench_engines.engine_arguments(bench, "shared", together) for together in (False, True))
    assert "max_total_tokens" not in alone
    assert beside["max_total_tokens"] > 0
    assert beside["sleep_on_idle"]


@pytest.mark.parametrize(("architecture", "algorithm"), [("Eagle3", "EAGLE3"), ("Eagle", "EAGLE")])
def test_the_algorithm_is_that_of_the_draft(bench: bench_engines.Bench, architecture: str, algorithm: str) -> None:
    config = bench.models / "draft" / "config.json"
    config.write_text(json.dumps({"architectures": [f"LlamaForCausalLM{architecture}"]}))
    assert bench_engines.engine_arguments(bench, "stock:1")["speculative_algorithm"] == algorithm


def test_a_token_takes_what_target_and_draft_keep_of_it(tmp_path: Path) -> None:
    """8B shape: keys and values of 8 heads of 128 numbers, 2 bytes each, in 32 layers and the draft's one."""
    dummy_models.make(tmp_path, "8b")
    assert dummy_models.kv_bytes_per_token(tmp_path) == 2 * 8 * 128 * 2 * 33
