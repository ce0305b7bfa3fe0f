"""Makes tables and a figure of result files.

    python tests/gpu/gpu_tables.py RESULTS... [--into README.md] [--figure FILE.svg]

RESULTS are files and folders of `bench.py`. The tables go between the marks in the file, in the place of what is there;
without --into they are printed. There is a section for each key (card, version, model, backend, load); what was not
measured is left out, and what falls short of its aim is shown as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gpu_figure
from closed_verdict import ClosedVerdict
from markdown_table import table
from open_verdict import open_section
from price_verdict import price_section
from results_file import Key, ResultsError, merged, read_all

BEGIN, END = "<!-- gpu results: made by `make gpu-tables` -->", "<!-- end of gpu results -->"
MOST_LOSSES = 12
KV_RESERVE_BYTES = 4 << 30
TRIMTAB = ("goodput+profile", "goodput", "ucb")
# From the contenders' point of view: the aim of each figure, at least (or, for settling, at most).
AIMS = {"goodput+profile": 0.97, "goodput": 0.95}
AIMS_OF_TOTALS = {"sglang-adaptive": 1.25, "sglang-tuned": 1.05}
AIM_OF_BEST_SINGLE, AIM_OF_SETTLED, AIM_OF_SETTLING_S = 0.99, 0.95, 2.0

Records = Mapping[tuple[Any, ...], Mapping[str, Any]]


def section(key: Key, records: Records, figure: str = "") -> str:
    """Everything about one key, as Markdown."""
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for record in records.values():
        by_kind.setdefault(record["kind"], []).append(record)
    calibration = next(iter(by_kind.get("calibration", [])[::-1]), None)
    parts = [f"### {key.model} on {key.card}, {key.backend}", _source(key, records.values())]
    if "closed" in by_kind:
        parts += closed_parts(ClosedVerdict(by_kind["closed"], calibration), figure)
    if "open" in by_kind:
        parts.append(open_section(by_kind["open"]))
    if "price" in by_kind:
        parts.append(price_section(by_kind["price"]))
    if "engine" in by_kind:
        parts.append(_engines(by_kind["engine"]))
    return "\n\n".join(parts)


def closed_parts(verdict: ClosedVerdict, figure: str = "") -> list[str]:
    """Totals, cells, latencies, and what was lost where."""
    parts = [_totals(verdict), _aims(verdict)]
    if figure:
        parts.append(f"![Tokens a second over those of the best fixed mode, by clients]({figure})")
    parts += [_cells(verdict), _latencies(verdict), _losses(verdict)]
    return [part for part in parts if part]


def _source(key: Key, records: Iterable[Mapping[str, Any]]) -> str:
    days = sorted({str(record["at"])[:10] for record in records})
    span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"SGLang {key.sglang}, load `{key.load}`, measured {span}."


def _totals(verdict: ClosedVerdict) -> str:
    single = verdict.best_single()
    rows = []
    for name in verdict.contenders:
        sums, settling = verdict.sums(name), verdict.longest_settling(name)
        rows.append([
            name, str(verdict.cells(name)), number(verdict.total(name), 0), text(verdict.efficiency(name)),
            text(verdict.against(name, single)) if single else "",
            _worst(verdict.worst_settled(name)), _worst(verdict.worst_choice(name)), _settling(settling),
            f"{1000 * sums['switches'] / max(1, sums['steps']):.1f}", str(int(sums["retractions"])),
        ])  # fmt: skip
    head = [
        "contender", "cells", "tokens/s", "efficiency", f"over {single or 'fixed'}", "worst settled cell",
        "by its modes", "settles in",
        "switches in 1,000 steps", "retractions",
    ]  # fmt: skip
    return f"Closed loop, equal time at every cell; 95% intervals in brackets.\n\n{table(head, rows)}"


def _worst(found: tuple[float, tuple[int, str]] | None) -> str:
    return f"{found[0]:.3f} ({found[1][0]}, {found[1][1]})" if found else ""


def _aims(verdict: ClosedVerdict) -> str:
    """What was to be shown, and what came out."""
    there, rows, single = verdict.contenders, [], verdict.best_single()
    for name, aim in AIMS.items():
        if name in there and (found := verdict.efficiency(name)):
            rows.append([f"efficiency of {name}", f">= {aim}", str(found), yes(found.value >= aim)])
    for name in (name for name in AIMS if name in there):
        aims = {**AIMS_OF_TOTALS, **({single: AIM_OF_BEST_SINGLE} if single else {})}
        for other, aim in aims.items():
            if other in there and (ratio := verdict.against(name, other)):
                rows.append([f"tokens/s of {name} over {other}", f">= {aim}", str(ratio), yes(ratio.value >= aim)])
        if worst := verdict.worst_settled(name):
            reached = yes(worst[0] >= AIM_OF_SETTLED)
            rows.append([f"worst settled cell of {name}", f">= {AIM_OF_SETTLED}", f"{worst[0]:.3f}", reached])
        if choice := verdict.worst_choice(name):
            reached = yes(choice[0] >= AIM_OF_SETTLED)
            label = f"worst settled cell of {name}, by what its modes are worth"
            rows.append([label, f">= {AIM_OF_SETTLED}", f"{choice[0]:.3f}", reached])
        settling = verdict.longest_settling(name)
        if settling is not None:
            reached = yes(settling <= AIM_OF_SETTLING_S)
            rows.append([f"{name} settles in", f"<= {AIM_OF_SETTLING_S:g} s", _settling(settling), reached])
    return table(["figure", "wanted", "measured", "reached"], rows) if rows else ""


def _cells(verdict: ClosedVerdict) -> str:
    rows = []
    for place in verdict.places:
        best = verdict.best.get(place)
        shares = [_share(verdict.rate(name, place), best) for name in _compared(verdict)]
        rows.append([place[1], str(place[0]), f"{best[0]}: {best[1]:,.0f}" if best else "", *shares])
    head = ["acceptance", "clients", "best fixed, tokens/s", *_compared(verdict)]
    return f"Tokens/s over those of the best fixed mode of each cell:\n\n{table(head, rows)}"


def _latencies(verdict: ClosedVerdict) -> str:
    rows = []
    for place in verdict.places:
        for name in [n for n in _compared(verdict) if n in TRIMTAB or n.startswith("sglang")]:
            window = verdict.latencies(name, place)
            if window:
                worst = number(window["tpot_worst_decile_ms"])
                rows.append([place[1], str(place[0]), name, *map(number, window["tpot_ms"]), worst,
                             *map(number, window["itl_ms"])])  # fmt: skip
    head = ["acceptance", "clients", "contender", *_percentiles("TPOT"), "TPOT, worst tenth", *_percentiles("ITL")]
    body = table(head, rows)
    return f"<details><summary>Latencies of the closed loop, ms</summary>\n\n{body}\n\n</details>" if rows else ""


def _losses(verdict: ClosedVerdict) -> str:
    found = [loss for name in TRIMTAB if name in verdict.contenders for loss in verdict.losses(name)]
    rows = [
        [loss.contender, loss.acceptance, str(loss.clients), f"{loss.share:.3f}", loss.best, loss.ran]
        for loss in sorted(found, key=lambda loss: loss.share)[:MOST_LOSSES]
    ]
    if not rows:
        return ""
    head = ["contender", "acceptance", "clients", "of the best", "best fixed", "what it ran"]
    more = f" (the worst {MOST_LOSSES} of {len(found)})" if len(found) > MOST_LOSSES else ""
    return f"Where Trimtab lost more than 1% to the best fixed mode of the cell{more}:\n\n{table(head, rows)}"


def _engines(records: Sequence[Mapping[str, Any]]) -> str:
    """The newest start of each engine. Free memory but a reserve counts as KV cache that it could have."""
    newest = {record["engine"]: record for record in sorted(records, key=lambda record: str(record["at"]))}
    rows = []
    for name, record in sorted(newest.items()):
        spare = max(0, record["free_bytes"] - KV_RESERVE_BYTES) // record["kv_bytes_per_token"]
        rows.append([
            name, f"{record['start_s']:.0f}", f"{record['graph_bytes'] / 1e9:.1f}", f"{record['kv_tokens']:,}",
            f"{record['kv_tokens'] + spare:,}",
        ])  # fmt: skip
    head = ["engine", "start, s", "graphs and what is built with them, GB", "KV tokens", "KV tokens at most"]
    note = "KV tokens at most: with all free memory but 4 GiB as KV cache."
    return f"What the engines take:\n\n{table(head, rows)}\n\n{note}"


def _compared(verdict: ClosedVerdict) -> list[str]:
    return [name for name in verdict.contenders if name not in verdict.fixed]


def _share(rate: float | None, best: tuple[str, float] | None) -> str:
    return "" if rate is None or best is None else f"{rate / best[1]:.3f}"


def _settling(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return "never, somewhere" if seconds == float("inf") else f"{seconds:.1f} s"


def _percentiles(name: str) -> list[str]:
    return [f"{name} p{p}" for p in (50, 95, 99)]


def number(value: float | None, digits: int = 2) -> str:
    """For a cell; empty for None."""
    return "" if value is None else f"{value:,.{digits}f}"


def text(value: object | None) -> str:
    """For a cell; empty for None."""
    return "" if value is None else str(value)


def yes(reached: bool) -> str:
    """For a cell."""
    return "yes" if reached else "**no**"


def put_between(path: Path, tables: str) -> None:
    """Replace what is between the marks in the file; `ResultsError` if they are not there."""
    whole = path.read_text()
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ResultsError(f"{path}: has no lines\n{BEGIN}\n{END}")
    path.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables or put them in their place; 2 if there are none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, help="file with the marks")
    parser.add_argument("--figure", type=Path, help="where the figure goes (.svg or .png)")
    options = parser.parse_args(arguments)
    try:
        found = merged(read_all(options.results))
        if not found:
            raise ResultsError(f"there are no results in {', '.join(map(str, options.results))}")
        folder = options.into.parent if options.into else Path()
        shown = gpu_figure.draw(found, options.figure, folder) if options.figure else {}
        tables = "\n\n".join(section(key, found[key], shown.get(key, "")) for key in sorted(found))
        if options.into:
            put_between(options.into, tables)
        else:
            print(tables)
    except (ResultsError, OSError) as error:
        print(f"gpu_tables.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
