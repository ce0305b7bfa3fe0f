"""A million reports through one daemon: memory does not grow."""

from __future__ import annotations

import time

import pytest

from support.daemon_process import DaemonProcess
from support.process_figures import open_files, resident_mib, threads
from support.reporting import Reporting

STREAMS = 40
FIRST, ALL = 100_000, 1_000_000


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_memory_after_a_million_reports_is_that_after_the_first_hundred_thousand() -> None:
    with DaemonProcess() as daemon:
        pid = daemon.process.pid
        reporting = Reporting(daemon.target, STREAMS, ALL)
        began = time.monotonic()
        reporting.start()
        while reporting.sent < FIRST:
            time.sleep(0.2)
        first = resident_mib(pid), open_files(pid), threads(pid)
        reporting.join()
        took_s = time.monotonic() - began
        last = resident_mib(pid), open_files(pid), threads(pid)
        print(
            f"{reporting.sent:,} reports in {took_s:.0f} s ({reporting.sent / took_s:.0f} a second); memory "
            f"{first[0]:.1f} MiB after {FIRST:,}, {last[0]:.1f} MiB at the end ({last[0] / first[0] - 1:+.1%})"
        )
        assert reporting.sent == ALL
        assert last[0] <= first[0] * 1.05
        assert last[1] <= first[1]
        assert "Traceback" not in daemon.text()
