"""Replays a trace in a process of its own and says as JSON what that took.

python tests/support/long_replay.py TRACE POLICY...
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cost:
    """What a replay took. `cpu_s` is of all threads, `steps` of the last policy's, `peak_mb` resident memory."""

    rows: int
    steps: float
    cpu_s: float
    peak_mb: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.cpu_s

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.cpu_s


def replay_cost(trace: Path, *policies: str) -> Cost:
    """What it takes to replay these policies."""
    command = [sys.executable, __file__, str(trace), *policies]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Cost(**json.loads(done.stdout))


def main(path: str, *policies: str) -> None:
    """Replay and print what it took."""
    from trimtab.replay.counterfactual.replay import replay
    from trimtab.replay.simulation.trial import parse_policy
    from trimtab.replay.traces.recording import read_trace

    began = time.process_time()
    with read_trace(Path(path)) as trace:
        result = replay(trace, [parse_policy(policy) for policy in policies])
        rows = trace.rows
    cost = {
        "rows": rows,
        "steps": result.verdicts[-1].steps,
        "cpu_s": time.process_time() - began,
        "peak_mb": _peak_mb(),
    }
    print(json.dumps(cost))


def _peak_mb() -> float:
    """Most resident memory of this program; what `getrusage` says counts the process that it was started from."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
