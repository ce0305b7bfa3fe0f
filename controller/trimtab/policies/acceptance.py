"""Expected accepted drafts of every mode, with change test and drift alarm.

One cascade serves all modes, or, where block verification makes acceptance depend on the chosen width, one a mode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trimtab.policies.cascade import Cascade, Floats
from trimtab.policies.change import ChangeTest, Counts, DriftAlarm
from trimtab.policies.row_reader import ReportSums


class Acceptance:
    """What is known of acceptance. Owned by one policy.

    Args:
        steps: Drafts of each mode; shape `(n_modes,)`.
        by_mode: Whether each mode has its own acceptance.
    """

    def __init__(self, steps: Sequence[int], by_mode: bool = False) -> None:
        self._steps = list(steps)
        self._at = np.array(self._steps, dtype=np.intp)
        self._by_mode = by_mode
        self._stale_share = 0.0
        self.forget()

    @property
    def drift_alarm(self) -> bool:
        """Whether acceptance has slowly fallen below what this engine began with."""
        return self._alarm.raised

    def learn(self, sums: ReportSums) -> bool:
        """Take in one report; whether acceptance changed at once."""
        if sums.requests:
            self._stale_share = 0.0 if sums.catches_up else sums.stale_requests / sums.requests
        for cascade in self._cascades:
            cascade.advance(sums.steps)
        first = sums.shared_counts(1)
        if first is None:
            return False
        self._alarm.add(first.offered[0], first.accepted[0], sums.last_ns)
        since = [self._add(i, counts) for i, counts in self._counts(sums).items()]
        changed = next((counts for counts in since if counts is not None), None)
        if changed is not None:
            self._alarm.changed(changed.accepted[0] / changed.offered[0])
        return changed is not None

    def _counts(self, sums: ReportSums) -> dict[int, Counts]:
        """One report's counts for each cascade that they belong to."""
        if self._by_mode:
            return {mode: Counts(tuple(o), tuple(a)) for mode, (o, a) in sums.counts.items()}
        shared = sums.shared_counts(self._cascades[0].depth)
        return {} if shared is None else {0: shared}

    def _add(self, i: int, counts: Counts) -> Counts | None:
        """Add counts to cascade `i`; if they show a change, all start over, and the counts since it come back."""
        since = self._changes[i].add(counts)
        if since is None:
            self._cascades[i].add(counts.offered, counts.accepted)
            return None
        for j, (cascade, change) in enumerate(zip(self._cascades, self._changes, strict=True)):
            if j == i:
                cascade.restart(since.offered, since.accepted)
            else:
                cascade.restart((), ())
                change.clear()
        return since

    def forget(self) -> None:
        """Other weights or another drafter: nothing that was learnt holds."""
        depth = max(1, *self._steps)
        self._cascades = [Cascade(depth) for _ in (self._steps if self._by_mode else [0])]
        self._changes = [ChangeTest() for _ in self._cascades]
        self._alarm = DriftAlarm()

    def curve(self) -> tuple[Floats, Floats]:
        """Expected accepted drafts of every mode, and loadings of `log(1 + accepted)` (see `Curve`).

        A stale request is expected to have nothing accepted.
        """
        fresh_share = 1 - self._stale_share
        if not self._by_mode:
            curve = self._cascades[0].curve()
            accepted, loadings = curve.accepted[self._at], curve.loadings[self._at]
        else:
            accepted, loadings = self._curve_by_mode()
        if fresh_share == 1:
            return accepted, loadings
        scaled = fresh_share * accepted
        damping = (fresh_share * (1 + accepted) / (1 + scaled))[:, None]
        return scaled, loadings * damping

    def _curve_by_mode(self) -> tuple[Floats, Floats]:
        """Each mode by its own cascade; one that never ran by the nearest that did."""
        depth = self._cascades[0].depth
        accepted = np.zeros(len(self._steps))
        loadings = np.zeros((len(self._steps), len(self._steps) * depth))
        known = [m for m, cascade in enumerate(self._cascades) if cascade.seen]
        for mode, steps in enumerate(self._steps):
            source = min(known, key=lambda m: (abs(self._steps[m] - steps), m), default=mode)
            curve = self._cascades[source].curve()
            accepted[mode] = curve.accepted[steps]
            loadings[mode, mode * depth : (mode + 1) * depth] = curve.loadings[steps]
        return accepted, loadings

    def state(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        return {
            "cascades": [cascade.state() for cascade in self._cascades],
            "changes": [change.state() for change in self._changes],
            "alarm": self._alarm.state(),
            "stale_share": self._stale_share,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of the same modes; `ValueError` otherwise."""
        if len(state["cascades"]) != len(self._cascades):
            raise ValueError("the acceptance is of other modes")
        for cascade, saved in zip(self._cascades, state["cascades"], strict=True):
            cascade.set_state(saved)
        for change, saved in zip(self._changes, state["changes"], strict=True):
            change.set_state(saved)
        self._alarm.set_state(state["alarm"])
        self._stale_share = float(state["stale_share"])
