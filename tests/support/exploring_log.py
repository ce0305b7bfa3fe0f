"""A simulated engine under a policy, recorded as a trace with the probabilities of its leases."""

from __future__ import annotations

from pathlib import Path

from trimtab.domain import Lease, Mode, StepRow
from trimtab.replay.environment import StepLoad
from trimtab.replay.simulation.cases import CaseEnvironment
from trimtab.replay.simulation.drivers import SessionDriver, StepResult, play
from trimtab.replay.simulation.trial import parse_policy
from trimtab.replay.traces.exporting import dwell_of, probability_of
from trimtab.replay.traces.schema import TraceEngine
from trimtab.replay.traces.writer import TraceWriter


class RecordingDriver(SessionDriver):
    """Keeps every row, and with which probability and how long draws its lease chose the mode.

    `held` are the numbers of rows whose mode another lease or band chose, because it had not dwelt long enough.
    """

    def __init__(self, environment: CaseEnvironment, policy: str, seed: int = 0) -> None:
        named = parse_policy(policy)
        super().__init__(environment, named.name, named.factory, seed=seed)
        self.rows: list[StepRow] = []
        self.probabilities: list[float | None] = []
        self.dwell_steps: list[int | None] = []
        self.held: set[int] = set()
        self._leases: dict[int, Lease] = {}

    def choose(self, load: StepLoad) -> Mode:
        lease = self.machine.lease
        if lease is not None:
            self._leases[lease.version] = lease
        mode = super().choose(load)
        if lease is not None and (self.machine.version, self.machine.entry) != (lease.version, self.machine._band):
            self.held.add(len(self.rows))
        return mode

    def finish(self, result: StepResult) -> None:
        row = self._row(result)
        super().finish(result)
        lease = self._leases[row.lease_version]
        self.rows.append(row)
        self.probabilities.append(probability_of(lease, row))
        self.dwell_steps.append(dwell_of(lease, row))


def record(path: Path, case: CaseEnvironment, policy: str, seed: int = 0) -> Path:
    """Play the case under the policy and write what happened as a trace."""
    driver = RecordingDriver(case, policy, seed)
    play(case, driver)
    engine = TraceEngine(
        case.name, 0, modes=tuple(map(str, case.modes)), graph_batch_sizes=case.graph_batch_sizes,
        max_running_requests=case.graph_batch_sizes[-1], initial_steps=case.start.steps, start_mode=str(case.start),
    )  # fmt: skip
    with TraceWriter(path, "journal") as writer:
        writer.begin(engine)
        writer.write_rows(driver.rows, driver.probabilities, driver.dwell_steps)
    return path
