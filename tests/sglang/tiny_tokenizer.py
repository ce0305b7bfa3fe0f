"""A tokenizer for the tiny models: every token is a short text of its own, and texts are simply joined.

Tokens 0 to 25 are the letters a to z, 26 to 35 the digits, 36 to 45 what JSON needs; all others are two letters. Text
in requests is not cut into tokens: prompts are given as ids.
"""

from __future__ import annotations

import json
import string
from itertools import product
from pathlib import Path

PUNCTUATION = '{}[]",: -.'
LETTERS = string.ascii_lowercase


def texts(vocabulary: int) -> list[str]:
    """The text of every token."""
    single = [*LETTERS, *string.digits, *PUNCTUATION]
    pairs = [first + second for first, second in product(LETTERS, LETTERS)]
    return [*[*single, *pairs][: vocabulary - 1], "</s>"]


def save(folder: Path, vocabulary: int) -> None:
    """Write tokenizer.json and its configuration as `transformers` reads them."""
    tokens = {text: number for number, text in enumerate(texts(vocabulary))}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [
            {
                "id": vocabulary - 1, "content": "</s>", "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True,
            }
        ],
        "normalizer": None, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated",
        "invert": False}, "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": tokens, "unk_token": "a"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "model_max_length": 2048}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
