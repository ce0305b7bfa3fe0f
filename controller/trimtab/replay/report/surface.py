"""The cost surface of the report: what a step takes by batch size and mode."""

from __future__ import annotations

import numpy as np

from trimtab.replay.arrays import Floats, Ints
from trimtab.replay.counterfactual.result import ReplayResult
from trimtab.replay.report.figures import Figure, Legend
from trimtab.replay.report.svg import BOTTOM, LEFT, TOP, WIDTH, Drawing
from trimtab.replay.trace_model.costs import ReplayCosts

MOST_SIZES = 14
ROW_HEIGHT = 34.0
NAMES_WIDTH = 56.0
PALEST, STRONGEST = 0.06, 0.62
HATCH = (
    '<defs><pattern id="{id}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line x1="0" y1="0" x2="0" y2="6" style="stroke:var(--soft);stroke-width:1.1;opacity:.45"/></pattern></defs>'
)


def cost_figure(result: ReplayResult, number: int = 0) -> Figure:
    """Step times by batch size and mode.

    Args:
        result: What a replay found.
        number: Of the trace on the page, so that names stay unique.
    """
    costs, modes = result.costs, result.modes
    chosen = _sizes(costs)
    ms = _times(result)[chosen]
    doubt = np.sqrt(costs.own_sd**2 + (costs.sources**2).sum(axis=2))[chosen]
    rows = costs.rows[chosen]
    drawing = Drawing(TOP + len(modes) * ROW_HEIGHT + BOTTOM, "What a step costs by batch size and steps")
    drawing.add(HATCH.format(id=f"hatch{number}"))
    left = LEFT + NAMES_WIDTH
    width = (drawing.right - left) / len(chosen)
    logs = np.log(ms)
    strength = PALEST + (STRONGEST - PALEST) * (logs - logs.min()) / max(1e-9, float(np.ptp(logs)))
    for j, mode in enumerate(modes):
        y = TOP + (len(modes) - 1 - j) * ROW_HEIGHT
        drawing.text(left - 10, y + ROW_HEIGHT / 2 + 4, str(mode), "tick", "end")
        for i, size in enumerate(costs.table.sizes[chosen].tolist()):
            x, told = left + i * width, rows[i, j] > 0
            seen = (
                f"from {rows[i, j]:,.0f} rows" if told else f"never measured, give or take {np.expm1(doubt[i, j]):.0%}"
            )
            said = f"batch {size}, {mode}: {ms[i, j]:.2f} ms, {seen}"
            fill = f'style="fill:rgba(var(--cheap), {strength[i, j]:.2f})"'
            drawing.rect(x + 1, y + 1, width - 2, ROW_HEIGHT - 2, fill, said)
            if not told:
                drawing.rect(x + 1, y + 1, width - 2, ROW_HEIGHT - 2, f'fill="url(#hatch{number})"', said)
            drawing.text(x + width / 2, y + ROW_HEIGHT / 2 + 4, _short_ms(ms[i, j]), "cell", "middle")
    for i, size in enumerate(costs.table.sizes[chosen].tolist()):
        drawing.text(left + (i + 0.5) * width, drawing.bottom + 16, str(size), "tick", "middle")
    drawing.text((left + WIDTH) / 2, drawing.bottom + 33, "batch size, as padded", "axis", "middle")
    return Figure("cost", "What a step costs", _caption(result), drawing.markup(), _legend(bool((rows == 0).any())))


def _legend(holes: bool) -> tuple[Legend, ...]:
    return (Legend("never measured in this trace", "hatched"),) if holes else ()


def _caption(result: ReplayResult) -> str:
    context = result.costs.profile.context
    more = (
        ""
        if context is None
        else f" Times are those at {context.reference_tokens:,.0f} tokens of context a request; each token "
        f"more in the batch adds {context.ms_per_token * 1e6:.3g} ns."
    )
    return (
        "Milliseconds of one decode step, by batch size and mode: the stronger the colour, the dearer. "
        f"Profile: {result.profile}.{more}"
    )


def _times(result: ReplayResult) -> Floats:
    """Step times by listed size and mode, at the level of the trace; shape `(S, M)`."""
    costs = result.costs
    ms = [[costs.profile.step_ms(mode, size) for mode in result.modes] for size in costs.table.sizes.tolist()]
    return np.array(ms) * costs.level


def _sizes(costs: ReplayCosts) -> Ints:
    """Places of the sizes to show: all, or those nearest to even distances on a logarithmic axis."""
    sizes = costs.table.sizes
    if len(sizes) <= MOST_SIZES:
        return np.arange(len(sizes))
    wanted = np.geomspace(sizes[0], sizes[-1], MOST_SIZES)
    nearest = np.abs(np.log(sizes)[None, :] - np.log(wanted)[:, None]).argmin(axis=1)
    return np.unique(nearest).astype(np.int64)


def _short_ms(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"
