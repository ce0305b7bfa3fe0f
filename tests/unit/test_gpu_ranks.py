"""What the script for two GPUs works out; the rest of it is run where two GPUs are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ranks


def test_equal_runs_have_a_ratio_of_one() -> None:
    assert ranks.geometric([1.0] * 8) == pytest.approx((1.0, 1.0, 1.0))


def test_the_interval_is_students_on_the_logarithms() -> None:
    """Worked by hand: logs 0.00 and 0.02, mean 0.01, deviation 0.01414, half width 12.706 * 0.01."""
    mean, low, high = ranks.geometric([1.0, 1.0202013])
    assert mean == pytest.approx(1.01005, abs=1e-5)
    assert (low, high) == pytest.approx((0.88954, 1.14689), abs=1e-4)


def test_one_pair_says_nothing_about_the_interval() -> None:
    assert ranks.geometric([0.9])[1:] == (0.0, float("inf"))


def test_models_are_shapes_with_a_draft_each(tmp_path: Path) -> None:
    ranks.write_models(tmp_path)
    kinds = {
        str(path.parent.relative_to(tmp_path)): json.loads(path.read_text())["architectures"]
        for path in tmp_path.glob("*/*/config.json")
    }
    assert kinds == {
        "llama/target": ["LlamaForCausalLM"],
        "llama/draft": ["LlamaForCausalLMEagle3"],
        "qwen3/target": ["Qwen3ForCausalLM"],
        "qwen3/draft": ["LlamaForCausalLMEagle3"],
    }


@pytest.mark.parametrize(
    ("result", "fine"),
    [
        ({"agreement": {"identical": True}}, True),
        ({"agreement": {"identical": True}, "throughput": {"reached": False}}, False),
        ({"agreement": {"identical": False}}, False),
        ({"failed": "EngineEndedError"}, False),
    ],
)
def test_a_part_is_fine_if_it_showed_what_it_was_to_show(result: dict[str, object], fine: bool) -> None:
    assert ranks.fine(result) == fine
