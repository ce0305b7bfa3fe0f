"""What the pairs of the price say: how fast an engine under Trimtab is where it can win nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markdown_table import table
from paired import Estimate, geometric, typical

OURS = "shared"
AGAINST = {"adaptive": "stock adaptive, held at the same steps", "stock": "stock fixed steps"}
AIM_OF_MEAN, AIM_OF_LOWER_END = 0.995, 0.985


def ratios(record: Mapping[str, Any], against: str) -> list[float]:
    """Pair by pair how fast ours was against that engine: above 1 is faster."""
    seconds = record["seconds"]
    theirs = [times for name, times in seconds.items() if name.partition(":")[0] == against]
    return [b / a for a, b in zip(seconds[OURS], theirs[0], strict=True)] if theirs else []


def estimates(records: Sequence[Mapping[str, Any]], against: str) -> dict[tuple[str, int], Estimate]:
    """By condition and clients."""
    return {
        (record["condition"], record["clients"]): typical(found)
        for record in records
        if (found := ratios(record, against))
    }


def price_section(records: Sequence[Mapping[str, Any]]) -> str:
    """A table of all cells, with the geometric mean over them."""
    parts = [
        "The price: tokens/s of an engine with Trimtab, pinned, over those of a stock engine that does the same work; "
        "the engines take turns on one card, each with a share of its memory."
    ]
    for against, words in AGAINST.items():
        found = estimates(records, against)
        if not found:
            continue
        whole = geometric([estimate.value for estimate in found.values()])
        rows = [[condition, str(clients), str(e)] for (condition, clients), e in sorted(found.items())]
        lowest = min(estimate.low for estimate in found.values())
        judged = ""
        if against == "adaptive":
            reached = whole.value >= AIM_OF_MEAN and lowest >= AIM_OF_LOWER_END
            judged = (
                f" Wanted: at least {AIM_OF_MEAN} and {AIM_OF_LOWER_END}; {'reached' if reached else '**missed**'}."
            )
        parts += [
            f"Against {words}:", table(["controller", "clients", "ratio (95% interval)"], rows),
            f"Geometric mean {whole.value:.4f}, lowest end of an interval {lowest:.4f}.{judged}",
        ]  # fmt: skip
    return "\n\n".join(parts)
