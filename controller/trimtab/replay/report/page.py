"""The report of a replay: one HTML page that stands by itself, for somebody who was not there."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path

import msgspec
import numpy as np

from trimtab import __version__
from trimtab.replay.counterfactual.result import AS_RECORDED, ReplayResult, ReplayVerdict
from trimtab.replay.report.figures import Figure, figures, series_colour
from trimtab.replay.report.surface import cost_figure
from trimtab.replay.report.svg import Scale
from trimtab.replay.report.text import METHOD, SHARES, facts, gain_words, headline, notes
from trimtab.whole_file import written_whole

BAR_WIDTH, BAR_HEIGHT = 130.0, 20.0
# Columns of the table beside the policy; the one without a name has the intervals as bars.
HEADS = (
    "Tokens a second", "Of the recorded run", "", "Of the best fixed mode", "Changes in 1,000 steps", "Time lost",
    "Observed", "Truncated", "Modelled",
)  # fmt: skip


def write_report(results: Sequence[ReplayResult], path: Path, command: str = "") -> None:
    """Write the page, at once and as a whole.

    Args:
        results: What was found, one for each trace.
        path: Where the page goes.
        command: What was typed, for the page.

    Raises:
        DataError: The page cannot be written.
    """
    with written_whole(path) as beside:
        beside.write_text(report_page(results, command), encoding="utf-8")


def report_page(results: Sequence[ReplayResult], command: str = "") -> str:
    """The page as HTML; it needs nothing else."""
    several = len(results) > 1
    title = f"Replay of {len(results)} traces" if several else f"Replay of {Path(results[0].trace).name}"
    parts = [f"<h1>{escape(title)}</h1>", _purpose()]
    for number, result in enumerate(results):
        if several:
            parts.append(f"<h2>{escape(result.trace)}</h2>")
        parts.append(_trace(result, number))
    parts += [_method(), _footer(command)]
    style, script = (_file(f"page.{kind}") for kind in ("css", "js"))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escape(title)}</title><style>{style}</style></head>'
        f"<body><main>{''.join(parts)}</main><script>{script}</script></body></html>\n"
    )


def _file(name: str) -> str:
    return resources.files("trimtab.replay.report").joinpath(name).read_text(encoding="utf-8")


def _purpose() -> str:
    return (
        '<p class="soft">An engine was recorded while it served: what each decode step ran, cost and yielded. This '
        "page says how long other policies, that is other ways to choose between plain decoding and speculation with "
        "so many drafts, would have needed for the same work.</p>"
    )


def _trace(result: ReplayResult, number: int) -> str:
    drawn = [*figures(result), cost_figure(result, number)]
    said = "".join(f'<p class="note">{escape(note)}</p>' for note in notes(result.verdicts))
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in facts(result))
    return (
        "".join(f'<p class="lead">{escape(sentence)}</p>' for sentence in headline(result))
        + _table(result)
        + said
        + _engines(result)
        + "".join(_figure(figure, number) for figure in drawn)
        + f"<h3>What the figures stand on</h3><dl>{pairs}</dl>"
    )


# -- the table ---------------------------------------------------------------------------------------


def _table(result: ReplayResult) -> str:
    low = min(0.99, *(v.against_recorded.low for v in result.verdicts))
    high = max(1.01, *(v.against_recorded.high for v in result.verdicts))
    scale = Scale(low, min(high, 4.0), 4.0, BAR_WIDTH - 4.0)
    best = max(result.verdicts, key=lambda v: v.tokens_per_s)
    head = "".join(f'<th class="{"figure" if name else ""}">{escape(name)}</th>' for name in HEADS)
    rows = "".join(_row(v, i, scale, v is best) for i, v in enumerate(result.verdicts))
    return (
        f'<div class="scroll"><table class="results"><thead><tr><th>Policy</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(v: ReplayVerdict, number: int, scale: Scale, best: bool) -> str:
    recorded, fixed = v.against_recorded, v.against_best_fixed
    cells = [
        _two(f"{v.tokens_per_s:,.0f}", f"{v.low:,.0f} to {v.high:,.0f}"),
        _two(f"{recorded.value:.3f}", gain_words(recorded) if v.policy != AS_RECORDED else ""),
        f"<td>{_bar(v, number, scale)}</td>",
        _two(f"{fixed.value:.3f}", gain_words(fixed)),
        _two(f"{v.switches_per_1000_steps:.1f}", f"{v.switches:,} in all"),
        _two(f"{v.regret_s:,.1f} s", f"of {v.seconds:,.1f} s"),
        *(_two(f"{share:.1%}", "") for share in (v.observed_share, v.truncated_share, v.modelled_share)),
    ]
    name = f"{_swatch(series_colour(number))}{escape(v.policy)}"
    return f'<tr class="{"best" if best else ""}"><td>{name}</td>{"".join(cells)}</tr>'


def _swatch(colour: str) -> str:
    """A sample of a colour of the style sheet, or of one of its classes."""
    if colour.startswith("--"):
        return f'<span class="swatch" style="background:var({colour})"></span>'
    return f'<span class="swatch {colour}"></span>'


def _two(figure: str, below: str) -> str:
    return f'<td class="figure">{figure}<small>{below}</small></td>'


def _bar(v: ReplayVerdict, number: int, scale: Scale) -> str:
    """The interval of the gain as a bar; the dashed line is the recorded run."""
    gain, middle = v.against_recorded, BAR_HEIGHT / 2
    colour = f"var({series_colour(number)})"
    return (
        f'<svg viewBox="0 0 {BAR_WIDTH:.0f} {BAR_HEIGHT:.0f}" style="width:{BAR_WIDTH:.0f}px" role="img" '
        f'aria-label="{gain.value:.3f}, {gain_words(gain)}">'
        f'<line x1="{scale(1.0):.1f}" x2="{scale(1.0):.1f}" y1="0" y2="{BAR_HEIGHT:.0f}" class="one"/>'
        f'<line x1="{scale(gain.low):.1f}" x2="{scale(gain.high):.1f}" y1="{middle}" y2="{middle}" '
        f'style="stroke:{colour};stroke-width:3"/>'
        f'<circle cx="{scale(gain.value):.1f}" cy="{middle}" r="4.5" style="fill:{colour}"/></svg>'
    )


def _engines(result: ReplayResult) -> str:
    """Tokens a second of every run of an engine, where there are several."""
    if len(result.engines) < 2:
        return ""
    head = "".join(f'<th class="figure">{escape(name)}</th>' for name in result.engines)
    rows = "".join(
        f"<tr><td>{_swatch(series_colour(i))}{escape(v.policy)}</td>"
        + "".join(f'<td class="figure">{e.tokens_per_s:,.0f}</td>' for e in v.engines)
        + "</tr>"
        for i, v in enumerate(result.verdicts)
    )
    return (
        '<h3>Tokens a second by engine</h3><div class="scroll"><table class="engines"><thead><tr><th>Policy</th>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


# -- figures and words -------------------------------------------------------------------------------


def _figure(figure: Figure, number: int) -> str:
    legend = "".join(f"<span>{_swatch(entry.colour)}{escape(entry.name)}</span>" for entry in figure.legend)
    name = f"{figure.name}-{number}"
    hover, data = "", ""
    if figure.hover is not None:
        hover = f' data-hover="hover-{name}"'
        content = msgspec.json.encode(_rounded(figure)).decode().replace("<", "\\u003c")
        data = f'<div class="tip"></div><script type="application/json" id="hover-{name}">{content}</script>'
    return (
        f'<h3 id="{name}">{escape(figure.title)}</h3><figcaption>{escape(figure.caption)}</figcaption>'
        f'<div class="legend">{legend}</div><figure{hover}>{figure.svg}{data}</figure>'
    )


def _rounded(figure: Figure) -> dict[str, object]:
    hover = figure.hover
    assert hover is not None
    return {
        "edges": np.round(hover.edges, 1).tolist(),
        "titles": hover.titles,
        "series": [{"name": s.name, "colour": s.colour, "values": s.values} for s in hover.series],
    }


def _method() -> str:
    shares = "".join(f"<dt>{name}</dt><dd>{escape(words)}</dd>" for name, words in SHARES)
    points = "".join(f"<li>{escape(point)}</li>" for point in METHOD)
    return (
        "<h2>How to read this</h2><p>The three shares add up to all tokens of the trace; the more is observed or "
        f"truncated, the less is believed.</p><dl>{shares}</dl><ul>{points}</ul>"
        "<p><b>Of the best fixed mode</b> compares with the single mode that would have done best throughout. "
        "<b>Time lost</b> compares with the best fixed mode of every part of the trace: the regret.</p>"
    )


def _footer(command: str) -> str:
    typed = f"<p>Made by <code>{escape(command)}</code></p>" if command else ""
    versions = f"Trimtab {__version__}, Python {platform.python_version()}, numpy {np.__version__}"
    return f"<footer>{typed}<p>{escape(versions)}</p></footer>"
