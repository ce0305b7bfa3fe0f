"""A policy on a trace, step by step: what the engine's session and its lease machine would have done.

Steps flow through the rows. A step has a budget of 1; a row that takes 1.6 steps in the mode of the moment is passed by
one whole step and most of the next, and a step may span several rows of which each takes less than one. What a step
reports is the row in which it begins, under the mode that it runs; its time is that of all parts of rows that it spans.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trimtab.domain import Mode, StepFlag
from trimtab.replay.arrays import Ints
from trimtab.replay.counterfactual.choosers import OTHER_COLUMNS, Begun, Chooser, RowFacts
from trimtab.replay.counterfactual.ledger import Ledger
from trimtab.replay.trace_model.drawn_counts import drawn_reach
from trimtab.replay.trace_model.environment import Stretch, TraceEnvironment

# What is left of a step or a row, in steps, is rounding.
DUST = 1e-9


class SteppedCourse:
    """What a policy makes of a trace, one run of an engine after the other. Owned by one replay.

    Args:
        environment: The trace.
        chooser_for: Makes the chooser of a segment.
        starts: Mode in force before each segment's first row.
        seed: Seed of the luck beyond what was counted.
    """

    def __init__(
        self, environment: TraceEnvironment, chooser_for: Callable[[int], Chooser], starts: list[Mode], seed: int = 0
    ) -> None:
        self.ledger = Ledger(environment)
        self._environment = environment
        self._chooser_for = chooser_for
        self._starts = starts
        self._seed = seed
        self._places = {mode: place for place, mode in enumerate(environment.modes)}
        self._segment = -1
        self._open: Begun | None = None

    def play(self, stretch: Stretch) -> None:
        """Let steps flow through the next rows."""
        if stretch.rows.segment != self._segment:
            self.finish()
            self._begin(stretch.rows.segment)
        table = RowTable(stretch, self._environment, self._seed)
        row, place, share, switched = self._flow(table)
        self.ledger.add(stretch, np.array(row), np.array(place), np.array(share))
        if switched:
            self.ledger.add_switches(stretch.bin[np.array(switched)], self._environment.costs.price.ms)

    def finish(self) -> None:
        """End the last step where the trace ends."""
        if self._open is not None:
            self._end(self._open)

    def _begin(self, segment: int) -> None:
        self._segment, self._now_ms = segment, 0.0
        # What an engine started with may be none of the modes that it offers.
        self._before = self._places.get(self._starts[segment], -1)
        self._chooser = self._chooser_for(segment)

    def _end(self, step: Begun) -> None:
        self._now_ms += step.ms + step.gap_ms
        self._open = None
        self._chooser.finish(step, self._environment.modes[step.place], self._now_ms)

    def _flow(self, table: RowTable) -> tuple[list[int], list[int], list[float], list[int]]:
        """Parts of rows by the modes that they ran in, and the rows in which a step began in another mode."""
        price_ms, choose, places = self._environment.costs.price.ms, self._chooser.choose, self._places
        all_steps, all_ms, entered = table.steps, table.step_ms, table.entered
        rows: list[int] = []
        modes: list[int] = []
        shares: list[float] = []
        switches: list[int] = []
        step = self._open
        m = len(places)
        at, left, n = 0, 1.0, table.rows
        while at < n:
            if step is None:
                facts = table.facts(at)
                place = places[choose(facts.batch_size)]
                step = Begun(facts, place, place != self._before)
                if step.switched:
                    step.ms = price_ms
                    switches.append(at)
                self._before = place
            place = step.place
            if left == 1.0 and (entry := entered.get(at)) is not None:
                step.gap_ms += entry[0]
                step.prefill_tokens += entry[1]
                step.timed = False
            steps = all_steps[at * m + place]
            needs = left * steps
            budget = step.budget
            rows.append(at)
            modes.append(place)
            if needs <= budget + DUST:
                step.ms += needs * all_ms[at * m + place]
                step.budget = budget - needs
                shares.append(left)
                at += 1
                left = 1.0
                if step.budget > DUST:
                    continue
            else:
                step.ms += budget * all_ms[at * m + place]
                shares.append(budget / steps)
                left -= budget / steps
            self._end(step)
            step = None
        self._open = step
        return rows, modes, shares, switches


class RowTable:
    """Rows of a stretch for a walk through them one by one.

    Flat, since millions of small lists are dear; views where only a part of the numbers is ever looked at.

    Attributes:
        rows: How many there are.
        steps: Steps that each row takes, by mode: those of row i begin at `i * n_modes`.
        step_ms: Time of one of them, laid out alike.
        entered: Prefill before a row in ms and its tokens, of rows before which an engine could tell no step time.
    """

    def __init__(self, stretch: Stretch, environment: TraceEnvironment, seed: int) -> None:
        rows, columns = stretch.rows, stretch.rows.columns
        self.rows = len(stretch)
        self.steps = np.ascontiguousarray(stretch.steps).ravel().data
        self.step_ms = np.ascontiguousarray(stretch.step_ms).ravel().data
        self.entered = _entered(stretch)
        reach = drawn_reach(rows, environment.course, seed)
        self._width = reach.shape[1]
        self._reach = np.ascontiguousarray(reach).ravel().data
        self._batch_size: list[int] = rows.batch_size.tolist()
        self._padded: list[int] = rows.padded.tolist()
        all_tokens = rows.requests + rows.accepted
        self._kept: list[float] = np.where(all_tokens > 0, rows.tokens / np.maximum(1, all_tokens), 1.0).tolist()
        self._graph: list[bool] = ((np.maximum(0, columns.ints("flags")) & int(StepFlag.GRAPH)) > 0).tolist()
        self._others = [_known(columns.ints(name)) for name in OTHER_COLUMNS]

    def facts(self, at: int) -> RowFacts:
        """What is known of a row."""
        start = at * self._width
        return RowFacts(
            self._batch_size[at],
            self._padded[at],
            tuple(self._reach[start : start + self._width].tolist()),
            self._kept[at],
            self._graph[at],
            *[None if column is None else column[at] for column in self._others],
        )


def _entered(stretch: Stretch) -> dict[int, tuple[float, int]]:
    rows = stretch.rows
    hidden = np.flatnonzero(np.isnan(rows.step_ms) | (stretch.prefill_ms > 0))
    tokens = np.maximum(0, rows.columns.ints("prefill_tokens")[hidden]).tolist()
    gaps = zip(stretch.prefill_ms[hidden].tolist(), tokens, strict=True)
    return dict(zip(hidden.tolist(), gaps, strict=True))


def _known(column: Ints) -> list[int | None] | None:
    """A column with None where a row has nothing; None if no row has anything."""
    if (column >= 0).all():
        return list(column.tolist())
    return [None if value < 0 else value for value in column.tolist()] if (column >= 0).any() else None
