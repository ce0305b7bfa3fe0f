"""What one contender made of one window: tokens, latencies and modes, from the recorded steps."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from step_recorder import COLD, PLAIN, PREFILL, Ints, Steps

BLOCK_S = 0.25
# A request says something about time per token from so many tokens on.
MIN_TOKENS = 8
PERCENTILES = (50, 95, 99)
NAMES = {PLAIN: "plain_native", COLD: "plain_cold", 0: "plain_warm"}
DIGITS = 5

Floats = npt.NDArray[np.float64]


def mode_name(steps: int) -> str:
    """The mode as Trimtab calls it; a decode that is no verify is native plain."""
    return NAMES.get(steps, f"speculate({steps})")


def steps_of(mode: str) -> int:
    """The drafts a step of a mode's name, or what stands for a plain one."""
    for steps, name in NAMES.items():
        if name == mode:
            return steps
    return int(mode.removeprefix("speculate(").removesuffix(")"))


@dataclass(frozen=True)
class Emissions:
    """Tokens that really came out, entry by entry of `Steps`; arrays of shape `(n_entries,)`.

    A verify may accept more than a request still wants, and a request that ended may be in the next step all the same.
    """

    at_ns: Ints
    request: Ints
    tokens: Ints


def emissions(steps: Steps) -> Emissions:
    """The tokens of each request, up to the number that it asked for (its name ends in it)."""
    wanted = np.array([int(name.rpartition(".")[2]) for name in steps.identities] or [0], dtype=np.int64)
    at_ns = np.repeat(steps.at_ns, steps.batch)
    order = np.argsort(steps.request, kind="stable")
    request, tokens = steps.request[order], steps.tokens[order]
    total = np.cumsum(tokens)
    begins = np.concatenate([[True], request[1:] != request[:-1]]) if len(request) else np.zeros(0, dtype=bool)
    before = np.maximum.accumulate(np.where(begins, total - tokens, 0)) if len(request) else total
    so_far = np.minimum(total - before, wanted[request])
    emitted = np.diff(so_far, prepend=0)
    emitted[begins] = so_far[begins]
    unsorted = np.empty_like(emitted)
    unsorted[order] = emitted
    return Emissions(at_ns, steps.request, unsorted)


def window(steps: Steps, began_ns: int, ended_ns: int) -> dict[str, Any]:
    """The figures of what happened from `began_ns` to `ended_ns`; times in ms, rates in tokens a second."""
    out, seconds = emissions(steps), (ended_ns - began_ns) / 1e9
    inside = (steps.at_ns > began_ns) & (steps.at_ns <= ended_ns)
    decodes = inside & (steps.steps != PREFILL)
    counted = (out.at_ns > began_ns) & (out.at_ns <= ended_ns)
    tokens = int(out.tokens[counted].sum())
    modes = steps.steps[decodes].tolist()
    spent = _spent_ms(steps, began_ns, ended_ns)
    batch, context = steps.batch[decodes], steps.context[decodes]
    return {
        "seconds": _short(seconds),
        "tokens": tokens,
        "tokens_per_s": _short(tokens / seconds),
        "steps": len(modes),
        "switches": sum(a != b for a, b in itertools.pairwise(modes)),
        "ms_by_mode": _by_mode(steps, spent, inside),
        "batch": _short(float(batch.mean())) if len(batch) else 0.0,
        "context": _short(float((context / batch).mean())) if len(batch) else 0.0,
        "graph_share": _short(float(steps.graph[decodes].mean())) if len(batch) else 0.0,
        "retractions": steps.retractions,
        **latencies(out, counted),
        "blocks": _blocks(steps, out, spent, began_ns, ended_ns),
    }


def latencies(out: Emissions, counted: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Time per token by request, and the wait before every token, over the tokens that count.

    Tokens that come together share the wait before them, as SGLang's own benchmark has it. The worst decile is the mean
    over the tenth of the requests (at least one) whose time per token is longest.
    """
    per_token, waits, weights = [], [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
    keep = counted & (out.tokens > 0)
    at_ms, request, tokens = out.at_ns[keep] / 1e6, out.request[keep], out.tokens[keep]
    order = np.argsort(request, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(request[order])) + 1):
        if len(rows) < 2:
            continue
        gaps, after = np.diff(at_ms[rows]), tokens[rows][1:]
        waits.append(gaps / after)
        weights.append(after)
        if after.sum() >= MIN_TOKENS:
            per_token.append(float(gaps.sum() / after.sum()))
    worst = sorted(per_token)[-max(1, round(len(per_token) / 10)) :]
    return {
        "requests": len(per_token),
        "tpot_ms": [_short(float(np.percentile(per_token, p))) if per_token else None for p in PERCENTILES],
        "tpot_worst_decile_ms": _short(float(np.mean(worst))) if per_token else None,
        "itl_ms": weighted_percentiles(np.concatenate(waits), np.concatenate(weights)),
    }


def weighted_percentiles(values: Floats, weights: Ints) -> list[float | None]:
    """Percentiles of `values`, each counted so many times; None without any."""
    if not len(values):
        return [None] * len(PERCENTILES)
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    at = [int(np.searchsorted(reached, reached[-1] * p / 100)) for p in PERCENTILES]
    return [_short(float(values[order][min(i, len(values) - 1)])) for i in at]


def step_medians(steps: Steps, began_ns: int, ended_ns: int, mode: int, clients: int) -> list[tuple[float, int, int]]:
    """The steps of a mode with all clients in them and nothing but decode before: (ms, requests, context tokens)."""
    ms = np.diff(steps.at_ns, prepend=steps.at_ns[:1]) / 1e6
    same = np.concatenate([[False], (steps.steps[1:] == steps.steps[:-1]) & (steps.batch[1:] == steps.batch[:-1])])
    good = same & (steps.steps == mode) & (steps.batch == clients)
    good &= (steps.at_ns > began_ns) & (steps.at_ns <= ended_ns)
    rows = np.flatnonzero(good)
    return [(float(ms[i]), int(steps.batch[i]), int(steps.context[i])) for i in rows]


def _spent_ms(steps: Steps, began_ns: int, ended_ns: int) -> Floats:
    """Time from the result before to each result, as far as it lies inside; shape `(n_steps,)`."""
    ends = np.clip(steps.at_ns, began_ns, ended_ns)
    spent: Floats = np.diff(ends, prepend=began_ns) / 1e6
    return spent


def _by_mode(steps: Steps, spent: Floats, inside: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Time in ms by mode; idle time goes to the prefill that ends it."""
    found = {}
    for mode in np.unique(steps.steps[inside]).tolist():
        name = "prefill" if mode == PREFILL else mode_name(mode)
        found[name] = _short(float(spent[inside & (steps.steps == mode)].sum()))
    return found


def _blocks(steps: Steps, out: Emissions, spent: Floats, began_ns: int, ended_ns: int) -> list[dict[str, Any]]:
    """The window in equal blocks of about `BLOCK_S`: tokens, and time by mode."""
    count = max(1, round((ended_ns - began_ns) / 1e9 / BLOCK_S))
    edges = np.linspace(began_ns, ended_ns, count + 1)
    found = []
    for low, high in itertools.pairwise(edges):
        inside = (steps.at_ns > low) & (steps.at_ns <= high)
        counted = (out.at_ns > low) & (out.at_ns <= high)
        found.append({"tokens": int(out.tokens[counted].sum()), "ms": _by_mode(steps, spent, inside)})
    return found


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
