"""The controller daemon and the command line as processes of their own, as an operator runs them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trimtab.cli.client import Controller, ControllerError, connected
from trimtabpb.v1 import admin_pb2
from waiting import wait_until

BIN = Path(sys.executable).parent
START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_S = 15.0


class ControllerProcess:
    """`trimtabd` on a Unix socket in `folder`, which must have a short path. Entering starts it.

    Args:
        folder: For everything of its own.
        policy: Further lines of its settings.
        name: Of its state, log and settings, where several take turns at one socket.
        command: How it is started, before its options.
    """

    def __init__(
        self, folder: Path, policy: str = "", name: str = "trimtabd", command: Sequence[str] = (str(BIN / "trimtabd"),)
    ) -> None:
        self.socket = folder / "trimtabd.sock"
        self.log_path = folder / f"{name}.log"
        self.state = folder / ("state" if name == "trimtabd" else f"{name}.state")
        self._command = list(command)
        self._config = folder / f"{name}.toml"
        self._config.write_text(f'[server]\nmetrics_listen = "off"\n{policy}')
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where plugin and command line reach it."""
        return f"unix:{self.socket}"

    def __enter__(self) -> ControllerProcess:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        command = [*self._command, "--config", str(self._config), "--socket", str(self.socket)]
        command += ["--state-dir", str(self.state)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        wait_until(f"trimtabd answers ({self.log_path})", self._answers, START_TIMEOUT_S)

    def stop(self) -> None:
        """End it gracefully."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Let it hang, as if it were stuck or its machine were."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def engine(self, engine_id: str) -> admin_pb2.Engine:
        """What the controller knows about this engine."""
        with self.admin() as admin:
            return admin.engine(engine_id)

    def wait_connected(self, engine_id: str) -> admin_pb2.Engine:
        """The engine, once its stream is open."""
        return wait_until(f"{engine_id} connects", lambda: self._connected(engine_id), CONNECT_TIMEOUT_S)

    def run(self, *arguments: str) -> str:
        """Run `trimtab` with these arguments against this daemon; its output."""
        command = [str(BIN / "trimtab"), "--controller", self.address, *arguments]
        done = subprocess.run(
            command, env=_environment(), capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)} failed: {done.stderr}"
        return done.stdout

    @contextmanager
    def admin(self) -> Iterator[Controller]:
        """The daemon's admin service."""
        with connected(self.address, timeout_s=5.0) as admin:
            yield admin

    def _connected(self, engine_id: str) -> admin_pb2.Engine | None:
        with self.admin() as admin:
            engines = {engine.engine_id: engine for engine in admin.engines()}
        engine = engines.get(engine_id)
        return engine if engine is not None and engine.state == admin_pb2.Engine.STATE_CONNECTED else None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"trimtabd ended at start:\n{self.log_path.read_text()}"
        try:
            with self.admin() as admin:
                admin.engines()
        except ControllerError:
            return False
        return True

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_S)


@contextmanager
def short_folder() -> Iterator[Path]:
    """A temporary folder with a short path: a socket's path has 107 bytes at most."""
    folder = Path(tempfile.mkdtemp(prefix="trimtab-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TRIMTAB_")}
