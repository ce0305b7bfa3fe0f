"""What the windows of the closed loop say together: efficiency, totals, settling, and where something was lost.

Contenders are compared on the cells that both of them ran. A cell's best mode is the fixed one with the most tokens a
second there, over all passes: with hindsight, and with the luck of the best of several measurements.
A mode that was no contender (warm plain, two steps) is worth what the calibration makes of it.
"""

from __future__ import annotations

import itertools
import operator
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paired import Estimate, resampled
from trimtab.profile_file import read_mode

Record = Mapping[str, Any]
Place = tuple[int, str]
FIXED = "fixed:"
# From then on a cell counts as settled; and what share of the best mode's worth that takes.
SETTLED_FROM_S, SETTLED_SHARE = 2.0, 0.95
MOST_STEPS = 16


@dataclass(frozen=True)
class Loss:
    """A cell in which a contender stayed behind the best mode."""

    contender: str
    clients: int
    acceptance: str
    share: float
    best: str
    ran: str


class ClosedVerdict:
    """Judges all windows of one key.

    Args:
        records: Of the kind "closed".
        calibration: Of the same key, if there is one.
    """

    def __init__(self, records: Iterable[Record], calibration: Record | None = None) -> None:
        self._calibration = calibration
        self._windows: dict[str, dict[int, Record]] = defaultdict(dict)
        for record in records:
            self._windows[record["contender"]][record["cell"]] = record

    @property
    def contenders(self) -> list[str]:
        """All that ran, fixed ones first."""
        return sorted(self._windows, key=lambda name: (not name.startswith(FIXED), name))

    @property
    def places(self) -> list[Place]:
        """Clients and acceptance of all cells, by the load's order of acceptances, then by clients."""
        phases = {_place(w): w["phase"] for windows in self._windows.values() for w in windows.values()}
        return sorted(phases, key=lambda place: (phases[place], place[0]))

    @property
    def fixed(self) -> list[str]:
        """The fixed modes of the shared engine."""
        return [name for name in self.contenders if name.startswith(FIXED)]

    def cells(self, contender: str) -> int:
        """Cells that it ran."""
        return len(self._windows[contender])

    def rate(self, contender: str, place: Place) -> float | None:
        """Tokens a second there over all passes, None if it did not run there."""
        return _rate([w for w in self._windows[contender].values() if _place(w) == place])

    @cached_property
    def best(self) -> dict[Place, tuple[str, float]]:
        """The best fixed mode of each place, and its tokens a second."""
        found: dict[Place, tuple[str, float]] = {}
        for place in self.places:
            rates = [(rate, name) for name in self.fixed if (rate := self.rate(name, place)) is not None]
            if rates:
                rate, name = max(rates)
                found[place] = (name, rate)
        return found

    def total(self, contender: str) -> float | None:
        """Tokens a second over all cells that it ran, each equally long."""
        return _rate(list(self._windows[contender].values()))

    def efficiency(self, contender: str) -> Estimate | None:
        """Time in which the best mode of each cell would have made the same tokens, over the time taken."""
        windows = [w for w in self._windows[contender].values() if _place(w) in self.best]
        if not windows:
            return None
        blocks = [[block["tokens"] for block in window["blocks"]] for window in windows]
        rates, seconds = [self.best[_place(w)][1] for w in windows], sum(w["seconds"] for w in windows)

        def figure(drawn: Sequence[Sequence[int]]) -> float:
            ideal_s = sum(sum(map(b.__getitem__, d)) / r for b, d, r in zip(blocks, drawn, rates, strict=True))
            return float(ideal_s / seconds)

        return resampled([len(b) for b in blocks], figure)

    def against(self, contender: str, other: str) -> Estimate | None:
        """Total tokens over those of another, on the cells that both ran; blocks at the same time go together."""
        shared = sorted(self._windows[contender].keys() & self._windows[other].keys())
        if not shared:
            return None
        pairs = [(_tokens(self._windows[contender][c]), _tokens(self._windows[other][c])) for c in shared]

        def figure(drawn: Sequence[Sequence[int]]) -> float:
            ours = sum(mine[i % len(mine)] for (mine, _), d in zip(pairs, drawn, strict=True) for i in d)
            theirs = sum(its[i % len(its)] for (_, its), d in zip(pairs, drawn, strict=True) for i in d)
            return ours / max(1, theirs)

        return resampled([min(map(len, pair)) for pair in pairs], figure)

    def best_single(self) -> str | None:
        """The fixed mode with the most tokens in all, of those that ran every cell."""
        most = max((self.cells(name) for name in self.fixed), default=0)
        rates = [(self.total(name) or 0.0, name) for name in self.fixed if self.cells(name) == most]
        return max(rates)[1] if rates else None

    def settled_share(self, contender: str, place: Place) -> float | None:
        """Tokens after the first 2 s, over those of the best mode there at the same time."""
        if place not in self.best:
            return None
        best = self.best[place][0]
        ours, theirs = (_rate_after(self._at(name, place), SETTLED_FROM_S) for name in (contender, best))
        return None if ours is None or not theirs else ours / theirs

    def settle_s(self, contender: str, place: Place) -> float | None:
        """Seconds until what it runs is worth 0.95 of the best mode, and stays so on average to the end.

        A mode's worth is what it makes as a fixed one in this cell: chance in what is accepted does not come in. None
        where it never settles, or did not run.
        """
        if place not in self.best:
            return None
        found = [_settle_s(window, self._worths(place)) for window in self._at(contender, place)]
        settled = [at for at in found if at is not None]
        return sum(settled) / len(settled) if settled and len(settled) == len(found) else None

    def worst_settled(self, contender: str) -> tuple[float, Place] | None:
        """The smallest settled share of any cell, and which one."""
        shares = [(share, p) for p in self.places if (share := self.settled_share(contender, p)) is not None]
        return min(shares, default=None)

    def worst_choice(self, contender: str) -> tuple[float, Place] | None:
        """What the modes that it ran after the first 2 s are worth in its worst cell, and which one that is."""
        worths = [
            (sum(late) / len(late), place)
            for place in self.places
            if place in self.best and (late := self._late_worths(contender, place))
        ]
        return min(worths, default=None)

    def longest_settling(self, contender: str) -> float | None:
        """The longest time to settle of any cell; infinite if there is one in which it never does."""
        ran = [place for place in self.places if place in self.best and self._at(contender, place)]
        times = [self.settle_s(contender, place) for place in ran]
        return max((float("inf") if at is None else at for at in times), default=None)

    def sums(self, contender: str) -> dict[str, float]:
        """Switches, retractions, failed requests and steps over all cells."""
        windows = self._windows[contender].values()
        return {name: sum(w[name] for w in windows) for name in ("switches", "retractions", "failed", "steps")}

    def latencies(self, contender: str, place: Place) -> Record | None:
        """Its newest window there."""
        return next(iter(self._at(contender, place)[::-1]), None)

    def losses(self, contender: str, below: float = 0.99) -> list[Loss]:
        """Cells in which it was under that share of the best mode, the worst first."""
        found = []
        for place, (best, rate) in self.best.items():
            own = self.rate(contender, place)
            if own is not None and own < below * rate:
                found.append(Loss(contender, *place, own / rate, best, _modes(self._at(contender, place))))
        return sorted(found, key=lambda loss: loss.share)

    def _at(self, contender: str, place: Place) -> list[Record]:
        return [window for window in self._windows[contender].values() if _place(window) == place]

    def _late_worths(self, contender: str, place: Place) -> list[float]:
        worths = self._worths(place)
        return [
            _worth(block["ms"], worths)
            for window in self._at(contender, place)
            for i, block in enumerate(window["blocks"])
            if i * window["seconds"] / len(window["blocks"]) >= SETTLED_FROM_S
        ]

    def _worths(self, place: Place) -> dict[str, float]:
        """By mode its share of the best one's tokens a second."""
        worths: dict[str, float] = {}
        for name in self.fixed:
            rate = self.rate(name, place)
            windows = self._at(name, place)
            if rate is not None and windows:
                worths[_main_mode(windows[0])] = rate / self.best[place][1]
        return {**self._calculated(place, max(worths, key=worths.__getitem__)), **worths} if worths else worths

    def _calculated(self, place: Place, best: str) -> dict[str, float]:
        """The same by calibrated step times and the probabilities of acceptance."""
        if self._calibration is None or "acceptances" not in self._calibration:
            return {}
        clients, label = place
        accepted = list(itertools.accumulate(_padded(self._calibration["acceptances"][label]), operator.mul))
        rates = {
            mode: (1 + sum(accepted[: read_mode("calibration", mode).steps])) / ms[str(clients)]
            for mode, ms in self._calibration["ms"].items()
            if str(clients) in ms
        }
        return {mode: rate / rates[best] for mode, rate in rates.items()} if best in rates else {}


