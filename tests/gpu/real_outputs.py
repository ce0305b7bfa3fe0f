"""Is what comes out what the target alone would put out? Greedy outputs, and distributions of sampled ones."""

from __future__ import annotations

from collections import Counter
from typing import Any

from real_engine import RealEngine
from real_prompts import CHECKING_SEED, KINDS
from real_sizes import PROMPT_TOKENS

DWELLS = (1, 2, 3, 5, 8, 13)
SAMPLED_AT_ONCE = 2000


def greedy(engine: RealEngine) -> dict[str, Any]:
    """Greedy outputs: under each schedule of modes, or once in each size of batch of an engine that has only one way.

    Without speculation also the gap in nats between the two likeliest tokens, at every token put out.
    """
    sizes = engine.sizes
    prompts = engine.prompter.mixed(sizes.compared, CHECKING_SEED, PROMPT_TOKENS)
    found: dict[str, Any] = {"kinds": list(KINDS), "outputs": {}}
    # The size of the batch alone changes which kernels run, so every kind of engine runs in all of them.
    words = schedules(sizes.schedules) if engine.modes else [""] * len(sizes.at_once)
    for number, word in enumerate(words):
        at_once = sizes.at_once[number % len(sizes.at_once)]
        engine.force(word)
        found["outputs"][f"{word} {at_once} at once".strip()] = _in_parts(engine, prompts, at_once)
    if engine.plain:
        wishes = {"return_logprob": True, "top_logprobs_num": 2}
        answers = engine.generate(prompts, sizes.compared_tokens, **wishes)
        found["outputs"]["with log probabilities"] = [answer["output_ids"] for answer in answers]
        found["gaps"] = [
            [round(first[0] - second[0], 5) for first, second in answer["meta_info"]["output_top_logprobs"]]
            for answer in answers
        ]
    return found


def schedules(count: int) -> list[str]:
    """Words for this many schedules of modes."""
    return [f"shuffle {seed + 1} {DWELLS[seed % len(DWELLS)]}" for seed in range(count)]


def sampled(engine: RealEngine) -> dict[str, Any]:
    """How often each token came at each place of many sampled answers to one prompt."""
    sizes = engine.sizes
    (prompt,) = engine.prompter.prompts("prose", 1, CHECKING_SEED, PROMPT_TOKENS)
    if engine.modes:
        # The seeds of these draws are no schedule's of above.
        engine.force("shuffle 1001 2")
    counts = [Counter[int]() for _ in range(sizes.positions)]
    for first in range(0, sizes.samples, SAMPLED_AT_ONCE):
        many = min(SAMPLED_AT_ONCE, sizes.samples - first)
        for answer in engine.generate([prompt] * many, sizes.positions, sizes.temperature):
            for place, token in zip(counts, answer["output_ids"], strict=True):
                place[token] += 1
    return {"counts": [dict(place) for place in counts]}


def _in_parts(engine: RealEngine, prompts: list[list[int]], at_once: int) -> list[list[int]]:
    parts = [prompts[first : first + at_once] for first in range(0, len(prompts), at_once)]
    return [answer["output_ids"] for part in parts for answer in engine.generate(part, engine.sizes.compared_tokens)]
