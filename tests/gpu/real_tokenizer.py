"""The tokenizer in a GGUF file's metadata, as the files that `transformers` reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONTROL, USER_DEFINED = 3, 4
# How text is cut before the merges apply, by the file's name for it. The byte-level step cuts as GPT-2 does.
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
CUTS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [BYTE_LEVEL],
    "smollm": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
}


class TokenizerError(Exception):
    """The file has a tokenizer of another kind; the message says which."""


def tokenizer_files(fields: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json by name, from the metadata of a GGUF file."""
    kind, cut = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or cut not in CUTS:
        raise TokenizerError(f"the tokenizer is of kind {kind}/{cut}; gpt2 with {' or '.join(CUTS)} can be converted")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    added = [
        {
            "id": number, "content": tokens[number], "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": kinds[number] == CONTROL,
        }
        for number in range(len(tokens)) if kinds[number] in (CONTROL, USER_DEFINED)
    ]  # fmt: skip
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": CUTS[cut]}, "post_processor": None,
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }  # fmt: skip
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: fields.get(f"tokenizer.ggml.{theirs}_token_id") for name, theirs in named.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"], "add_prefix_space": False,
        "chat_template": fields.get("tokenizer.chat_template"),
        **{name: tokens[number] for name, number in ids.items() if number is not None},
    }  # fmt: skip
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": config}
