"""One figure of the closed loop: tokens a second over those of the best fixed mode, by clients and acceptance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from closed_verdict import ClosedVerdict
from results_file import Key

STYLES = {
    "goodput+profile": ("#0b5fa5", "-", "o"), "goodput": ("#4d9de0", "-", "s"), "ucb": ("#8fb8de", "--", "^"),
    "sglang-adaptive": ("#c1440e", "-", "o"), "sglang-tuned": ("#e39774", "-", "s"),
}  # fmt: skip
OTHERS = ("#777777", ":", ".")
SINGLE = "best single fixed"


def draw(found: Mapping[Key, Mapping[tuple[Any, ...], Mapping[str, Any]]], path: Path, folder: Path) -> dict[Key, str]:
    """A file for each key with a closed loop; paths as seen from the folder."""
    verdicts = {}
    for key in sorted(found):
        records = [record for record in found[key].values() if record["kind"] == "closed"]
        if records and ClosedVerdict(records).best:
            verdicts[key] = ClosedVerdict(records)
    shown = {}
    for i, (key, verdict) in enumerate(verdicts.items()):
        target = path if len(verdicts) == 1 else path.with_stem(f"{path.stem}-{i + 1}")
        _draw(key, verdict, target)
        shown[key] = str(_seen_from(target, folder))
    return shown


def _seen_from(target: Path, folder: Path) -> Path:
    try:
        return target.resolve().relative_to(folder.resolve())
    except ValueError:
        return target


def _draw(key: Key, verdict: ClosedVerdict, path: Path) -> None:
    labels = list(dict.fromkeys(place[1] for place in verdict.places))
    figure, panels = pyplot.subplots(1, len(labels), sharey=True, figsize=(4 * len(labels), 3.6), squeeze=False)
    for label, panel in zip(labels, panels[0], strict=True):
        clients = [place[0] for place in verdict.places if place[1] == label]
        for name in _lines(verdict):
            shares = [_share(verdict, name, (count, label)) for count in clients]
            colour, line, mark = STYLES.get(name, OTHERS)
            shown = f"{SINGLE}: {name}" if name not in STYLES else name
            panel.plot(clients, shares, color=colour, linestyle=line, marker=mark, markersize=4, label=shown)
        panel.axhline(1.0, color="#cccccc", linewidth=0.8, zorder=0)
        panel.set_xscale("log", base=2)
        panel.set_xticks(clients, [str(count) for count in clients])
        panel.set_title(f"acceptance {label}", fontsize=10)
        panel.set_xlabel("clients")
    panels[0][0].set_ylabel("tokens/s over the best fixed mode's")
    panels[0][-1].legend(fontsize=7, loc="lower left")
    figure.suptitle(f"{key.model} on {key.card}, SGLang {key.sglang}, {key.backend}", fontsize=10)
    figure.tight_layout()
    # The same results give the same bytes.
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _lines(verdict: ClosedVerdict) -> list[str]:
    single = verdict.best_single()
    return [name for name in STYLES if name in verdict.contenders] + ([single] if single else [])


def _share(verdict: ClosedVerdict, name: str, place: tuple[int, str]) -> float:
    rate, best = verdict.rate(name, place), verdict.best.get(place)
    return float("nan") if rate is None or best is None else rate / best[1]
