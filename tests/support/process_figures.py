"""What a process takes of the machine, as the kernel counts it."""

from __future__ import annotations

import os
import time
from pathlib import Path


def open_files(pid: int) -> int:
    """File descriptors that it holds."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    """Threads that it has."""
    return len(os.listdir(f"/proc/{pid}/task"))


def resident_mib(pid: int) -> float:
    """Memory that it really takes, in MiB."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def settled_open_files(pid: int, wanted: int, within_s: float = 10.0) -> int:
    """File descriptors that it holds, once there are no more than `wanted` or the wait is over."""
    deadline = time.monotonic() + within_s
    while open_files(pid) > wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return open_files(pid)
