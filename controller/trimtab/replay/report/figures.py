"""The figures of the report: goodput, chosen steps, load, acceptance, cost and regret of one trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trimtab.domain import Mode
from trimtab.replay.arrays import Floats
from trimtab.replay.counterfactual.result import CourseBins, ReplayResult
from trimtab.replay.report.svg import BOTTOM, LEFT, TOP, Drawing, Scale, TimeAxis

SERIES, SHADES = 8, 8
# Bins over which a rate is averaged, as a share of all.
SMOOTHED_SHARE = 0.015
# Drafts of a position from which its acceptance is drawn.
FEWEST_DRAFTS = 30
COUNTED = (
    "Counted over the whole trace, by the mode that ran. The dashed line is what replay goes on with where a request "
    "had all of its drafts accepted and a policy would have made more: it follows the time, and beyond the deepest "
    "position that was ever seen it stays as there."
)
ONLY_SUMS = (
    "This trace has no counts by position, only sums of accepted drafts. The dashed line is the one acceptance, the "
    "same at every position, that explains the sums around each step, averaged over the trace."
)


@dataclass(frozen=True, slots=True)
class Legend:
    """What a colour stands for; `colour` is a variable of the style sheet."""

    name: str
    colour: str


@dataclass(frozen=True, slots=True)
class HoverSeries:
    """What is said of a series where somebody points: one text for each bin."""

    name: str
    colour: str
    values: list[str]


@dataclass(frozen=True, slots=True)
class Hover:
    """What a figure says where somebody points: places of the edges of the bins, their titles, and the series."""

    edges: list[float]
    titles: list[str]
    series: list[HoverSeries]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its words. `hover` None: what it says is in the drawing itself."""

    name: str
    title: str
    caption: str
    svg: str
    legend: tuple[Legend, ...] = ()
    hover: Hover | None = None


def series_colour(number: int) -> str:
    """Colour of a course; the recorded run is the first."""
    return f"--s{number if number < SERIES else 1 + number % (SERIES - 1)}"


def mode_colours(modes: Sequence[Mode]) -> list[str]:
    """Colours of modes: plain is grey, more drafts are darker (lighter on dark pages)."""
    drafting = [mode for mode in modes if mode.steps]
    shades = dict(zip(drafting, np.linspace(1, SHADES - 1, max(1, len(drafting))).round().astype(int), strict=False))
    return [f"--m{shades[mode]}" if mode.steps else "--m0" for mode in modes]


def time_axis(result: ReplayResult) -> TimeAxis:
    """The time of the recorded run."""
    edges = np.concatenate([[0.0], np.cumsum(result.courses[0].seconds)])
    begins = np.flatnonzero(np.diff(result.segment, prepend=-1))
    names = [result.engines[number] for number in result.segment[begins].tolist()]
    return TimeAxis(edges, tuple(zip(edges[begins].tolist(), names, strict=True)))


def figures(result: ReplayResult) -> list[Figure]:
    """The figures of a trace in the order of the page; the cost surface (`surface.py`) comes after them."""
    draw = (goodput_figure, steps_figure, regret_figure, load_figure, acceptance_figure)
    return [figure(result) for figure in draw]


