"""A seed that nobody picks: everybody with the same commit gets the same."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

WITHOUT_GIT = "0123456789"


@cache
def commit_seed() -> int:
    """From the commit under test; always the same outside of a repository."""
    try:
        shown = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return int(WITHOUT_GIT)
    return int(shown.stdout[:7], 16)
