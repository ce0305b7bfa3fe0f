"""A picture of what policies did with cases: chosen steps over the best mode of each phase, the batch, the luck."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trimtab.errors import DataError
from trimtab.replay.simulation.cases import CaseEnvironment
from trimtab.replay.simulation.drivers import Course
from trimtab.replay.simulation.efficiency import Verdict
from trimtab.replay.simulation.trial import Trial

CHOSEN, BEST, BATCH, ACCEPTANCE = "#1f4e79", "#f4b183", "#7f7f7f", "#548235"
WINDOWS = 150


def plot(trials: Sequence[Trial], path: Path) -> None:
    """Write one column a case: a panel a policy, then batch size and acceptance, over the decode steps.

    Raises:
        DataError: The file cannot be written, or its ending is of no picture format.
    """
    n_rows = max(len(trial.courses) for trial in trials) + 2
    figure = Figure(figsize=(9 * len(trials), 1.6 * n_rows + 0.8), layout="constrained")
    axes = figure.subplots(n_rows, len(trials), squeeze=False)
    for column, trial in zip(axes.T, trials, strict=True):
        _draw(list(column), trial)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise DataError(str(path), f"cannot be written: {error}") from error


def _draw(column: Sequence[Axes], trial: Trial) -> None:
    *policies, batch, acceptance = column
    for axes, (verdict, course) in zip(policies, trial.courses, strict=False):
        _draw_chosen(axes, trial, verdict, course)
    for axes in policies[len(trial.courses) :]:
        axes.set_visible(False)
    _draw_load(batch, acceptance, trial.case)
    for axes in column:
        axes.set_xlim(0, len(trial.case.loads))
        axes.tick_params(labelbottom=axes is acceptance)
    acceptance.set_xlabel("decode step")


def _draw_chosen(axes: Axes, trial: Trial, verdict: Verdict, course: Course) -> None:
    case = trial.case
    rung = {mode.steps: i for i, mode in enumerate(case.modes)}
    at = 0
    for phase, members in groupby(load.phase for load in case.loads):
        end = at + len(list(members))
        best = rung[trial.judge.best_mode(phase).steps]
        axes.fill_between(
            [at, end], best - 0.4, best + 0.4, color=BEST, linewidth=0, label=None if at else "best of phase"
        )
        axes.axvline(end, color="0.85", linewidth=0.6, zorder=0)
        at = end
    chosen = [rung.get(mode.steps, np.nan) for mode in course.modes]
    axes.step(range(len(chosen)), chosen, where="post", color=CHOSEN, linewidth=1.0, label="chosen")
    axes.set_yticks(range(len(rung)), [str(steps) for steps in rung])
    axes.set_ylim(-0.6, len(rung) - 0.4)
    axes.set_ylabel("steps")
    figures = f"efficiency {verdict.efficiency:.3f}, {verdict.switches} switches"
    axes.set_title(
        f"{verdict.case}: {verdict.policy}, profile {verdict.profile}: {figures}", fontsize="medium", loc="left"
    )


def _draw_load(batch: Axes, acceptance: Axes, case: CaseEnvironment) -> None:
    sizes = [load.batch_size for load in case.loads]
    batch.step(range(len(sizes)), sizes, where="post", color=BATCH, linewidth=1.0)
    batch.set_ylabel("batch size")
    batch.set_ylim(bottom=0)
    x, share = accepted_share(case)
    acceptance.plot(x, share, color=ACCEPTANCE, linewidth=1.2)
    acceptance.set_ylabel("acceptance")
    acceptance.set_ylim(0, 1)


def accepted_share(case: CaseEnvironment) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Share of drafts accepted where those before them were, over windows of steps.

    Returns:
        Middle of each window and its share; both of shape `(n_windows,)`, NaN where no draft was reached.
    """
    reach = np.array([load.reach for load in case.loads], dtype=float)
    windows = np.array_split(np.arange(len(reach)), min(WINDOWS, len(reach)))
    accepted = np.array([reach[window, 1:].sum() for window in windows])
    offered = np.array([reach[window, :-1].sum() for window in windows])
    return np.array([window.mean() for window in windows]), accepted / np.where(offered > 0, offered, np.nan)
