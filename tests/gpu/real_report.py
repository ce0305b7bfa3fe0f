"""What the cells of `real_checks.py` say together, from whatever of them there is."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import real_statistics as stats
from real_prompts import KINDS

Cells = Mapping[str, Mapping[str, Any]]
# Of the ratio that a return is to keep.
RETURN_WITHIN = 0.03
REFERENCE = "with log probabilities"


def report(out: Path) -> dict[str, Any]:
    """Everything that can be said of the cells in a folder."""
    found: dict[str, Any] = {
        path.name.removesuffix(".json"): json.loads(path.read_text()) for path in out.glob("*.*.json")
    }
    told: dict[str, Any] = {
        "greedy": greedy(found, ""),
        "greedy, deterministic": greedy(found, "+deterministic"),
        "sampled": sampled(found),
        "return": {name.rpartition("-")[2]: returned(cell) for name, cell in found.items() if ".return-" in name},
        "catch-up": found.get("ours.catch-up", {}).get("catch_ups"),
        "prefix": reused(found["ours+cached.prefix"]) if "ours+cached.prefix" in found else {},
        "load": load(found["ours.load"]) if "ours.load" in found else {},
        "errors": {path.name.removesuffix(".error"): path.read_text()[-1500:] for path in sorted(out.glob("*.error"))},
        "about": {name: cell["about"] for name, cell in sorted(found.items())},
    }
    return {name: value for name, value in told.items() if value}


def greedy(found: Cells, extra: str) -> dict[str, Any]:
    """Divergences from plain outputs: of plain itself in other batches, of SGLang's speculation, of schedules."""
    plain = found.get(f"plain{extra}.greedy")
    if plain is None:
        return {}
    reference, gaps = plain["outputs"][REFERENCE], plain["gaps"]
    told: dict[str, Any] = {"gap_of_all_tokens": _quantiles([gap for row in gaps for gap in row])}
    for kind in ("plain", "stock", "ours"):
        cell = found.get(f"{kind}{extra}.greedy")
        if cell is None:
            continue
        runs = [run for name, run in cell["outputs"].items() if name != REFERENCE]
        parts = [stats.divergences(reference, run, gaps) for run in runs]
        all_of = [divergence for part, _ in parts for divergence in part]
        told[kind] = {"runs": len(runs), **stats.divergence_rate(all_of, sum(compared for _, compared in parts))}
        told[kind]["gaps"] = sorted((round(divergence.gap, 4) for divergence in all_of), reverse=True)[:20]
    if "stock" in told and "ours" in told:
        ours, stock = ((told[kind]["divergences"], told[kind]["tokens_compared"]) for kind in ("ours", "stock"))
        told["p if no more than stock"] = round(stats.more_often(*ours, *stock), 5)
    return told


def sampled(found: Cells) -> dict[str, Any]:
    """Whether the tokens at each place come from the distribution of plain decoding."""
    plain = found.get("plain.sampled")
    told: dict[str, Any] = {}
    for kind in ("stock", "ours"):
        if plain is None or f"{kind}.sampled" not in found:
            continue
        pairs = zip(plain["counts"], found[f"{kind}.sampled"]["counts"], strict=True)
        tests = [stats.same_distribution(stats.counted(one), stats.counted(other)) for one, other in pairs]
        told[kind] = {**stats.together(tests), "places": tests}
    return told


def returned(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens a round after plain over those of requests that never left, in pairs; and by kind of prompt."""
    never = cell["accepted"]["never"]
    told: dict[str, Any] = {"plain_tokens": cell["plain_tokens"], "ran_plainly": cell["ran_plainly"]}
    for name in ("native", "cold"):
        if name in cell["accepted"]:
            told[f"{name} over never"] = compare(cell["accepted"][name], never)
    told["never, by kind"] = by_kind(never)
    told["never, by round"] = by_round(never)
    told["native, by round"] = by_round(cell["accepted"].get("native", []))
    return told


def reused(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens a round with a prefix made plainly over those with one read afresh."""
    return {
        "plain_tokens": cell["plain_tokens"],
        "reused over fresh": compare(cell["accepted"]["reused"], cell["accepted"]["fresh"]),
        "reused_tokens": _quantiles(cell["reused_tokens"]),
    }


def compare(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The ratio, its interval, and whether that lies within what a return is to keep."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a and b]
    told = stats.paired_ratio(stats.per_round([a for a, _ in pairs]), stats.per_round([b for _, b in pairs]))
    ends = told["interval_95"]
    return {**told, "within": bool(ends and ends[0] >= 1 - RETURN_WITHIN and ends[1] <= 1 + RETURN_WITHIN)}


def by_kind(accepted: Sequence[Sequence[int]]) -> dict[str, float]:
    """Tokens a round for each kind of prompt."""
    found = {kind: stats.per_round(accepted[i :: len(KINDS)]) for i, kind in enumerate(KINDS)}
    return {kind: round(statistics.fmean(values), 3) for kind, values in found.items() if values}


def by_round(accepted: Sequence[Sequence[int]]) -> list[float]:
    """Tokens of the first round, of the second, and so on, in the mean of the requests."""
    longest = max(map(len, accepted), default=0)
    rounds = [[request[i] for request in accepted if len(request) > i] for i in range(longest)]
    return [round(1 + statistics.fmean(values), 3) for values in rounds]


def load(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens a second of each way, and of native plain over the others, swing by swing."""
    ways = {name: swings for name, swings in cell["swings"].items() if swings}
    speeds = {name: [swing["tokens_per_s"] for swing in swings] for name, swings in ways.items()}
    told: dict[str, Any] = {name: stats.mean_interval(values) for name, values in speeds.items()}
    for name, values in speeds.items():
        told[name]["afterwards_s"] = statistics.fmean(swing["afterwards_s"] for swing in cell["swings"][name])
        told[name]["bursts_s"] = statistics.fmean(swing["bursts_s"] for swing in cell["swings"][name])
        if name != "native" and "native" in speeds:
            told[f"native over {name}"] = stats.geometric_ratio(speeds["native"], values)
    return told


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {}
    return {f"p{q}": ordered[min(len(ordered) - 1, len(ordered) * q // 100)] for q in (1, 5, 25, 50, 75, 100)}
