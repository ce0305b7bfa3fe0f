"""What a draft head is trained on: text that the target writes itself, with the hidden states it wrote it from."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draft_head import read_layers
from real_prompts import KINDS, TRAINING_SEED, Prompter

# Every other prompt of a kind is gone on with greedily, the rest is sampled.
TEMPERATURE = 0.8
# Shorter text is left out if there is other.
SHORTEST = 64


@dataclass(frozen=True)
class Text:
    """Rows of text. Row i goes on from a prompt of kind `KINDS[i % 4]`, greedily if i // 4 is even.

    Attributes:
        tokens: Shape (rows, length).
        best: What the target would choose after each token, shape (rows, length).
        features: What the head reads at each token, shape (rows, length, 3 * hidden).
        last: The target's states in front of its output head, shape (rows, length, hidden).
    """

    tokens: Any
    best: Any
    features: Any
    last: Any

    def rows(self, which: Any) -> Text:
        """These rows alone."""
        return Text(self.tokens[which], self.best[which], self.features[which], self.last[which])

    def window(self, first: int, length: int) -> Text:
        """The tokens from `first` on, `length` at most."""
        part = slice(first, first + length)
        return Text(self.tokens[:, part], self.best[:, part], self.features[:, part], self.last[:, part])


class Target:
    """The model that the head drafts for.

    Args:
        folder: Its checkpoint.
        device: Where it runs.
        dtype: What it computes in.
    """

    def __init__(self, folder: Path, device: str, dtype: Any) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
        self._device, self._dtype = device, dtype
        self._read = read_layers(self._model.config.num_hidden_layers)
        self.prompter = Prompter(folder)

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Its weights by name."""
        weights: Mapping[str, Any] = self._model.state_dict()
        return weights

    def embed(self, tokens: Any) -> Any:
        """Embeddings, shape (..., hidden)."""
        return self._model.get_input_embeddings()(tokens)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def write(self, rows: int, prompt_length: int, length: int, seed: int, deadline: float) -> Text:
        """Go on from `rows` prompts until they are `length` tokens long or the time is over.

        Args:
            rows: A multiple of 8 gives every kind of prompt, greedily and sampled.
            prompt_length: Tokens of a prompt.
            length: Tokens of prompt and text.
            seed: Of prompts and sampling.
            deadline: On the monotonic clock, seconds.
        """
        prompts = self.prompter.mixed(rows, TRAINING_SEED + 1000 * seed, prompt_length)
        draw = torch.Generator(self._device).manual_seed(seed)
        sampled = torch.arange(rows, device=self._device) // len(KINDS) % 2
        heat = (sampled * TEMPERATURE)[:, None]
        fed, cache = torch.tensor(prompts, device=self._device), None
        parts: list[tuple[Any, ...]] = []
        written = 0
        while True:
            out = self._model.model(
                input_ids=fed, past_key_values=cache, use_cache=True, output_hidden_states=True, return_dict=True
            )
            cache, states = out.past_key_values, out.hidden_states
            features = torch.cat([states[layer] for layer in self._read], -1).to(self._dtype)
            # The last of the states is behind the final norm.
            logits = self._model.lm_head(states[-1])
            parts.append((fed, logits.argmax(-1), features, states[-1]))
            written += fed.shape[1]
            if written >= length or time.monotonic() > deadline:
                return Text(*(torch.cat(part, 1) for part in zip(*parts, strict=True)))
            fed = (logits[:, -1].float() + heat * self._gumbel(rows, logits.shape[-1], draw)).argmax(-1, keepdim=True)

    def texts(self, rows: int, prompt_length: int, length: int, deadline: float) -> Iterator[Text]:
        """Rounds of text until the time is over; the last may be short, one there is always."""
        for seed in range(1 << 20):
            text = self.write(rows, prompt_length, length, seed, deadline)
            if seed == 0 or text.tokens.shape[1] >= min(SHORTEST, length):
                yield text
            if time.monotonic() > deadline:
                return

    def _gumbel(self, rows: int, tokens: int, draw: Any) -> Any:
        """Noise whose addition to logits, before the largest is taken, samples from them."""
        even = torch.rand(rows, tokens, generator=draw, device=self._device).clamp_min(1e-20)
        return -(-even.log()).clamp_min(1e-20).log()
