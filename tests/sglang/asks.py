"""What tests of the modes ask for: requests of many lengths, with grammars, stop conditions and log probabilities."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from engine_server import Answer, EngineServer
from prompts import ALL_TOKENS, prompts
from tiny_tokenizer import texts

VOCABULARY = 512
JSON_SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
LOGPROB_TOLERANCE = 2e-3


@dataclass(frozen=True)
class Ask:
    """One request. `wishes` are further parameters; see `EngineServer.generate`."""

    prompt: tuple[int, ...]
    tokens: int
    wishes: Mapping[str, Any] = field(default_factory=dict)

    def submit(self, engine: EngineServer) -> Future[Answer]:
        """Send it."""
        return engine.submit(self.prompt, self.tokens, **self.wishes)


def ordinary(count: int, seed: int, longest_prompt: int = 20) -> list[Ask]:
    """Requests that only differ in prompt and length."""
    source = random.Random(seed)
    return [Ask(tuple(p), source.randint(20, 120)) for p in prompts(count, ALL_TOKENS, seed, longest_prompt)]


def special(engine: EngineServer, seed: int) -> list[Ask]:
    """Requests that end or are steered by something else than their length; the engine says what ends them."""
    bases = ordinary(9, seed)
    stopped = [_stopping(base, engine.generate(base.prompt, 60)) for base in bases[:4]]
    return [
        *(stopped[:2]),
        *(
            Ask(ask.prompt, ask.tokens, {"stop": [texts(VOCABULARY)[ask.wishes["stop_token_ids"][0]]]})
            for ask in stopped[2:]
        ),
        Ask(bases[4].prompt, 60, {"return_logprob": True}),
        Ask(bases[5].prompt, 90, {"return_logprob": True}),
        Ask(bases[6].prompt, 40, {"regex": "[a-d]{10}(xy|yx)[0-9]{5}", "ignore_eos": False}),
        Ask(bases[7].prompt, 60, {"json_schema": JSON_SCHEMA, "ignore_eos": False}),
        Ask(bases[8].prompt, 100, {"ignore_eos": False}),
    ]


def _stopping(base: Ask, answer: Answer) -> Ask:
    """The same request, but for a token in the midst of its answer that ends it."""
    return Ask(base.prompt, 60, {"stop_token_ids": [answer.tokens[25]]})


def differences(asks: Sequence[Ask], expected: Sequence[Answer], answers: Sequence[Answer]) -> list[str]:
    """What is not as expected, for people; nothing if all is."""
    found = []
    for ask, right, answer in zip(asks, expected, answers, strict=True):
        if (answer.tokens, answer.finish_reason) != (right.tokens, right.finish_reason):
            found.append(f"{ask}: {answer.finish_reason} {answer.tokens}, not {right.finish_reason} {right.tokens}")
        elif any(abs(a - b) > LOGPROB_TOLERANCE for a, b in zip(answer.logprobs, right.logprobs, strict=True)):
            found.append(f"{ask}: {answer.logprobs}, not {right.logprobs}")
    return found
