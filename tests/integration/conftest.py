"""What the tests of whole processes share."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Take Ctrl-C as in a terminal: what a shell starts in the background ignores it, and so does all it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