def smoothed(values: Floats, width: int) -> Floats:
    """Sums over so many neighbouring bins, centred; shape of `values`."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(0, at - width // 2), np.minimum(len(values), at + (width + 1) // 2)
    found: Floats = sums[high] - sums[low]
    return found


def _window(result: ReplayResult) -> int:
    return max(1, round(SMOOTHED_SHARE * len(result.tokens)))


def _rate(result: ReplayResult, course: CourseBins) -> Floats:
    """Tokens a second along the trace; NaN where nothing ran."""
    width = _window(result)
    seconds = smoothed(course.seconds, width)
    found: Floats = np.where(seconds > 0, smoothed(result.tokens, width) / np.where(seconds > 0, seconds, 1.0), np.nan)
    return found


def _titles(axis: TimeAxis) -> list[str]:
    seconds, name = axis.unit
    return [f"{(a + b) / 2 / seconds:.3g} {name}" for a, b in pairwise(axis.edges_s.tolist())]


def _guide(drawing: Drawing) -> None:
    drawing.line(LEFT, TOP, LEFT, drawing.bottom, "guide")


def _top(values: Sequence[Floats], percentile: float = 99.5) -> float:
    """A little above all but the highest peaks."""
    known = np.concatenate([v[~np.isnan(v)] for v in values])
    return max(1e-9, 1.06 * float(np.percentile(known, percentile))) if len(known) else 1.0


def goodput_figure(result: ReplayResult) -> Figure:
    """Tokens a second along the trace, by policy."""
    axis, drawing = time_axis(result), Drawing(330, "Goodput over time by policy")
    rates = [_rate(result, course) for course in result.courses]
    y = Scale(0.0, _top(rates), drawing.bottom, TOP)
    drawing.y_axis(y, "tokens a second")
    axis.draw(drawing)
    for number, rate in reversed(list(enumerate(rates))):
        style = f'curve" style="stroke:var({series_colour(number)})'
        drawing.curve(zip(axis.middles, map(y, rate.tolist()), strict=True), style)
    _guide(drawing)
    legend = tuple(Legend(course.name, series_colour(i)) for i, course in enumerate(result.courses))
    hover = Hover(
        axis.edges,
        _titles(axis),
        [
            HoverSeries(course.name, series_colour(i), [_figure(v, ",.0f") for v in rate.tolist()])
            for i, (course, rate) in enumerate(zip(result.courses, rates, strict=True))
        ],
    )
    caption = (
        "The same tokens at the same load, in the time that each policy would have needed for them. The axis "
        "is the time of the recorded run, so a place on it is the same work for everybody."
    )
    return Figure("goodput", "Goodput over time", caption, drawing.markup(), legend, hover)


def _figure(value: float, form: str) -> str:
    return "–" if np.isnan(value) else format(value, form)


def steps_figure(result: ReplayResult) -> Figure:
    """Which modes ran along the trace, by policy."""
    strip, gap = 46.0, 24.0
    height = TOP + len(result.courses) * (strip + gap) + 4 + BOTTOM
    axis, drawing = time_axis(result), Drawing(height, "Steps chosen over time by policy")
    colours, edges = mode_colours(result.modes), axis.edges
    for number, course in enumerate(result.courses):
        top = TOP + number * (strip + gap) + 20
        drawing.text(LEFT, top - 5, course.name, "name")
        total = course.steps.sum(axis=1)
        share = np.where(total[:, None] > 0, course.steps / np.maximum(1e-12, total)[:, None], 0.0)
        upto = np.cumsum(share, axis=1)
        for place, colour in enumerate(colours):
            if not share[:, place].any():
                continue
            low = (top + strip * (1 - (upto[:, place] - share[:, place]))).tolist()
            high = (top + strip * (1 - upto[:, place])).tolist()
            drawing.steps_between(edges, low, high, f'" style="fill:var({colour})')
        drawing.rect(LEFT, top, drawing.right - LEFT, strip, 'class="frame"')
    axis.draw(drawing)
    _guide(drawing)
    ran = np.sum([course.steps.sum(axis=0) for course in result.courses], axis=0) > 0
    legend = tuple(Legend(str(m), c) for m, c, used in zip(result.modes, colours, ran.tolist(), strict=True) if used)
    hover = Hover(
        edges,
        _titles(axis),
        [
            HoverSeries(course.name, series_colour(i), [_mostly(result.modes, row) for row in course.steps])
            for i, course in enumerate(result.courses)
        ],
    )
    caption = (
        "Share of the decode steps in each mode. Plain decoding is grey; the more drafts, the stronger the colour."
    )
    return Figure("steps", "Chosen steps", caption, drawing.markup(), legend, hover)


def _mostly(modes: Sequence[Mode], steps: Floats) -> str:
    """The modes of a bin, the most frequent first."""
    total = float(steps.sum())
    if not total:
        return "–"
    ranked = sorted(zip(steps.tolist(), map(str, modes), strict=True), reverse=True)
    return ", ".join(f"{name} {n / total:.0%}" for n, name in ranked if n / total >= 0.05)


def regret_figure(result: ReplayResult) -> Figure:
    """Time lost against the best fixed mode of each part of the trace, summed up."""
    axis, drawing = time_axis(result), Drawing(280, "Regret by policy")
    best = np.min([course.seconds for course in result.fixed], axis=0)
    lost = [np.cumsum(course.seconds - best) for course in result.courses]
    low, high = min(0.0, *(float(v.min()) for v in lost)), max(1e-9, *(float(v.max()) for v in lost))
    y = Scale(1.05 * low, 1.05 * high, drawing.bottom, TOP)
    drawing.y_axis(y, "seconds lost")
    axis.draw(drawing)
    for number, seconds in reversed(list(enumerate(lost))):
        style = f'curve" style="stroke:var({series_colour(number)})'
        points = zip(axis.edges, [y(0.0), *map(y, seconds.tolist())], strict=True)
        drawing.curve(points, style)
    _guide(drawing)
    legend = tuple(Legend(course.name, series_colour(i)) for i, course in enumerate(result.courses))
    hover = Hover(
        axis.edges,
        _titles(axis),
        [
            HoverSeries(course.name, series_colour(i), [f"{v:,.2f} s" for v in seconds.tolist()])
            for i, (course, seconds) in enumerate(zip(result.courses, lost, strict=True))
        ],
    )
    caption = (
        "Time lost so far against the fixed mode that is the best in each part of the trace: what somebody would have "
        "needed who knew each part beforehand and changed modes for free. A flat line loses nothing there."
    )
    return Figure("regret", "Regret", caption, drawing.markup(), legend, hover)


def load_figure(result: ReplayResult) -> Figure:
    """Batch size and acceptance of the first draft along the trace."""
    axis, drawing = time_axis(result), Drawing(290, "Load over time: batch size and acceptance")
    split = TOP + (drawing.bottom - TOP) * 0.55
    size = np.where(result.batch_size > 0, result.batch_size, np.nan)
    width = _window(result)
    known = ~np.isnan(result.conditional[:, 0])
    first = np.where(known, result.conditional[:, 0], 0.0)
    accepted = smoothed(first, width) / np.maximum(1e-12, smoothed(known.astype(float), width))
    y_size, y_accepted = Scale(0.0, _top([size], 100.0), split - 14, TOP), Scale(0.0, 1.0, drawing.bottom, split + 8)
    drawing.y_axis(y_size, "batch size", 4)
    drawing.y_axis(y_accepted, "acceptance", 3, percent=True)
    axis.draw(drawing)
    drawing.curve(zip(axis.middles, map(y_size, size.tolist()), strict=True), 'curve" style="stroke:var(--s0)')
    drawing.curve(zip(axis.middles, map(y_accepted, accepted.tolist()), strict=True), 'curve" style="stroke:var(--s3)')
    _guide(drawing)
    hover = Hover(
        axis.edges,
        _titles(axis),
        [
            HoverSeries("batch size", "--s0", [_figure(v, ".1f") for v in size.tolist()]),
            HoverSeries("first draft accepted", "--s3", [_figure(v, ".0%") for v in accepted.tolist()]),
        ],
    )
    caption = "What the policies met: requests in a batch, and how often the first draft of a step is accepted."
    legend = (Legend("batch size", "--s0"), Legend("first draft accepted", "--s3"))
    return Figure("load", "The load", caption, drawing.markup(), legend, hover)


def acceptance_figure(result: ReplayResult) -> Figure:
    """How often a draft is accepted if those before it were, by position and by the mode that ran."""
    depth = result.conditional.shape[1]
    drawing = Drawing(300, "Acceptance by position")
    x, y = Scale(0.5, depth + 0.5, LEFT, drawing.right), Scale(0.0, 1.0, drawing.bottom, TOP)
    drawing.y_axis(y, "accepted, if those before it were", 5, percent=True)
    drawing.line(LEFT, drawing.bottom, drawing.right, drawing.bottom, "base")
    for position in range(1, depth + 1):
        drawing.text(x(position), drawing.bottom + 18, str(position), "tick", "middle")
    drawing.text((LEFT + drawing.right) / 2, drawing.bottom + 34, "position of the draft", "axis", "middle")
    used = np.nanmean(result.conditional, axis=0)
    drawing.curve([(x(d + 1), y(p)) for d, p in enumerate(used.tolist())], 'curve dashed" style="stroke:var(--s0)')
    legend = [Legend("as replay takes it, mean over the trace", "--s0")]
    offered, accepted = result.accepted_by_mode
    ran = [i for i in range(len(offered)) if offered[i].max(initial=0.0) >= FEWEST_DRAFTS]
    for number, i in enumerate(ran, 1):
        mode, colour = result.ran_modes[i], series_colour(number)
        points = [
            (d, a / o, o) for d, (o, a) in enumerate(zip(offered[i], accepted[i], strict=True)) if o >= FEWEST_DRAFTS
        ]
        drawing.curve([(x(d + 1), y(rate)) for d, rate, _ in points], f'curve" style="stroke:var({colour})')
        for d, rate, drafts in points:
            said = f"{mode}, draft {d + 1}: {rate:.1%} of {drafts:,.0f}"
            drawing.add(
                f'<circle cx="{x(d + 1):.1f}" cy="{y(rate):.1f}" r="4" style="fill:var({colour})">'
                f"<title>{said}</title></circle>"
            )
        legend.append(Legend(f"counted in {mode}", colour))
    caption = COUNTED if ran else ONLY_SUMS
    return Figure("acceptance", "Acceptance by position", caption, drawing.markup(), tuple(legend))
