"""Somebody who types the commands of a page, in a shell of their own, and reads what comes back."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from support.command_line import trimtab
from support.console_blocks import Command, commands_of, missing_line
from support.living_engine import ABOUT, LivingEngine

OURS = Path(sys.executable).parent
METRICS_PORT = "9464"
TCP_PORT = "50051"
COMMAND_TIMEOUT_S = 90.0
START_WITHIN_S = 30.0
SQLITE = """
import sqlite3, sys
with sqlite3.connect(f"file:{sys.argv[2]}?mode=ro", uri=True, isolation_level=None) as db:
    for row in db.execute(sys.argv[3]):
        print(*row, sep="|")
"""
FILE_BLOCK = re.compile(r"^```\w+ (\S+\.(?:csv|toml|yaml))\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Operator:
    """Runs pages in a folder of its own, against a daemon that the pages start.

    Where a page starts a real server, a living engine with the same id and labels comes instead: `start_server`
    and `run_beside_server` are what a test with the real engine overrides.

    Attributes:
        folder: Where the commands are typed; files of the pages lie there, and NAME.log of what goes on running.
        environment: Of the commands.
        target: Address of the daemon.
        server: What ends when the server is replaced.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TRIMTAB_")},
            "TRIMTAB_CONTROLLER": f"unix:{folder}/run/trimtab/trimtabd.sock",
            "STATE_DIRECTORY": str(folder / "state"),
            "PATH": f"{OURS}:{os.environ['PATH']}",
        }
        self.target = f"unix:{folder}/run/trimtab/trimtabd.sock"
        self.server = ExitStack()
        self._metrics_port = str(free_port())
        self._tcp_port = str(free_port())
        self._daemon = ExitStack()

    def __enter__(self) -> Self:
        (self.folder / "run").mkdir()
        self._offer_sqlite()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()
        self._daemon.close()

    def _offer_sqlite(self) -> None:
        """Where SQLite's command line is not installed, Python's own SQLite stands in for it."""
        if shutil.which("sqlite3") is None:
            stand_in = self.folder / "bin" / "sqlite3"
            stand_in.parent.mkdir()
            stand_in.write_text(f"#!{sys.executable}\n{SQLITE}")
            stand_in.chmod(0o755)
            self.environment["PATH"] += f":{stand_in.parent}"

    def follow(self, page: Path) -> None:
        """Type every command of the page, in order; each must do what the page says."""
        for name, content in FILE_BLOCK.findall(page.read_text()):
            (self.folder / name).write_text(self.adapted(name, content))
        for command in commands_of(page):
            here = [self.adapted("", line) for line in (command.line, *command.expected)]
            self.run(replace(command, line=here[0], expected=tuple(here[1:])))

    def adapted(self, name: str, content: str) -> str:
        """The content of a file on the page, fit for this machine."""
        return content.replace(METRICS_PORT, self._metrics_port).replace(TCP_PORT, self._tcp_port)

    def run(self, command: Command) -> None:
        """Type one command."""
        if "sglang" in command.tags and "background" in command.tags:
            self.server.close()
            self.start_server(command)
        elif "sglang" in command.tags:
            self.run_beside_server(command)
        elif "background" in command.tags:
            self.start_daemon(command.line)
        else:
            self.type(command, self.environment)

    def start_daemon(self, line: str = "trimtabd --metrics-listen off") -> None:
        """Start the daemon and wait until it answers."""
        process = self.start(line, self.environment, "trimtabd")
        self._daemon.callback(ended, process)
        self.environment["TRIMTABD_PID"] = str(process.pid)
        wait_until(lambda: trimtab(self.target, "engines").exit_code == 0, process, self.folder / "trimtabd.log")

    def start_server(self, command: Command) -> None:
        """Start the engine that the page's server would be."""
        settings = settings_of(command.line)
        if settings.get("TRIMTAB_MODE") != "off":
            labels = dict(pair.split("=") for pair in settings.get("TRIMTAB_LABELS", "team=chat").split(","))
            self.start_engine(settings["TRIMTAB_ENGINE_ID"], labels)

    def stop_daemon(self) -> None:
        """End the daemon without a page, as a crash would."""
        self._daemon.close()

    def start_engine(self, engine_id: str, labels: Mapping[str, str], harmed_by: str = "") -> None:
        """Start an engine without a page; the page's own server takes its place."""
        engine = LivingEngine(self.target, engine_id, labels=labels, **ABOUT)
        engine.comes_back, engine.harmed_by = True, harmed_by
        self.server.enter_context(engine)

    def run_beside_server(self, command: Command) -> None:
        """Nothing: what needs SGLang is typed where SGLang is."""

    def start(self, line: str, environment: Mapping[str, str], name: str) -> subprocess.Popen[bytes]:
        """Start a command line that goes on running; its output is in NAME.log."""
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                ["bash", "-c", f"exec env {line}"], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def type(self, command: Command, environment: Mapping[str, str]) -> None:
        """Run the line and compare its end and its output with the page."""
        done = subprocess.run(
            ["bash", "-c", command.line], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_TIMEOUT_S, check=False,
        )  # fmt: skip
        said = f"{command.place}: `{command.line}` ended with {done.returncode} and said:\n{done.stdout}"
        assert done.returncode == command.exit_code, said
        missing = missing_line(command.expected, done.stdout)
        assert missing is None, f"no line {missing!r} in its turn at {said}"


def settings_of(line: str) -> dict[str, str]:
    """The variables that stand before a command."""
    words = shlex.split(line)
    return dict(word.split("=", 1) for word in words[: next(i for i, w in enumerate(words) if "=" not in w)])


def wait_until(
    ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path, within_s: float = START_WITHIN_S
) -> None:
    """Return once `ready()`; the log is the message if the process ends or the time is over."""
    deadline = time.monotonic() + within_s
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"{log.stem} is not there after {within_s:g} s:\n{log.read_text()[-4000:]}")
        time.sleep(0.1)


def ended(process: subprocess.Popen[bytes]) -> None:
    """End the process and its children, whatever state they are in."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
