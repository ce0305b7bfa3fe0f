"""What the journal costs: on the event loop for a report, and at the start of a daemon that knows many engines."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import structlog

from support.journals import Desk, written
from support.step_rows import MadeUpEngine
from trimtab.domain import speculate
from trimtab.server.seat import Seat
from trimtab.session.events import Reported
from trimtab.wire import read_report, rows_to_columns
from trimtabpb.v1 import control_pb2 as pb

ROWS = 25
ENGINES = 1000
REPORTS = 2000


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    """A thousand engines that connect are a thousand lines of log."""
    with structlog.testing.capture_logs():
        yield


def reports(seat: Seat, count: int) -> list[tuple[Reported, pb.Report]]:
    """What an engine says, a quarter of a second apart."""
    world, found = MadeUpEngine(1), []
    for seq in range(1, count + 1):
        rows = world.report(lambda _: speculate(3), ROWS)
        message = pb.Report(seq=seq, now_ns=rows[-1].result_ns, rows=rows_to_columns(rows))
        found.append((Reported(read_report(message)[0]), message))
    return found


@pytest.mark.bench
@pytest.mark.timeout(120)
def test_a_report_on_the_event_loop(tmp_path: Path) -> None:
    """Between the moment that a report is read and the moment that the next one can be."""
    took_us = {journal: asyncio.run(report_us(tmp_path / str(journal), journal)) for journal in (False, True)}
    print(
        f"\na report of {ROWS} rows on the event loop: {took_us[False]:.0f} us without a journal, "
        f"{took_us[True]:.0f} us with one ({REPORTS} reports, fixed policy)"
    )


async def report_us(directory: Path, journal: bool) -> float:
    desk = Desk(directory, "fixed")
    desk.journal.writer.start()
    seat = desk.join()
    if not journal:
        desk.fleet.scribe = None
    said = reports(seat, REPORTS)
    began = time.perf_counter()
    for event, message in said:
        desk.clock.pass_s(0.25)
        desk.fleet.apply(seat, event, message.SerializeToString() if journal else b"")
    took = time.perf_counter() - began
    await desk.journal.writer.close(20.0)
    return took / REPORTS * 1e6


@pytest.mark.bench
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dies", [False, True], ids=["ended", "killed"])
def test_the_start_of_a_daemon_that_knows_a_thousand_engines(tmp_path: Path, dies: bool) -> None:
    def meet(desk: Desk) -> None:
        seats = [desk.join(f"engine-{i}") for i in range(ENGINES)]
        for seat in seats:
            desk.report(seat, after_s=0.0)

    written(tmp_path, meet, dies=dies)
    began = time.perf_counter()
    desk = Desk(tmp_path)
    opened = time.perf_counter()
    engines = desk.resume()
    ended = time.perf_counter()
    print(
        f"\n{engines} engines: {(opened - began) * 1e3:.0f} ms to read the journal, "
        f"{(ended - opened) * 1e3:.0f} ms to go on with them"
    )
    assert engines == ENGINES
    desk.journal.writer.file.release()
