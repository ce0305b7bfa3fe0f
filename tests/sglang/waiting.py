"""Waits for something to become true, and says what did not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def wait_until(what: str, look: Callable[[], Value | None], timeout_s: float, poll_s: float = 0.05) -> Value:
    """The first truthy value that `look` returns; `AssertionError` naming `what` if none comes in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:g} s")
        time.sleep(poll_s)
    return value
