"""An EAGLE3 draft head for a Llama, to be trained: one decoder layer over the target's hidden states.

It computes what `LlamaForCausalLMEagle3` computes in SGLang, and is saved in the form that SGLang loads. At position i
it reads the embedding of token i + 1 and the target's hidden states at i, those in front of three of its layers side by
side; it tells token i + 2. Drafting further, it reads its own output in the place of the target's hidden states.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

# A file of at most so many bytes travels anywhere.
SHARD_BYTES = 12 << 20


@dataclass(frozen=True)
class HeadShape:
    """Sizes of the head; all but the vocabulary are the target's."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    positions: int
    vocabulary: int
    draft_vocabulary: int

    @classmethod
    def of(cls, config: Mapping[str, Any], draft_vocabulary: int) -> HeadShape:
        """The shape for a target with this config.json."""
        return cls(
            config["hidden_size"], config["intermediate_size"], config["num_attention_heads"],
            config["num_key_value_heads"], config["head_dim"], config["rms_norm_eps"], config["rope_theta"],
            config["max_position_embeddings"], config["vocab_size"], draft_vocabulary,
        )  # fmt: skip


def read_layers(layers: int) -> tuple[int, int, int]:
    """The target's layers in front of which SGLang takes hidden states for EAGLE3, unless told otherwise."""
    return 2, layers // 2, layers - 3


