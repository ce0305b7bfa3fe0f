"""A million reports through one daemon: memory does not grow.

The journal may lag behind reports that come as fast as they are read; what waits for it is bounded, and not what is
looked for here. So reports come as fast as the journal keeps up, and memory is looked at when nothing waits.
"""

from __future__ import annotations

import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.daemon_process import DaemonProcess
from support.process_figures import open_files, resident_mib
from support.reporting import Reporting

STREAMS = 40
FIRST, ALL = 100_000, 1_000_000
LAG_S = 1.0
REST_S = 2.0


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_memory_after_a_million_reports_is_that_after_the_first_hundred_thousand() -> None:
    with DaemonProcess() as daemon:
        reporting = Reporting(daemon.target, STREAMS, ALL)
        began = time.monotonic()
        reporting.start()
        run_until(daemon, reporting, FIRST)
        first = figures(daemon)
        run_until(daemon, reporting, ALL)
        last = figures(daemon)
        reporting.join()
        took_s = time.monotonic() - began
        print(
            f"{reporting.sent:,} reports in {took_s:.0f} s ({reporting.sent / took_s:.0f} a second); memory "
            f"{first[0]:.1f} MiB after {FIRST:,}, {last[0]:.1f} MiB at the end ({last[0] / first[0] - 1:+.1%})"
        )
        assert reporting.sent == ALL
        assert last[0] <= first[0] * 1.05
        assert last[1] <= first[1]
        assert "Traceback" not in daemon.text()


def run_until(daemon: DaemonProcess, reporting: Reporting, reports: int) -> None:
    """Let the engines report, but no faster than the journal is written; then wait until it all is."""
    reporting.may.set()
    while reporting.sent < reports and not reporting.over:
        if lag_s(daemon) > LAG_S:
            reporting.may.clear()
        else:
            reporting.may.set()
        time.sleep(0.1)
    if not reporting.over:
        reporting.may.clear()
    while lag_s(daemon) > LAG_S:
        time.sleep(0.1)
    time.sleep(REST_S)


def figures(daemon: DaemonProcess) -> tuple[float, int]:
    """Memory in MiB, and open files."""
    return resident_mib(daemon.process.pid), open_files(daemon.process.pid)


def lag_s(daemon: DaemonProcess) -> float:
    """How long the oldest entry has waited that is not on the disk."""
    with urllib.request.urlopen(f"http://{daemon.started()['metrics']}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    (sample,) = next(family.samples for family in families if family.name == "trimtab_journal_lag_seconds")
    return float(sample.value)
