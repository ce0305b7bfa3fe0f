"""Pieces of drawings for the report: scales, axes and shapes as inline SVG, coloured by the page's own style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from trimtab.replay.arrays import Floats

WIDTH = 1060.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 16.0, 12.0, 38.0
UNITS = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear scale from values to places, or a logarithmic one."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; beyond the ends it stays at them."""
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between two values, about so many of them."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough)
    first = math.ceil(low / step)
    return [step * i for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number in as few digits as an axis needs."""
    if value == 0:
        return "0"
    return f"{value / 1000:,.4g}k" if abs(value) >= 1_000 else f"{value:.3g}"


@dataclass
class Drawing:
    """One SVG. Owned by whoever draws it.

    Attributes:
        height: Of the drawing; the width is that of the page.
        label: What it shows, for those who cannot see it.
    """

    height: float
    label: str
    _parts: list[str] = field(default_factory=list)

    @property
    def bottom(self) -> float:
        """Lower edge of the plot."""
        return self.height - BOTTOM

    @property
    def right(self) -> float:
        """Right edge of the plot."""
        return WIDTH - RIGHT

    def add(self, markup: str) -> None:
        """Add a piece as it is."""
        self._parts.append(markup)

    def text(self, x: float, y: float, words: str, style: str = "", anchor: str = "start") -> None:
        """Write words."""
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        """Draw a straight line."""
        self.add(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>')

    def rect(self, x: float, y: float, width: float, height: float, style: str, title: str = "") -> None:
        """Draw a box that says something to whoever points at it."""
        inner = f"<title>{escape(title)}</title>" if title else ""
        self.add(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{max(0.0, height):.1f}" '
            f"{style}>{inner}</rect>"
        )

    def curve(self, points: Iterable[tuple[float, float]], style: str) -> None:
        """Draw a line through points; one that is not a number breaks it."""
        pieces, fresh = [], True
        for x, y in points:
            if math.isnan(y):
                fresh = True
                continue
            pieces.append(f"{'M' if fresh else 'L'}{x:.1f} {y:.1f}")
            fresh = False
        self.add(f'<path d="{"".join(pieces)}" class="{style}"/>')

    def steps_between(self, edges: Sequence[float], low: Sequence[float], high: Sequence[float], style: str) -> None:
        """Fill between two lines that move in steps; `edges` has one entry more than the others."""
        there = "".join(f"V{y:.1f}H{edges[i + 1]:.1f}" for i, y in enumerate(high))
        back = "".join(f"V{low[i]:.1f}H{edges[i]:.1f}" for i in range(len(low) - 1, -1, -1))
        self.add(f'<path d="M{edges[0]:.1f} {high[0]:.1f}{there}{back}Z" class="{style}"/>')

    def y_axis(self, scale: Scale, words: str, about: int = 5, percent: bool = False) -> None:
        """Draw lines across the plot at round values, and say what they are."""
        for value in ticks(scale.low, scale.high, about):
            y = scale(value)
            self.line(LEFT, y, self.right, y, "grid")
            self.text(LEFT - 8, y + 4, f"{value:.0%}" if percent else short(value), "tick", "end")
        middle = (scale.start + scale.end) / 2
        self.add(
            f'<text x="16" y="{middle:.1f}" class="axis" text-anchor="middle" '
            f'transform="rotate(-90 16 {middle:.1f})">{escape(words)}</text>'
        )

    def markup(self) -> str:
        """The whole drawing."""
        return (
            f'<svg viewBox="0 0 {WIDTH:.0f} {self.height:.0f}" role="img" aria-label="{escape(self.label)}">'
            f"{''.join(self._parts)}</svg>"
        )


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Time along a trace, over the bins.

    Attributes:
        edges_s: Recorded time at the edges of the bins; shape `(n_bins + 1,)`.
        runs: Runs of engines, where each begins and what it is called.
    """

    edges_s: Floats
    runs: tuple[tuple[float, str], ...]

    @property
    def scale(self) -> Scale:
        """From seconds to places."""
        return Scale(0.0, float(self.edges_s[-1]), LEFT, WIDTH - RIGHT)

    @property
    def edges(self) -> list[float]:
        """Places of the edges."""
        scale = self.scale
        return [scale(float(s)) for s in self.edges_s]

    @property
    def middles(self) -> list[float]:
        """Places of the middles of the bins."""
        return [(a + b) / 2 for a, b in pairwise(self.edges)]

    @property
    def unit(self) -> tuple[float, str]:
        """Seconds in the unit that the axis counts in, and its name."""
        total = float(self.edges_s[-1])
        return next((unit for unit in UNITS if total >= 3 * unit[0]), UNITS[-1])

    def draw(self, drawing: Drawing) -> None:
        """Draw the axis below a plot, and where engines change."""
        seconds, name = self.unit
        scale, y = self.scale, drawing.bottom
        drawing.line(LEFT, y, drawing.right, y, "base")
        for value in ticks(0.0, float(self.edges_s[-1]) / seconds, 8):
            x = scale(value * seconds)
            drawing.line(x, y, x, y + 5, "base")
            drawing.text(x, y + 18, short(value), "tick", "middle")
        drawing.text((LEFT + drawing.right) / 2, y + 34, f"{name} of the recorded run", "axis", "middle")
        for begin, engine in self.runs if len(self.runs) > 1 else ():
            if begin > 0:
                drawing.line(scale(begin), 2, scale(begin), y, "border")
            drawing.text(scale(begin) + 4, 10, engine, "tick")
