"""Checks in the engine environment what the real model rests on: `python real_model_parts.py FOLDER`.

A Llama with weights drawn at random is written as a GGUF file, converted back, and must compute what it computed, in
`transformers` and in the few lines that write text for training; a draft head in training must compute what it will
when it drafts, token by token.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFWriter, TokenType
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from draft_head import Eagle3Head, HeadShape, read_layers
from real_model import OF_LAYER, WHOLE, convert
from small_llama import SmallLlama

TOKENS = ["<|end|>", *"abcde0123", "Ġ", "ab", "Ġab"]
MERGES = ["a b", "Ġ ab"]
CONFIG = LlamaConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, vocab_size=len(TOKENS), max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=5000.0,
    tie_word_embeddings=True,
)  # fmt: skip
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def check_conversion(folder: Path) -> None:
    """What comes back from a GGUF file computes the same, and cuts text as the file says."""
    model = LlamaForCausalLM(CONFIG).eval()
    write_gguf(model, folder / "model.gguf")
    convert(folder / "model.gguf", folder / "target", "float32")
    again = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32).eval()
    tokens = torch.randint(1, len(TOKENS), (2, 20))
    with torch.no_grad():
        torch.testing.assert_close(again(tokens).logits, model(tokens).logits, **CLOSE)
    tokenizer = AutoTokenizer.from_pretrained(folder / "target")
    check_reading(model, folder / "target")
    cut = tokenizer.encode("ab ab012<|end|>")
    assert [TOKENS[token] for token in cut] == ["ab", "Ġab", "0", "1", "2", "<|end|>"], cut
    assert tokenizer.decode(cut[:5]) == "ab ab012"


def check_reading(model: Any, target: Path) -> None:
    """The states that a head is trained on are those of the model: of a prompt at once, and token by token after it."""
    layers = read_layers(CONFIG.num_hidden_layers)
    small = SmallLlama(target, "cpu", torch.float32, layers)
    tokens = torch.randint(1, len(TOKENS), (2, 12))
    small.begin(2, 12)
    with torch.no_grad():
        read = [small.read(tokens[:, :8]), *(small.read(tokens[:, i : i + 1]) for i in range(8, 12))]
        right = model(tokens, output_hidden_states=True).hidden_states
    features = torch.cat([states.features for states in read], 1)
    torch.testing.assert_close(features, torch.cat([right[layer] for layer in layers], -1), **CLOSE)
    torch.testing.assert_close(torch.cat([states.last for states in read], 1), right[-1], **CLOSE)


def write_gguf(model: Any, file: Path) -> None:
    """A GGUF file of the model, with rows of queries and keys in the order that llama.cpp wants them in."""
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(CONFIG.max_position_embeddings)
    writer.add_embedding_length(CONFIG.hidden_size)
    writer.add_feed_forward_length(CONFIG.intermediate_size)
    writer.add_block_count(CONFIG.num_hidden_layers)
    writer.add_head_count(CONFIG.num_attention_heads)
    writer.add_head_count_kv(CONFIG.num_key_value_heads)
    writer.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    writer.add_rope_freq_base(5000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([TokenType.CONTROL, *[TokenType.NORMAL] * (len(TOKENS) - 1)])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    parts = {theirs: ours for ours, theirs in OF_LAYER.items()}
    whole = {theirs: ours for ours, theirs in WHOLE.items()}
    heads = {"attn_q": CONFIG.num_attention_heads, "attn_k": CONFIG.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        if name in whole:
            writer.add_tensor(whole[name], tensor.numpy())
            continue
        layer, _, part = name.removeprefix("model.layers.").removesuffix(".weight").partition(".")
        ours = parts[part]
        if ours in heads:
            tensor = tensor.view(heads[ours], 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape).contiguous()
        writer.add_tensor(f"blk.{layer}.{ours}.weight", tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check_drafting() -> None:
    """Step k at position i is the draft that k drafts from the target's states up to i - k lead to."""
    shape = HeadShape(16, 24, 4, 2, 4, 1e-5, 10000.0, 64, 40, 10)
    head = Eagle3Head(shape, torch.arange(10))
    embeddings, features = torch.randn(2, 9, 16), torch.randn(2, 9, 48)
    with torch.no_grad():
        told = head(embeddings, features, 4)
        for step in range(4):
            for position in range(step, 9):
                expected = draft_in_a_row(head, embeddings, features, position - step, step)
                torch.testing.assert_close(told[step][:, position], expected, **CLOSE)


def check_learning_in_half_precision() -> None:
    """As on a GPU: states and embeddings in bfloat16, weights in float32."""
    shape = HeadShape(16, 24, 4, 2, 4, 1e-5, 10000.0, 64, 40, 10)
    head = Eagle3Head(shape, torch.arange(10))
    embeddings, features = torch.randn(2, 9, 16).bfloat16(), torch.randn(2, 9, 48).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss = sum(head.lm_head(state).float().logsumexp(-1).mean() for state in head(embeddings, features, 3))
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in head.parameters())


def draft_in_a_row(head: Any, embeddings: Any, features: Any, known: int, drafts: int) -> Any:
    """With the target's states up to `known`, the head's own ones for so many positions more: the last state."""
    hidden = head.fc(features[:, : known + 1])
    out = head.midlayer(embeddings[:, : known + 1], hidden, [])
    for draft in range(1, drafts + 1):
        hidden = torch.cat([hidden, out[:, -1:]], 1)
        out = head.midlayer(embeddings[:, : known + 1 + draft], hidden, [])
    return head.norm(out[:, -1])


if __name__ == "__main__":
    torch.manual_seed(0)
    check_drafting()
    check_learning_in_half_precision()
    check_conversion(Path(sys.argv[1]))
