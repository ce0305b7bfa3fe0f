"""The start-up sweep on a real engine: every mode is measured while nobody asks, and the first request ends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from engine_server import CANDIDATE_STEPS, EngineFactory, EngineServer, EngineSettings
from prompts import EASY_TOKENS, prompts
from support.scripted_controller import ScriptedController
from trimtab.domain import Mode, StepFlag, modes_of, speculate
from trimtab.wire import columns_to_rows
from trimtab_sglang.lease import Lease, TableEntry
from waiting import wait_until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(240)]

MODES = modes_of(CANDIDATE_STEPS)
(PROMPT,) = prompts(1, EASY_TOKENS, seed=3)
TOKENS = 60
COUNTED_STEPS = 10
SWEPT_WITHIN_S = 60.0
REPORTS_AFTERWARDS = 10


class Rows:
    """The rows that a scripted controller has heard so far."""

    def __init__(self, controller: ScriptedController) -> None:
        self._controller = controller
        self.swept: Counter[tuple[int, Mode]] = Counter()
        self.lease_versions: set[int] = set()
        self.others: list[Mode] = []

    def read(self) -> None:
        """Take in the next report."""
        rows, refused = columns_to_rows(self._controller.next_report().rows)
        assert not refused
        for row in rows:
            if not row.flags & StepFlag.SWEEP:
                self.others.append(row.mode)
            else:
                self.lease_versions.add(row.lease_version)
                if not row.flags & (StepFlag.GAP | StepFlag.WARM_UP):
                    self.swept[row.batch_size, row.mode] += 1


@pytest.fixture(scope="module")
def controller() -> Iterator[ScriptedController]:
    with ScriptedController() as controller:
        yield controller


@pytest.fixture(scope="module")
def engine(new_engine: EngineFactory, controller: ScriptedController) -> Iterator[EngineServer]:
    environment = {
        "TRIMTAB_CONTROLLER": controller.target,
        "TRIMTAB_MODE": "act",
        "TRIMTAB_SWEEP": "1",
        "TRIMTAB_SWEEP_SECONDS": str(SWEPT_WITHIN_S),
    }
    with new_engine(EngineSettings("cycle", environment=environment)) as engine:
        yield engine


def test_modes_are_measured_until_the_first_request_which_gets_what_it_asked_for(
    engine: EngineServer, controller: ScriptedController
) -> None:
    assert controller.next_hello().speculation.device_name == "cpu"
    lease = Lease(1, (TableEntry(1, speculate(1)),))
    assert controller.lease(lease, ttl_s=2 * SWEPT_WITHIN_S).accepted
    rows = Rows(controller)

    def both_ends_are_measured() -> bool:
        rows.read()
        return all(rows.swept[size, mode] >= COUNTED_STEPS for size in (1, 16) for mode in MODES)

    wait_until("every mode at the smallest and the largest batch", both_ends_are_measured, SWEPT_WITHIN_S)
    assert rows.lease_versions == {0}, "no decision of the controller's stands behind these rows"

    answer = engine.generate(PROMPT, TOKENS)
    assert answer.finish_reason == "length"
    assert len(answer.tokens) == TOKENS
    wait_until("the sweep's last words", lambda: "trimtab sweep is over" in engine.log_path.read_text(), 10)
    assert "cells: a request came in" in engine.log_path.read_text()

    rows.others.clear()
    engine.generate(PROMPT, TOKENS)
    for _ in range(REPORTS_AFTERWARDS):
        rows.read()
    assert set(rows.others) == {speculate(1)}, "the controller's lease is in force again"
