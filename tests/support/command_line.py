"""The real `trimtab` command, as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRIMTAB = Path(sys.executable).with_name("trimtab")
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """What came of a command line."""

    exit_code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Standard output, read as JSON; the command must have succeeded."""
        assert self.exit_code == 0, self.err
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The one line that a command that failed must leave on stderr."""
        assert self.exit_code == 2, self
        assert self.out == ""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("trimtab: ")
        return self.err.removeprefix("trimtab: ").rstrip()


def trimtab(target: str, *arguments: str, **environment: str) -> Outcome:
    """Run `trimtab` against the controller at this address."""
    done = subprocess.run(
        [str(TRIMTAB), *arguments],
        env={**os.environ, "TRIMTAB_CONTROLLER": target, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
