"""A real browser without a window: opens a page and hands back what it made of it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=5000",
)  # fmt: skip
TIMEOUT_S = 100


def browser() -> str:
    """The browser's program; without one the test fails and says what to do."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail("there is no chromium: `make browser` as root installs it on Debian, else install it by hand")
    return found


def dom_of(page: Path) -> str:
    """The page after its scripts have run, as HTML."""
    return _run(page, "--dump-dom").decode()


def picture_of(page: Path, picture: Path, width: int = 1200, height: int = 1800, dark: bool = False) -> Path:
    """The page as a PNG."""
    scheme = "--blink-settings=preferredColorScheme=0" if dark else "--blink-settings=preferredColorScheme=1"
    _run(page, f"--screenshot={picture}", f"--window-size={width},{height}", scheme)
    return picture


def _run(page: Path, *flags: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="trimtab-browser-", ignore_cleanup_errors=True) as profile:
        command = [browser(), *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return done.stdout
