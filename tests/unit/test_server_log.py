"""The daemon's log may get lost, and nothing else with it."""

from __future__ import annotations

import io
import os
from contextlib import suppress

import pytest

from trimtab.server.log import Unfailing


def test_what_can_be_written_is_written() -> None:
    stream = io.StringIO()
    log = Unfailing(stream)
    assert log.write("engine_connected\n") == 17
    log.flush()
    assert stream.getvalue() == "engine_connected\n"


def test_a_full_disk_is_no_error() -> None:
    full = open("/dev/full", "w")  # noqa: SIM115
    with pytest.raises(OSError, match="No space left"):
        os.write(full.fileno(), b"x")
    log = Unfailing(full)
    for _ in range(3):
        assert log.write("x" * 100_000) == 100_000
        log.flush()
    with suppress(OSError):
        full.close()