class Attention(nn.Module):  # type: ignore[misc]
    """Attention whose keys are of several passes: the head's over the target's states, then those over its own."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self._shape = shape
        inputs, keys = 2 * shape.hidden, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(inputs, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(inputs, keys, bias=False)
        self.v_proj = nn.Linear(inputs, keys, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        half = torch.arange(0, shape.head_dim, 2).float() / shape.head_dim
        self.register_buffer("frequencies", shape.rope_theta**-half, persistent=False)

    def forward(self, x: Any, passes: list[tuple[Any, Any]]) -> Any:
        """Attend with x (batch, length, 2 * hidden); its own keys and values are appended to `passes`.

        In pass k a query at position i sees the first pass up to i - k, and of pass j the one key at i - k + j: that is
        what lies before it when it is the k-th draft in a row.
        """
        batch, length, _ = x.shape
        q = self._rotated(self.q_proj(x).view(batch, length, self._shape.heads, -1).transpose(1, 2))
        k = self._rotated(self.k_proj(x).view(batch, length, self._shape.kv_heads, -1).transpose(1, 2))
        v = self.v_proj(x).view(batch, length, self._shape.kv_heads, -1).transpose(1, 2)
        group = self._shape.heads // self._shape.kv_heads
        passes.append((k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
        now = len(passes) - 1
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril(-now)
        scale = self._shape.head_dim**-0.5
        scores = [(q @ passes[0][0].transpose(2, 3) * scale).float().masked_fill(~mask, float("-inf"))]
        scores += [
            (q * _later(keys, now - j)).sum(-1, keepdim=True).float() * scale
            for j, (keys, _) in enumerate(passes) if j
        ]  # fmt: skip
        weights = torch.cat(scores, -1).softmax(-1).to(q.dtype)
        out = weights[..., :length] @ passes[0][1]
        for j in range(1, now + 1):
            out = out + weights[..., length + j - 1, None] * _later(passes[j][1], now - j)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))

    def _rotated(self, x: Any) -> Any:
        angles = torch.arange(x.shape[2], device=x.device).float()[:, None] * self.frequencies
        cos, sin = (torch.cat([part, part], -1).to(x.dtype) for part in (angles.cos(), angles.sin()))
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin


def _later(x: Any, places: int) -> Any:
    """What lies so many places earlier, at every position; zeros in front."""
    return functional.pad(x, (0, 0, places, 0))[:, :, : x.shape[2]] if places else x


class Mlp(nn.Module):  # type: ignore[misc]
    """The feed-forward part of a Llama layer."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Any) -> Any:
        """Shapes: (..., hidden)."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):  # type: ignore[misc]
    """The decoder layer: embedding and hidden state side by side at its input."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (
            nn.RMSNorm(shape.hidden, eps=shape.norm_eps) for _ in range(3)
        )
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)

    def forward(self, embeddings: Any, hidden: Any, passes: list[tuple[Any, Any]]) -> Any:
        """Shapes: (batch, length, hidden)."""
        both = torch.cat([self.input_layernorm(embeddings), self.hidden_norm(hidden)], -1)
        hidden = hidden + self.self_attn(both, passes)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3Head(nn.Module):  # type: ignore[misc]
    """The head.

    Args:
        shape: Its sizes.
        hot_tokens: Tokens that it can tell, ascending, shape (draft_vocabulary,).
    """

    def __init__(self, shape: HeadShape, hot_tokens: Any) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(3 * shape.hidden, shape.hidden, bias=False)
        self.midlayer = Layer(shape)
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.lm_head = nn.Linear(shape.hidden, shape.draft_vocabulary, bias=False)
        self.register_buffer("hot_tokens", hot_tokens, persistent=False)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def start_from(self, target: Mapping[str, Any], layers: int) -> None:
        """Begin with the target's own last layer, norm and output rows instead of noise.

        Args:
            target: The target's tensors by name.
            layers: How many layers it has.
        """
        hidden, prefix = self.shape.hidden, f"model.layers.{layers - 1}."
        self.fc.weight.zero_()
        self.fc.weight[:, 2 * hidden :] = torch.eye(hidden, device=self.fc.weight.device)
        self.norm.weight.copy_(target["model.norm.weight"])
        head = target.get("lm_head.weight", target["model.embed_tokens.weight"])
        self.lm_head.weight.copy_(head[self.hot_tokens.to(head.device)])
        for name, parameter in self.midlayer.named_parameters():
            if name == "input_layernorm.weight":
                continue
            weight = target[prefix + name.replace("hidden_norm", "input_layernorm")]
            # The projections read the embedding first, which the target's layer knows nothing of.
            parameter[..., -weight.shape[-1] :] = weight

    def forward(self, embeddings: Any, features: Any, steps: int) -> list[Any]:
        """What it tells at every position when drafting 1, 2 ... `steps` tokens in a row.

        Args:
            embeddings: Of the next token at every position, shape (batch, length, hidden).
            features: The target's hidden states, shape (batch, length, 3 * hidden).
            steps: Drafts in a row.

        Returns:
            States in front of `lm_head`, one (batch, length, hidden) a step. In step k (from 0) the first k
            positions have nothing before them and say nothing.
        """
        hidden, passes, told = self.fc(features), list[tuple[Any, Any]](), []
        for step in range(steps):
            if step:
                # The draft before this one was made one position earlier.
                hidden = functional.pad(hidden, (0, 0, 1, 0))[:, :-1]
            hidden = self.midlayer(embeddings, hidden, passes)
            told.append(self.norm(hidden))
        return told

    def save(self, folder: Path, config: Mapping[str, Any], dtype: Any) -> None:
        """Write config.json and the weights, in files of `SHARD_BYTES` or one tensor.

        Args:
            folder: Where to.
            config: The target's config.json.
            dtype: Of the weights.
        """
        folder.mkdir(parents=True, exist_ok=True)
        told = torch.zeros(self.shape.vocabulary, dtype=torch.bool)
        told[self.hot_tokens.cpu()] = True
        tensors = {name: weight.detach().cpu().to(dtype).contiguous() for name, weight in self.state_dict().items()}
        # SGLang reads differences between the ids of the draft and the target.
        tensors["d2t"] = self.hot_tokens.cpu() - torch.arange(self.shape.draft_vocabulary)
        tensors["t2d"] = told
        _save_in_shards(folder, tensors)
        more = {
            "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "tie_word_embeddings": False,
            "draft_vocab_size": self.shape.draft_vocabulary, "torch_dtype": str(dtype).removeprefix("torch."),
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps({**config, **more}))


def _save_in_shards(folder: Path, tensors: Mapping[str, Any]) -> None:
    names = _groups({name: tensor.nbytes for name, tensor in tensors.items()}, SHARD_BYTES)
    index: dict[str, str] = {}
    for number, group in enumerate(names, 1):
        file = f"model-{number:05}-of-{len(names):05}.safetensors"
        save_file({name: tensors[name] for name in group}, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(group, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    content = {"metadata": {"total_size": total}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))


def _groups(sizes: Mapping[str, int], most: int) -> Sequence[list[str]]:
    """The names in groups of at most so many bytes, but one at least."""
    groups, filled = list[list[str]](), 0
    for name, size in sizes.items():
        if not groups or filled + size > most:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups
