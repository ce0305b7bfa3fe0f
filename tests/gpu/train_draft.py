"""Trains an EAGLE3 draft head for a Llama from text that the Llama writes itself, within a given time.

    python tests/gpu/train_draft.py MODELS/target MODELS/draft --seconds 300
    python tests/gpu/train_draft.py MODELS/target MODELS/draft --seconds 60 --device cpu      to try it out

A quarter of the time goes into writing text from prompts of four kinds (`real_prompts.py`), the rest into training: the
head drafts several tokens in a row at every position, from its own output from the second on, and learns the target's
distribution at each. MODELS/draft gets the checkpoint, in files of less than 16 MB, and `training.json`: what was done,
and how many drafts in a row were right on text kept apart, by kind of prompt. Needs torch, tokenizers, safetensors.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from draft_head import Eagle3Head, HeadShape, read_layers
from draft_text import Text, Writer
from real_prompts import KINDS, Prompter
from small_llama import SmallLlama

WRITING_SHARE = 0.25
# Of the loss, from one draft in a row to the next.
FADING = 0.8
WARM_UP_SHARE, LAST_RATE = 0.03, 0.05
REPORTS = 20
SAVING_S = 5.0


@dataclass(frozen=True)
class Plan:
    """How much of everything.

    Attributes:
        rows: Prompts that are gone on with at once.
        prompt_length: Tokens of a prompt.
        length: Tokens of prompt and text.
        most_tokens: Of all text; a token takes 8 bytes for each number of a hidden state.
        window: Tokens of a row that are trained on at once.
        batch: Rows that are trained on at once.
        steps: Drafts in a row.
        draft_vocabulary: Tokens that the head can tell.
        rate: Learning rate.
        kept_apart: Rows of each round that are not trained on.
    """

    rows: int = 2048
    prompt_length: int = 48
    length: int = 1024
    most_tokens: int = 8 << 20
    window: int = 512
    batch: int = 16
    steps: int = 5
    draft_vocabulary: int = 8192
    rate: float = 1e-3
    kept_apart: int = 64


PLANS = {"cuda": Plan(), "cpu": Plan(48, 32, 160, 1 << 16, 64, 4, 3, 2048, 1e-3, 8)}


class Trainer:
    """Trains one head.

    Args:
        model: What it drafts for.
        head: The head.
        plan: How.
        device: Where.
    """

    def __init__(self, model: SmallLlama, head: Eagle3Head, plan: Plan, device: str) -> None:
        self._model, self._head, self._plan, self._device = model, head, plan, device
        self._output = model.output[head.hot_tokens]
        self._place = torch.full((head.shape.vocabulary,), -1, device=device)
        self._place[head.hot_tokens] = torch.arange(head.shape.draft_vocabulary, device=device)
        self._optimizer = torch.optim.AdamW(head.parameters(), lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.01)
        self.losses: list[float] = []

    def train(self, texts: Sequence[Text], seconds: float) -> int:
        """Train on windows drawn from the texts for so long; how often the weights were changed."""
        draw = torch.Generator().manual_seed(0)
        sizes = torch.tensor([float(text.tokens.numel()) for text in texts])
        began, done, reported = time.monotonic(), 0, 0
        while (share := (time.monotonic() - began) / seconds) < 1 or not done:
            for group in self._optimizer.param_groups:
                group["lr"] = self._plan.rate * _rate(share)
            text = texts[int(torch.multinomial(sizes, 1, generator=draw))]
            loss = self._learn(self._window(text, draw))
            done += 1
            if share * REPORTS >= reported:
                self.losses.append(round(float(loss), 4))
                reported += 1
        return done

    def _window(self, text: Text, draw: Any) -> Text:
        rows = torch.randint(len(text.tokens), (self._plan.batch,), generator=draw).to(self._device)
        first = int(torch.randint(max(1, text.tokens.shape[1] - self._plan.window), (1,), generator=draw))
        return text.rows(rows).window(first, self._plan.window)

    def _learn(self, text: Text) -> Any:
        with torch.no_grad():
            wanted = (text.last[:, 1:-1] @ self._output.T).float().softmax(-1)
            can_be_told = self._place[text.best[:, 1:-1]] >= 0
        total: Any = 0.0
        with self._computing():
            for step, state in enumerate(self._told(text, self._plan.steps)):
                logits = self._head.lm_head(state).float()
                counts = can_be_told.clone()
                counts[:, :step] = False
                lost = -(wanted * logits.log_softmax(-1)).sum(-1)
                total = total + FADING**step * (lost * counts).sum() / counts.sum().clamp_min(1)
        self._optimizer.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self._head.parameters(), 1.0)
        self._optimizer.step()
        return total.detach() / sum(FADING**step for step in range(self._plan.steps))

    def _told(self, text: Text, steps: int) -> list[Any]:
        """States in front of the head's output; position i is about token i + 2."""
        with torch.no_grad():
            embeddings = functional.embedding(text.tokens[:, 1:-1], self._model.embedding)
        told: list[Any] = self._head(embeddings, text.features[:, :-2], steps)
        return told

    def _computing(self) -> Any:
        return torch.autocast(self._device, torch.bfloat16, enabled=self._device != "cpu")

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def right_in_a_row(self, text: Text) -> Any:
        """1 where a draft and all before it are right, at every position of a text: shape (rows, positions, steps)."""
        with self._computing():
            told = [self._head.lm_head(state).argmax(-1) for state in self._told(text, self._plan.steps)]
        right = torch.stack([self._head.hot_tokens[best] == text.tokens[:, 2:] for best in told])
        places = right.shape[2] - self._plan.steps + 1
        chain = torch.stack([right[step, :, step : step + places] for step in range(self._plan.steps)], -1)
        return chain.float().cumprod(-1)


def _rate(share: float) -> float:
    """Of the learning rate, after this share of the time."""
    if share < WARM_UP_SHARE:
        return share / WARM_UP_SHARE
    return LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


def hot_tokens(texts: Sequence[Text], vocabulary: int, count: int) -> Any:
    """The tokens that the target chooses most often, ascending; ties, and what it never chose, by their number."""
    seen = sum(torch.bincount(text.best.reshape(-1), minlength=vocabulary) for text in texts)
    assert torch.is_tensor(seen)
    return seen.argsort(descending=True, stable=True)[:count].sort().values


def acceptance(trainer: Trainer, texts: Sequence[Text], prompt_length: int) -> dict[str, list[float]]:
    """Share of drafts that are right with all before them, by kind and sampling, for one in a row and more."""
    found: dict[str, list[Any]] = defaultdict(list)
    for text in texts:
        chains = trainer.right_in_a_row(text)[:, max(0, prompt_length - 2) :]
        for row, chain in enumerate(chains):
            way = "sampled" if row // len(KINDS) % 2 else "greedy"
            found[f"{KINDS[row % len(KINDS)]}, {way}"].append(chain.mean(0))
    return {name: [round(float(x), 3) for x in torch.stack(rows).mean(0)] for name, rows in sorted(found.items())}


def train(target_folder: Path, folder: Path, device: str, seconds: float, plan: Plan) -> dict[str, Any]:
    """Write the head's checkpoint; what was done."""
    began = time.monotonic()
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    config = json.loads((target_folder / "config.json").read_text())
    model = SmallLlama(target_folder, device, dtype, read_layers(config["num_hidden_layers"]))
    loaded_s = time.monotonic() - began
    writer = Writer(model, Prompter(target_folder), device)
    written_by = began + max(loaded_s, WRITING_SHARE * seconds)
    texts = list(writer.texts(plan.rows, plan.prompt_length, plan.length, written_by, plan.most_tokens))
    model.begin(0, 0)
    written_s = time.monotonic() - began
    shape = HeadShape.of(config, plan.draft_vocabulary)
    head = Eagle3Head(shape, hot_tokens(texts, shape.vocabulary, plan.draft_vocabulary)).to(device)
    head.start_from(model.tensors, config["num_hidden_layers"])
    trainer = Trainer(model, head, plan, device)
    kept = [text.rows(slice(0, plan.kept_apart)) for text in texts]
    before = acceptance(trainer, kept[:1], plan.prompt_length)
    left_s = seconds - SAVING_S - (time.monotonic() - began)
    updates = trainer.train([text.rows(slice(plan.kept_apart, None)) for text in texts], max(1.0, left_s))
    done = {
        "plan": asdict(plan), "device": device, "tokens": sum(text.tokens.numel() for text in texts),
        "loaded_s": round(loaded_s, 1), "written_s": round(written_s, 1), "updates": updates,
        "loss": trainer.losses, "right_in_a_row_before": before,
        "right_in_a_row": acceptance(trainer, kept, plan.prompt_length),
    }  # fmt: skip
    head.save(folder, config, torch.bfloat16)
    done["seconds"] = round(time.monotonic() - began, 1)
    (folder / "training.json").write_text(json.dumps(done, indent=1))
    return done


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and print what was done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0, help="for everything, from the start of the process on")
    parser.add_argument("--device", choices=PLANS, default="cuda")
    options = parser.parse_args(arguments)
    print(json.dumps(train(options.target, options.draft, options.device, options.seconds, PLANS[options.device])))


if __name__ == "__main__":
    main()
