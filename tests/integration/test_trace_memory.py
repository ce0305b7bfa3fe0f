"""Making and summing up long traces takes memory that does not grow with them, and time that grows no faster."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.command_line import TRIMTAB
from support.long_trace import write_step_log, write_trace

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SHORT, LONG = 1_000_000, 4_000_000
LIMIT_MB = 1024
# Of four times the rows: memory for what is counted by batch size, and room for a machine that does other things.
MORE_MB, MORE_TIME = 150, 1.5


@dataclass(frozen=True)
class Cost:
    """What a process took: processor time, and memory at its peak."""

    cpu_s: float
    peak_mb: float


def cost_of(*arguments: object) -> Cost:
    process = subprocess.Popen([str(TRIMTAB), *map(str, arguments)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


@pytest.mark.parametrize(
    ("write", "name"), [(write_step_log, "steps.csv"), (write_trace, "full.parquet")], ids=["step_log", "full_trace"]
)
def test_four_times_the_rows_take_four_times_as_long_and_no_more_memory(
    tmp_path: Path, write: Callable[[Path, int], None], name: str
) -> None:
    found = {}
    for rows in (SHORT, LONG):
        write(tmp_path / name, rows)
        out = tmp_path / "out.parquet"
        found[rows] = cost_of("trace", "import", tmp_path / name, "-o", out), cost_of("trace", "info", out)
    start = cost_of("--version").cpu_s
    for short, long in zip(found[SHORT], found[LONG], strict=True):
        assert long.peak_mb < LIMIT_MB
        assert long.peak_mb - short.peak_mb < MORE_MB
        assert (long.cpu_s - start) / (short.cpu_s - start) < LONG / SHORT * MORE_TIME
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 < LIMIT_MB, "the generator itself stays small"
