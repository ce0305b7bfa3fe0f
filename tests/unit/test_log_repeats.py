"""A log line that says the same as one just before is left out, and counted."""

from __future__ import annotations

from typing import Any

import structlog
from structlog.testing import CapturingLogger

from trimtab.server.log import EVERY_ONE, MAX_KINDS, SAME_WITHIN_S, Repeats


class Log:
    """A log whose lines, and whose clock, a test sees."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._written = CapturingLogger()
        self.repeats = Repeats(lambda: self.now_s)
        self.log = structlog.wrap_logger(self._written, processors=[self.repeats, lambda _, __, event: ((), event)])

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [call.kwargs for call in self._written.calls]


def test_the_same_line_again_is_left_out_and_the_next_one_says_how_many_there_were() -> None:
    log = Log()
    for second in range(int(SAME_WITHIN_S) + 1):
        log.now_s = second
        log.log.warning("refused", engine="a", count=1)
    assert log.lines == [
        {"event": "refused", "engine": "a", "count": 1},
        {"event": "refused", "engine": "a", "count": 1, "repeated": 9},
    ]


def test_a_line_that_differs_in_anything_is_another_line() -> None:
    log = Log()
    log.log.warning("refused", engine="a")
    log.log.warning("refused", engine="b")
    log.log.warning("refused", engine="a", why="x")
    assert len(log.lines) == 3


def test_another_port_of_the_same_caller_is_no_news() -> None:
    log = Log()
    for port in (40_001, 40_002):
        log.log.warning("audit", who="nobody", peer=f"ipv4:10.0.0.7:{port}")
    assert [line["peer"] for line in log.lines] == ["ipv4:10.0.0.7:40001"]


def test_what_must_be_complete_is_complete() -> None:
    log = Log()
    for _ in range(3):
        log.log.info("audit", who="kim", **{EVERY_ONE: True})
    assert log.lines == [{"event": "audit", "who": "kim"}] * 3


def test_what_is_remembered_has_an_end() -> None:
    log = Log()
    for number in range(MAX_KINDS * 3):
        log.log.info("seen", number=number)
    assert len(log.lines) == MAX_KINDS * 3
    assert len(log.repeats._written) == MAX_KINDS
