"""What the script for two GPUs works out; the rest of it is run where two GPUs are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ranks


def test_models_are_shapes_with_a_draft_each(tmp_path: Path) -> None:
    ranks.write_models(tmp_path)
    kinds = {
        str(path.parent.relative_to(tmp_path)): json.loads(path.read_text())["architectures"]
        for path in tmp_path.glob("*/*/config.json")
    }
    assert kinds == {
        "llama/target": ["LlamaForCausalLM"],
        "llama/draft": ["LlamaForCausalLMEagle3"],
        "large/target": ["LlamaForCausalLM"],
        "large/draft": ["LlamaForCausalLMEagle3"],
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
