"""A load that swings between 2 requests and a crowd: what each way of decoding plainly is worth over all of it.

Each swing is the same work whatever the way: two requests go on from its beginning to its end, bursts come and go.
Texts are greedy, the same in every way: what a text is about says more about its acceptance than any way does. With
many requests decoding is plain, with few it drafts; the ways differ in how it is plain, and so in what state the two
come back to drafting.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from real_engine import RealEngine
from real_prompts import CHECKING_SEED
from real_sizes import PROMPT_TOKENS, WIDEST

WAYS = {"native": "plain_native", "always warm": "plain_warm", "cold, return at once": "plain_cold"}
BURSTS = 6
LASTING = 2
# Time for another round of swings, and to write it all down.
SPARE = 1.5


def swings(engine: RealEngine) -> dict[str, Any]:
    """Tokens a second of every swing in every way, the ways in an order drawn anew for each swing."""
    sizes, source = engine.sizes, random.Random(0)
    tokens = LASTING * sizes.lasting_tokens + BURSTS * sizes.burst * sizes.burst_tokens
    ways = {name: f"1 speculate({WIDEST}), {sizes.many} {mode}" for name, mode in WAYS.items() if mode in engine.modes}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    # The first of all pays for what comes up for the first time.
    for swing in range(-1, sizes.swings):
        began = time.monotonic()
        for name in source.sample(list(ways), len(ways)):
            engine.force(ways[name])
            times = engine.together(_swing(engine, swing))
            if swing >= 0:
                found[name].append({"tokens_per_s": tokens / times["all_s"], **times})
        # Of a process that is stopped in the midst nothing would be left.
        if engine.left_s < SPARE * (time.monotonic() - began):
            break
    return {"tokens": tokens, "swings": found}


async def _swing(engine: RealEngine, number: int) -> dict[str, float]:
    """Seconds that one swing took, its bursts, and from the end of the last burst to its own."""
    sizes = engine.sizes
    count = LASTING + BURSTS * sizes.burst
    prompts = engine.prompter.mixed(count, CHECKING_SEED + 100 + number, PROMPT_TOKENS)
    began = time.perf_counter()
    lasting = asyncio.ensure_future(engine.ask(prompts[:LASTING], sizes.lasting_tokens))
    burst_s, ended = 0.0, began
    for burst in range(BURSTS):
        await asyncio.sleep(sizes.lead_s)
        first = LASTING + burst * sizes.burst
        came = time.perf_counter()
        await engine.ask(prompts[first : first + sizes.burst], sizes.burst_tokens)
        ended = time.perf_counter()
        burst_s += ended - came
    await lasting
    now = time.perf_counter()
    return {"all_s": now - began, "bursts_s": burst_s, "afterwards_s": now - ended}
