"""The real `trimtabd`, as a process of its own, for tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import grpc

from trimtabpb.v1 import admin_pb2_grpc

START_WITHIN_S = 30.0
TRIMTABD = Path(sys.executable).with_name("trimtabd")


class DaemonProcess:
    """Starts `trimtabd` on a socket in a short-lived directory, with its journal there; its log is read as JSON.

    Args:
        arguments: More of its command line.
        directory: Where socket and log are; a new one if not given, which then goes with the process.
        own_socket: Leave the choice of the socket to the arguments.
        environ: More environment variables.
    """

    def __init__(
        self,
        *arguments: str,
        directory: Path | None = None,
        own_socket: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._made = None if directory else tempfile.mkdtemp(prefix="trimtab-")
        self.directory = directory or Path(str(self._made))
        self.socket = self.directory / "run" / "trimtabd.sock"
        self.log_path = self.directory / f"trimtabd-{time.monotonic_ns()}.log"
        self.state = self.directory / "state"
        command = [str(TRIMTABD), "--log-json", *arguments]
        if "--state-dir" not in arguments:
            command += ["--state-dir", str(self.state)]
        if not own_socket:
            command += ["--socket", str(self.socket)]
        if "--metrics-listen" not in arguments:
            command += ["--metrics-listen", "127.0.0.1:0"]
        self._log = self.log_path.open("wb")
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=self._log, env={**os.environ, **(environ or {})}
        )
        self._channel: grpc.Channel | None = None

    def __enter__(self) -> Self:
        self.started()
        return self

    def __exit__(self, *_: object) -> None:
        if self._channel is not None:
            self._channel.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()
        if self._made:
            shutil.rmtree(self._made, ignore_errors=True)

    @property
    def target(self) -> str:
        """Its address as gRPC clients write it."""
        return f"unix:{self.socket}"

    @property
    def admin(self) -> admin_pb2_grpc.AdminServiceStub:
        """Its admin service."""
        return admin_pb2_grpc.AdminServiceStub(self.channel)

    @property
    def channel(self) -> grpc.Channel:
        """A channel to it, made once."""
        if self._channel is None:
            self._channel = grpc.insecure_channel(self.target)
        return self._channel

    def log(self) -> list[dict[str, Any]]:
        """Everything that it logged so far."""
        lines = self.log_path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def logged(self, event: str, within_s: float = 5.0) -> dict[str, Any]:
        """The first log line of this event, waited for."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            for line in self.log():
                if line["event"] == event:
                    return line
            assert self.process.poll() is None or any(x["event"] == event for x in self.log()), self.text()
            time.sleep(0.02)
        raise AssertionError(f"no {event} in the log within {within_s} s:\n{self.text()}")

    def started(self) -> dict[str, Any]:
        """The line that says where it listens."""
        return self.logged("daemon_started", START_WITHIN_S)

    def text(self) -> str:
        """Its stderr so far."""
        return self.log_path.read_text()

    def stop(self, number: int = signal.SIGTERM, within_s: float = 5.0) -> tuple[int, float]:
        """Send a signal and wait for the end: exit status and seconds it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        status = self.process.wait(within_s)
        return status, time.monotonic() - began


def run_trimtabd(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A `trimtabd` that ends by itself, without a journal: its exit status and what it wrote."""
    quiet = () if "--state-dir" in arguments else ("--state-dir", "off")
    return subprocess.run(
        [str(TRIMTABD), *quiet, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environ},
        check=False,
    )
