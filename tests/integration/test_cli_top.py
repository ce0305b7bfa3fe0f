"""`trimtab top` against a real `trimtabd`: single frames, streams, and the live view in a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import TRIMTAB, trimtab
from support.daemon_process import DaemonProcess
from support.living_engine import LivingEngine

WITHIN_S = 20.0
FRAME_WITHOUT_TROUBLE = r"(?s)q leaves(?:(?!no controller).)*?q leaves"
CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with DaemonProcess() as daemon, LivingEngine(daemon.target, "llama-a"):
        yield daemon.target


class Terminal:
    """`trimtab top` in a terminal of its own, 120 columns wide."""

    def __init__(self, target: str) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (30, 120))
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.process = subprocess.Popen(
            [str(TRIMTAB), "top", "--controller", target], stdin=theirs, stdout=theirs, stderr=theirs,
            env={**os.environ, "TERM": "xterm"}, start_new_session=True, preexec_fn=_own_terminal,
        )  # fmt: skip
        self._text = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def until(self, pattern: str) -> str:
        """Everything since the last call, up to and with this pattern."""
        deadline = time.monotonic() + WITHIN_S
        while not (found := re.search(pattern, self._text)):
            assert time.monotonic() < deadline, f"no {pattern!r} on the screen:\n{self._text}"
            ready, _, _ = select.select([self._ours], [], [], 0.2)
            if ready:
                self._text += CONTROL_SEQUENCE.sub("", os.read(self._ours, 65536).decode(errors="replace"))
        shown, self._text = self._text[: found.end()], self._text[found.end() :]
        return shown

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def exit_code(self) -> int:
        return self.process.wait(WITHIN_S)

    def settings(self) -> object:
        return termios.tcgetattr(self._theirs)


def _own_terminal() -> None:
    """Make standard input the process's controlling terminal, so that Ctrl-C reaches it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize("arguments", [["top", "--once"], ["top"]])
def test_without_a_terminal_or_with_once_a_single_frame_is_printed(target: str, arguments: list[str]) -> None:
    done = trimtab(target, *arguments)
    assert (done.exit_code, done.err) == (0, "")
    title, blank, header, row = done.out.splitlines()
    assert re.fullmatch(rf"trimtab  {re.escape(target)}  1 engine  [\d,]+ tokens/s  \d\d:\d\d:\d\d", title)
    assert blank == ""
    assert header.split()[:6] == ["ENGINE", "STATE", "MODE", "BY", "BATCH", "TOKENS/S"]
    assert re.match(r"llama-a  connected  (speculate\(\d\)|plain_warm) +lease +4\.0 ", row)


def test_a_single_frame_as_json_is_the_list_of_engines(target: str) -> None:
    (engine,) = trimtab(target, "top", "--once", "--json").data
    assert (engine["engine_id"], engine["decided_by"]) == ("llama-a", "lease")


def test_as_json_there_is_a_line_for_every_update(target: str) -> None:
    command = [str(TRIMTAB), "top", "--json", "--controller", target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        updates = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN_S) == 130
    assert {update["engine_id"] for update in updates} == {"llama-a"}


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_the_live_view_refreshes_until_q_or_ctrl_c_and_leaves_the_terminal_as_it_was(target: str, key: bytes) -> None:
    with Terminal(target) as terminal:
        terminal.until("q leaves")
        terminal.until(r"llama-a +connected")
        terminal.until(r"llama-a +connected")
        terminal.press(b"x")
        terminal.until(r"llama-a +connected")
        assert terminal.settings() != terminal.before
        terminal.press(key)
        assert terminal.exit_code() == 0
        assert terminal.settings() == terminal.before


def test_the_live_view_says_when_the_controller_is_gone_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    with DaemonProcess() as first:
        arguments = ("--socket", str(first.socket))
        with Terminal(first.target) as terminal:
            terminal.until("No engine has connected yet")
            first.process.kill()
            terminal.until("no controller answers at")
            with DaemonProcess(*arguments, directory=tmp_path, own_socket=True) as second:
                second.started()
                terminal.until(FRAME_WITHOUT_TROUBLE)
                with LivingEngine(first.target, "llama-b"):
                    terminal.until(r"llama-b +connected")
            terminal.press(b"q")
            assert terminal.exit_code() == 0


def test_the_live_view_of_a_controller_that_never_answered_is_one_line(tmp_path: Path) -> None:
    with Terminal(f"unix:{tmp_path}/none.sock") as terminal:
        assert terminal.until("TRIMTAB_CONTROLLER\r\n").startswith("trimtab: no controller answers at unix:")
        assert terminal.exit_code() == 2
