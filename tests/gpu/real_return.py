"""Is the draft model as right after plain decoding as if it had never been left? By request, with the real model.

All is decoded greedily, so that the requests of a pair write the same text and differ only in how they came there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from figures import catch_ups
from real_engine import RealEngine
from real_prompts import CHECKING_SEED
from real_sizes import PROMPT_TOKENS, WIDEST
from rounds import Round, after_plain, from_position, plain_tokens

ROUNDS = 10
# Of each kind; the first may be the first of its shape.
CATCH_UPS = 5
# A word that comes too late for a batch is said again, with the batch.
TRIES = 3
SPECULATE = f"speculate({WIDEST})"
# Enough for the rounds that are looked at, all accepted, and for a lease that comes a few launches late.
AFTERWARDS = ROUNDS * (WIDEST + 1) + 20
LOOKED_AT = Callable[[Sequence[Round]], list[int]]


def after(engine: RealEngine, plain: int) -> dict[str, Any]:
    """Accepted drafts of the first rounds after so many plain tokens, and of requests that never decoded plainly.

    The same prompts go through each: native plain, speculation all the time, and cold plain for what a return without
    catching up would be.
    """
    sizes = engine.sizes
    prompts = engine.prompter.mixed(sizes.requests, CHECKING_SEED, PROMPT_TOKENS)
    ways: dict[str, tuple[str, LOOKED_AT]] = {
        "native": (f"plain_native {plain} {SPECULATE}", lambda rounds: after_plain(rounds, ROUNDS)),
        "never": (SPECULATE, lambda rounds: from_position(rounds, plain + 1, ROUNDS)),
        "cold": (f"plain_cold {plain} {SPECULATE}", lambda rounds: after_plain(rounds, ROUNDS)),
    }
    found: dict[str, Any] = {"plain_tokens": plain, "accepted": {}, "ran_plainly": {}}
    for name, (word, look) in ways.items():
        if word.split()[0] not in engine.modes:
            continue
        wanted = 0 if name == "never" else plain
        rounds = list(_batches(engine, prompts, plain + AFTERWARDS, word, wanted))
        found["accepted"][name] = [look(request) if plain_tokens(request) == wanted else [] for request in rounds]
        found["ran_plainly"][name] = sorted({plain_tokens(request) for request in rounds})
    return found


def _batches(engine: RealEngine, prompts: list[list[int]], tokens: int, word: str, plain: int) -> Iterator[list[Round]]:
    """The rounds of every request, batch by batch; the word is said anew for each batch."""
    for batch in _parts(prompts, engine.sizes.together):
        rounds: list[list[Round]] = []
        for _ in range(TRIES):
            # Another word in between, so that the same one again is a lease of its own.
            engine.force(SPECULATE)
            engine.force(word)
            rounds = _rounds_of(engine, batch, tokens)[0]
            if all(plain_tokens(request) == plain for request in rounds):
                break
        yield from rounds


def _rounds_of(
    engine: RealEngine, prompts: list[list[int]], tokens: int
) -> tuple[list[list[Round]], list[dict[str, Any]]]:
    answers = engine.generate(prompts, tokens)
    rounds = engine.rounds()
    return [rounds[answer["meta_info"]["id"]] for answer in answers], answers


def catch_up(engine: RealEngine) -> dict[str, Any]:
    """What reading the missed tokens takes, by batch size and missed tokens of each request."""
    began_ns = time.monotonic_ns()
    prompts = engine.prompter.mixed(max(engine.sizes.catching_up), CHECKING_SEED + 2, PROMPT_TOKENS)
    for batch in engine.sizes.catching_up:
        for missed in engine.sizes.missed:
            for _ in range(CATCH_UPS):
                engine.force(SPECULATE)
                engine.force(f"plain_native {missed} {SPECULATE}")
                engine.generate(prompts[:batch], missed + WIDEST + 2)
    return {"catch_ups": catch_ups([row for row in engine.rows() if int(row["result_ns"]) > began_ns])}


def prefix(engine: RealEngine) -> dict[str, Any]:
    """Accepted drafts of the first rounds of requests that reuse a prefix made plainly, and of such that do not."""
    sizes = engine.sizes
    prompts = engine.prompter.mixed(sizes.requests, CHECKING_SEED + 1, PROMPT_TOKENS)
    accepted: dict[str, list[list[int]]] = {"reused": [], "fresh": []}
    reused_tokens: list[int] = []
    for batch in _parts(prompts, sizes.together):
        engine.forget_cache()
        engine.force("plain_native")
        made = engine.generate(batch, sizes.prefix_tokens)
        engine.force(SPECULATE)
        longer = [prompt + answer["output_ids"] for prompt, answer in zip(batch, made, strict=True)]
        for name in accepted:
            if name == "fresh":
                engine.forget_cache()
            rounds, answers = _rounds_of(engine, longer, AFTERWARDS)
            accepted[name] += [[r.accepted for r in request[:ROUNDS]] for request in rounds]
            if name == "reused":
                reused_tokens += [answer["meta_info"]["cached_tokens"] for answer in answers]
    return {"plain_tokens": sizes.prefix_tokens, "accepted": accepted, "reused_tokens": reused_tokens}


def _parts(prompts: list[list[int]], most: int) -> Iterator[list[list[int]]]:
    for first in range(0, len(prompts), most):
        yield prompts[first : first + most]
