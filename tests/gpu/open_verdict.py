"""What the windows of the open loop say: time per token under bursts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markdown_table import table

FIXED = "fixed:"
AIM = 1.01
P95 = 1
JUDGED = ("goodput+profile", "goodput")


def open_section(records: Sequence[Mapping[str, Any]]) -> str:
    """A table by rate and contender, and how the 95th percentile compares with the best fixed mode's."""
    rows, judged = [], []
    for rate in sorted({record["rate"] for record in records}):
        at_rate = sorted((r for r in records if r["rate"] == rate), key=lambda r: r["contender"])
        fixed = [r["tpot_ms"][P95] for r in at_rate if r["contender"].startswith(FIXED) and r["tpot_ms"][P95]]
        for record in at_rate:
            rows.append(_row(rate, record))
            own = record["tpot_ms"][P95]
            if record["contender"] in JUDGED and fixed and own:
                ratio = own / min(fixed)
                reached = "yes" if ratio <= AIM else "**no**"
                judged.append([f"{rate:g}", record["contender"], f"<= {AIM}", f"{ratio:.3f}", reached])
    head = ["rate", "contender", "requests", "TPOT p50", "p95", "p99", "worst tenth", "ITL p50", "p95", "p99",
            "tokens/s", "switches", "retractions"]  # fmt: skip
    parts = [
        "Open loop: bursty arrivals at a share of what the engine can do at most, the acceptance changing on the way; "
        "times in ms.",
        table(head, rows),
    ]
    if judged:
        parts += ["95th percentile of time per token over that of the best fixed mode:",
                  table(["rate", "contender", "wanted", "measured", "reached"], judged)]  # fmt: skip
    return "\n\n".join(parts)


def _row(rate: float, record: Mapping[str, Any]) -> list[str]:
    times = [*record["tpot_ms"], record["tpot_worst_decile_ms"], *record["itl_ms"]]
    return [
        f"{rate:g}", record["contender"], str(record["requests"]), *("" if t is None else f"{t:.2f}" for t in times),
        f"{record['tokens_per_s']:,.0f}", str(record["switches"]), str(record["retractions"]),
    ]  # fmt: skip
