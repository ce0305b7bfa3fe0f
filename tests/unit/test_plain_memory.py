"""What native plain takes of the device, known before the start."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab_sglang import host
from trimtab_sglang.plain_memory import (
    LEAST_WINDOW,
    MIB,
    MOST_WINDOW,
    PlainMemory,
    Server,
    estimate,
    hidden_width,
    row_bytes,
    window_for,
)

LLAMA = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "torch_dtype": "bfloat16",
}  # fmt: skip
EAGLE3 = Server(LLAMA, {**LLAMA, "num_hidden_layers": 1}, "EAGLE3", 255, 256, 8192, "triton")


def test_the_ring_holds_hidden_states_and_tokens_of_every_request() -> None:
    memory = estimate(EAGLE3, 256 * MIB)
    assert row_bytes(3 * 4096, 2) == 24_584
    assert memory.window_tokens == 256 * MIB // (256 * 24_584) == 42
    assert memory.ring_bytes == 256 * 42 * 24_584


def test_the_decode_graph_takes_what_triton_sets_aside_for_every_token_of_every_request() -> None:
    logits = 256 * 32 * 8 * (128 + 1) * 4
    assert estimate(EAGLE3, 256 * MIB).graph_bytes == 256 * 8192 * (8 + 1) + logits
    assert estimate(replace(EAGLE3, attention_backend="fa3"), 256 * MIB).graph_bytes == 256 * 8192 * 4
    assert estimate(replace(EAGLE3, graph_batch=0), 256 * MIB).graph_bytes == 0


def test_it_is_said_in_kv_tokens_of_target_and_draft() -> None:
    memory = estimate(EAGLE3, 256 * MIB)
    assert memory.kv_token_bytes == 2 * (32 + 1) * 8 * 128 * 2
    assert memory.kv_tokens == (memory.ring_bytes + memory.graph_bytes) // memory.kv_token_bytes
    assert PlainMemory(8, 1_000, 1_000).kv_tokens == 0


@pytest.mark.parametrize(
    ("algorithm", "draft", "width"),
    [
        ("EAGLE", {}, 4096),
        ("EAGLE3", {}, 3 * 4096),
        ("EAGLE3", {"num_aux_hidden_states": 4}, 4 * 4096),
        ("EAGLE3", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 9]}}, 2 * 4096),
    ],
)
def test_eagle3_reads_several_layers_side_by_side(algorithm: str, draft: dict[str, object], width: int) -> None:
    assert hidden_width(replace(EAGLE3, algorithm=algorithm, draft=draft)) == width


@pytest.mark.parametrize(
    ("budget_bytes", "window"),
    [(1 << 40, MOST_WINDOW), (10 * 100 * 20, 20), (10 * 100 * LEAST_WINDOW, LEAST_WINDOW), (10 * 100 * 3, 0), (0, 0)],
)
def test_the_window_follows_the_budget_within_bounds(budget_bytes: int, window: int) -> None:
    assert window_for(budget_bytes, rows=10, token_bytes=100) == window


# -- the self-check ------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return str(tmp_path)


def test_the_self_check_says_what_it_will_take(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    host.main(["--model", model, "--max-running-requests", "255", "--attention-backend", "triton"])
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Native plain would take 252 MiB for 42 unread tokens a request and about 9 MiB for its decode graph: "
        "the memory of 1,046 KV tokens."
    )
    host.main(["--json", "--model", model, "--max-running-requests", "255"])
    assert json.loads(capsys.readouterr().out)["plain"]["window_tokens"] == 42


def test_the_self_check_says_when_the_budget_is_too_small(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    host.main(["--model", model, "--catch-up-mib", "1"])
    assert "TRIMTAB_CATCH_UP_MIB is too small" in capsys.readouterr().out.splitlines()[-1]


def test_a_model_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        host.main(["--model", str(tmp_path / "nothing")])
    assert "nothing/config.json cannot be read" in capsys.readouterr().err
