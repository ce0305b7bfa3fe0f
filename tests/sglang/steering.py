"""Steers an engine step by step: a controller without a policy that says which modes run, and reads every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from support.scripted_controller import ScriptedController
from trimtab.domain import Lease, Mode, StepRow, TableEntry
from trimtab.wire import columns_to_rows, read_hello
from trimtabpb.v1 import control_pb2 as pb
from waiting import wait_until

LEASE_S = 600.0
ROWS_WITHIN_S = 30.0


class Steering:
    """One engine's stream. Entering waits for the engine's Hello."""

    def __init__(self, controller: ScriptedController) -> None:
        self._controller = controller
        self._version = 0
        self._read = 0
        self.hello = pb.Hello()

    @property
    def modes(self) -> tuple[Mode, ...]:
        """What the engine offers."""
        return read_hello(self.hello)[0].modes

    def meet(self) -> Steering:
        """Take in the engine's Hello."""
        self.hello = self._controller.next_hello()
        return self

    def run(self, mode: Mode) -> None:
        """Run this mode from the next launch on."""
        self._lease(Lease(1, (TableEntry(1, mode),)))

    def shuffle(self, modes: Sequence[Mode], seed: int, dwell_steps: int) -> None:
        """Run another of these modes every so many steps, drawn from the seed: a schedule of its own."""
        share = 1 / len(modes)
        alternatives = tuple((mode, share) for mode in modes[1:])
        entry = TableEntry(1, modes[0], 1 - share * len(alternatives), alternatives)
        self._lease(Lease(1, (entry,), exploration_seed=seed, exploration_dwell_steps=dwell_steps))

    @property
    def stale_resumes(self) -> int:
        """Requests drafted for with a hole, by the last report."""
        return self._controller.reports[-1].stale_resumes if self._controller.reports else 0

    def rows(self) -> list[StepRow]:
        """Every row since the last call, once the engine is idle."""
        reports, idle_since = self._controller.reports, len(self._controller.reports)
        wait_until("two reports without rows", lambda: _idle(reports[idle_since:]), ROWS_WITHIN_S)
        first, self._read = self._read, len(reports)
        return [row for report in reports[first : self._read] for row in columns_to_rows(report.rows)[0]]

    def _lease(self, lease: Lease) -> None:
        self._version += 1
        answer = self._controller.lease(replace(lease, version=self._version), ttl_s=LEASE_S)
        assert answer.accepted, answer


def _idle(reports: Sequence[pb.Report]) -> bool:
    return len(reports) >= 2 and not any(report.rows.step or report.running_requests for report in reports[-2:])


def accepted_by_round(rows: Sequence[StepRow]) -> list[int]:
    """Accepted drafts of every round that drafted, of an engine that runs a single request."""
    return [row.accepted_tokens for row in rows if row.mode.steps]