def _padded(probabilities: Sequence[float]) -> list[float]:
    """The last probability holds for all further positions."""
    return [*probabilities, *[probabilities[-1]] * MOST_STEPS]


def _place(window: Record) -> Place:
    return window["clients"], window["acceptance"]


def _tokens(window: Record) -> list[int]:
    return [block["tokens"] for block in window["blocks"]]


def _rate(windows: Sequence[Record]) -> float | None:
    seconds = sum(window["seconds"] for window in windows)
    return float(sum(window["tokens"] for window in windows) / seconds) if seconds else None


def _rate_after(windows: Sequence[Record], from_s: float) -> float | None:
    """Tokens a second after so much of each window."""
    tokens, seconds = 0.0, 0.0
    for window in windows:
        block_s = window["seconds"] / len(window["blocks"])
        late = [b["tokens"] for i, b in enumerate(window["blocks"]) if i * block_s >= from_s]
        tokens, seconds = tokens + sum(late), seconds + len(late) * block_s
    return float(tokens / seconds) if seconds else None


def _settle_s(window: Record, worths: Mapping[str, float]) -> float | None:
    """When the window's blocks are worth enough, and the rest of it on average as well."""
    block_s = float(window["seconds"]) / len(window["blocks"])
    worth = [_worth(block["ms"], worths) for block in window["blocks"]]
    for i, value in enumerate(worth):
        rest = worth[i:]
        if value >= SETTLED_SHARE and sum(rest) / len(rest) >= SETTLED_SHARE:
            return i * block_s
    return None


def _worth(ms_by_mode: Mapping[str, float], worths: Mapping[str, float]) -> float:
    """By time, without prefill; a mode that nobody ran for long is worth nothing."""
    spent = {mode: ms for mode, ms in ms_by_mode.items() if mode != "prefill"}
    total = sum(spent.values())
    return float(sum(ms * worths.get(mode, 0.0) for mode, ms in spent.items()) / total) if total else 1.0


def _main_mode(window: Record) -> str:
    spent = {mode: ms for mode, ms in window["ms_by_mode"].items() if mode != "prefill"}
    return max(spent, key=spent.__getitem__) if spent else ""


def _modes(windows: Sequence[Record]) -> str:
    """The modes that took most of the time, for people."""
    spent: dict[str, float] = defaultdict(float)
    for window in windows:
        for mode, ms in window["ms_by_mode"].items():
            spent[mode] += ms if mode != "prefill" else 0.0
    total = sum(spent.values()) or 1.0
    most = sorted(spent, key=lambda mode: -spent[mode])[:3]
    return ", ".join(f"{mode} {spent[mode] / total:.0%}" for mode in most if spent[mode] / total >= 0.05)
