"""What Trimtab costs where it cannot help: an engine pinned at k, against stock engines at the same k, in turns.

All engines live at once on one card, each with a part of the memory, and one works while the others sleep. The work is
the same to the token, since drafts are drawn by request and position; how long it took is the time from its first
result to its last token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import schedule
from bench_engines import ADAPTIVE, SHARED, STOCK, Engine
from bench_windows import OutOfTimeError
from contenders import FIXED, Helm
from load_file import Load
from results_file import Results
from step_recorder import PREFILL, read_steps
from window_figures import emissions

CONDITIONS: Mapping[str, Callable[[Helm], None]] = {
    "led": lambda helm: None,
    "killed": Helm.kill,
    "hung": Helm.hang,
}
TRIAL_TOKENS = 48
OUTPUT_TOKENS = (16, 2000)
SPARE_TOKENS = 64
# What a turn takes besides its work.
AROUND_S = 0.6


def engine_names(load: Load) -> tuple[str, str, str]:
    """Ours, the stock engine with every candidate, the stock engine with one step count."""
    return SHARED, ADAPTIVE, f"{STOCK}:{load.price.steps}"


def all_done(load: Load, results: Results) -> bool:
    """Whether nothing is left to measure."""
    return not _left(load, results)


def price(load: Load, engines: Mapping[str, Engine], helm: Helm, results: Results, deadline: float) -> None:
    """Every condition and number of clients that is not done; `OutOfTimeError` if the next would not end in time."""
    settings = load.price
    for engine in engines.values():
        engine.orders.phase.set(load.labels.index(settings.acceptance))
        _work(load, engine, max(settings.clients), TRIAL_TOKENS, "warm-up")
    condition = ""
    for wanted, clients in _left(load, results):
        turns = settings.pairs * len(engines) + 2
        if time.monotonic() + turns * (settings.window_s + AROUND_S) > deadline:
            raise OutOfTimeError
        if wanted != condition:
            helm.stop()
            helm.hand_over(f"{FIXED}{settings.steps}")
            CONDITIONS[wanted](helm)
            condition = wanted
        turned = _turns(load, engines, wanted, clients)
        results.add("price", {"condition": wanted, "clients": clients, "steps": settings.steps, **turned})
        print(f"{time.strftime('%H:%M:%S')} price: {wanted}, {clients} clients", flush=True)


def _left(load: Load, results: Results) -> list[tuple[str, int]]:
    places = [
        (condition, clients)
        for condition in CONDITIONS
        for clients in schedule.shuffled(load, condition, load.price.clients)
    ]
    return [(c, n) for c, n in places if not results.done("price", condition=c, clients=n)]


def _turns(load: Load, engines: Mapping[str, Engine], condition: str, clients: int) -> dict[str, Any]:
    """The pairs at one number of clients: seconds of each engine, pair by pair, in an order drawn for each pair."""
    settings = load.price
    tokens = _output_tokens(load, engines[SHARED], clients)
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    at_steps: dict[str, list[float]] = {name: [] for name in engines}
    n_steps: dict[str, list[int]] = {name: [] for name in engines}
    for i in range(settings.pairs):
        for name in schedule.order(load, f"price {condition} {clients} {i}", list(engines)):
            took, share, ran = _work(load, engines[name], clients, tokens, f"{load.seed}-price-{clients}-{i}")
            seconds[name].append(took)
            at_steps[name].append(share)
            n_steps[name].append(ran)
    return {"output_tokens": tokens, "seconds": seconds, "share_at_steps": at_steps, "n_steps": n_steps}


def _output_tokens(load: Load, engine: Engine, clients: int) -> int:
    """Tokens a request so that the work takes about as long as it should, and fits into the cache at once."""
    settings = load.price
    took, _, _ = _work(load, engine, clients, TRIAL_TOKENS, f"{load.seed}-trial-{clients}")
    fits = int(engine.facts()["kv_tokens"]) // clients - settings.prompt_tokens - SPARE_TOKENS
    low, high = OUTPUT_TOKENS
    return max(low, min(high, fits, round(TRIAL_TOKENS * settings.window_s / took)))


def _work(load: Load, engine: Engine, clients: int, tokens: int, seed: str) -> tuple[float, float, int]:
    """Seconds that the work took, the share of its decode steps that ran the steps of the test, and their number."""
    settings = load.price
    engine.orders.record(clients)
    tally = engine.process.load(
        "work", clients=clients, prompt_tokens=settings.prompt_tokens, output_tokens=tokens, seed=seed,
        label=settings.acceptance,
    )  # fmt: skip
    engine.orders.write()
    steps = read_steps(engine.orders.steps_path)
    if tally["failed"] or not len(steps.at_ns):
        raise RuntimeError(f"{engine.name}: {tally['failed']} requests failed: {tally['problem']}")
    # Behind the last token a step may come that was launched before anybody knew that it was the last one.
    out = emissions(steps)
    last_ns = int(out.at_ns[out.tokens > 0].max())
    decodes = steps.steps[(steps.steps != PREFILL) & (steps.at_ns <= last_ns)]
    share = float(np.mean(decodes == settings.steps)) if len(decodes) else 0.0
    return float(last_ns - steps.at_ns[0]) / 1e9, share, len(decodes)
