"""What a draft head is trained on: text that the target writes itself, with the hidden states it wrote it from."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from real_prompts import KINDS, TRAINING_SEED, Prompter
from small_llama import SmallLlama

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


class Writer:
    """Writes text with the model that a head is to draft for.

    Args:
        model: That model.
        prompter: Its prompts.
        device: Where it runs.
    """

    def __init__(self, model: SmallLlama, prompter: Prompter, device: str) -> None:
        self._model, self._prompter, self._device = model, prompter, device

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
        prompts = self._prompter.mixed(rows, TRAINING_SEED + 1000 * seed, prompt_length)
        draw = torch.Generator(self._device).manual_seed(seed)
        heat = (torch.arange(rows, device=self._device) // len(KINDS) % 2 * TEMPERATURE)[:, None]
        self._model.begin(rows, length)
        fed = torch.tensor(prompts, device=self._device)
        parts, written = list[tuple[Any, ...]](), 0
        while True:
            states = self._model.read(fed)
            # Position by position: a prompt's logits all at once would be gigabytes.
            best = [(states.last[:, i] @ self._model.output.T).argmax(-1) for i in range(fed.shape[1] - 1)]
            logits = states.last[:, -1] @ self._model.output.T
            parts.append((fed, torch.stack([*best, logits.argmax(-1)], 1), states.features, states.last))
            written += fed.shape[1]
            if written >= length or time.monotonic() > deadline:
                return Text(*(torch.cat(part, 1) for part in zip(*parts, strict=True)))
            fed = (logits.float() + heat * self._gumbel(rows, logits.shape[-1], draw)).argmax(-1, keepdim=True)

    def texts(self, rows: int, prompt_length: int, length: int, deadline: float, most_tokens: int) -> Iterator[Text]:
        """Rounds of text until the time is over or there are enough; the last may be short, one there is always."""
        for seed in range(max(1, most_tokens // (rows * length))):
            text = self.write(rows, prompt_length, length, seed, deadline)
            if seed == 0 or text.tokens.shape[1] >= min(SHORTEST, length):
                yield text
            if time.monotonic() > deadline:
                return

    def _gumbel(self, rows: int, tokens: int, draw: Any) -> Any:
        """Noise whose addition to logits, before the largest is taken, samples from them."""
        even = torch.rand(rows, tokens, generator=draw, device=self._device).clamp_min(1e-20)
        return -(-even.log()).clamp_min(1e-20).log()
