"""Who decides in the shared engine, and how it changes hands between two windows.

| contender | who decides |
|---|---|
| `fixed:K`, `fixed:native`, `fixed:warm` | an operator's pin, through a real `trimtabd` |
| `goodput+profile`, `goodput`, `ucb` | that policy of a real `trimtabd`, the first with a profile fitted on this load |
| `sglang-adaptive`, `sglang-tuned` | SGLang's own rule, with its default table and with one tuned on this load |

No `trimtabd` runs beside SGLang's own rule.

Each policy has a daemon of its own on the same socket, of which one runs at a time. A daemon that comes back goes on
from its journal, and SGLang's rule from the running means of its own last window: nobody starts from nothing but in
his first window.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench_orders import Orders
from controller_process import ControllerProcess
from trimtab.cli.client import Controller, ControllerError, operator
from trimtab.domain import PLAIN_NATIVE, PLAIN_WARM, Mode, speculate
from trimtab.wire import mode_to_wire
from trimtabpb.v1 import admin_pb2, control_pb2

FIXED, DEFAULT_TABLE, TUNED_TABLE, WITH_PROFILE = "fixed:", "sglang-adaptive", "sglang-tuned", "+profile"
PLAIN = {"native": PLAIN_NATIVE, "warm": PLAIN_WARM}
CONTENDERS = (
    "fixed:native", "fixed:warm", "fixed:1", "fixed:2", "fixed:3", "fixed:5", "fixed:7", DEFAULT_TABLE, TUNED_TABLE,
    "goodput+profile", "goodput", "ucb",
)  # fmt: skip
NEED_CALIBRATION = frozenset({TUNED_TABLE, "goodput+profile"})
IN_FORCE_WITHIN_S = 10.0
LOOK_EVERY_S = 0.02
START = "from trimtab.cli.entry import trimtabd; trimtabd()"


class ContenderError(Exception):
    """A contender did not get hold of the engine."""


def mode_of(contender: str) -> Mode:
    """The mode that a `fixed:` contender holds."""
    word = contender.removeprefix(FIXED)
    return PLAIN[word] if word in PLAIN else speculate(int(word))


class Helm:
    """Hands the shared engine from contender to contender.

    Args:
        engine_id: Of the engine.
        folder: With a short path, for the daemons.
        python: Interpreter that has what `trimtabd` needs.
    """

    def __init__(self, engine_id: str, folder: Path, python: str = sys.executable) -> None:
        self._engine_id = engine_id
        self._orders: Orders | None = None
        self._folder = folder
        self._command = [python, "-c", START]
        self._daemon: ControllerProcess | None = None
        self._name = ""
        self.profile: Path | None = None
        self.table: Path | None = None

    @property
    def target(self) -> str:
        """Where the engine looks for its controller."""
        return f"unix:{self._folder}/trimtabd.sock"

    def attach(self, orders: Orders) -> None:
        """The engine is up, and takes orders here."""
        self._orders = orders

    def hello(self) -> control_pb2.Hello:
        """What the engine offers; a daemon must run."""
        assert self._daemon is not None
        with self._daemon.admin() as admin:
            return admin.engine(self._engine_id).hello

    def hand_over(self, contender: str) -> None:
        """The next launch is this contender's; `ContenderError` if the engine does not follow."""
        if contender in (DEFAULT_TABLE, TUNED_TABLE):
            self._stop()
            assert self._orders is not None
            self._orders.use_table(str(self.table) if contender == TUNED_TABLE else "")
        elif contender.startswith(FIXED):
            self._run("pins", "")
            self._pin(mode_of(contender))
        else:
            self._run(contender, self._settings(contender))
            engine = self._wait("a lease", lambda engine: engine.lease.acknowledged)
            if contender.endswith(WITH_PROFILE) and not engine.profile.name:
                raise ContenderError(f"{contender}: the profile is not used: {engine.profile.ignored}")

    def stop(self) -> None:
        """End the daemon, whatever state it is in."""
        daemon, self._daemon, self._name = self._daemon, None, ""
        if daemon is not None:
            daemon.kill()

    def kill(self) -> None:
        """End the daemon as `kill -9` does; pins stay in the engine."""
        assert self._daemon is not None
        self._daemon.kill()

    def hang(self) -> None:
        """Stop the daemon in its tracks; `stop` ends it."""
        assert self._daemon is not None
        self._daemon.pause()

    def _settings(self, contender: str) -> str:
        policy = contender.removesuffix(WITH_PROFILE)
        text = f'[policy]\nname = "{policy}"\n'
        if contender.endswith(WITH_PROFILE):
            text += f'[[profile]]\nfile = "{self.profile}"\n'
        return text

    def _run(self, name: str, settings: str) -> None:
        if name == self._name:
            return
        self._stop()
        self._daemon = ControllerProcess(self._folder, settings, name.replace("+", "-"), self._command)
        self._daemon.start()
        self._name = name
        self._wait("its stream", lambda engine: engine.state == admin_pb2.Engine.STATE_CONNECTED)

    def _stop(self) -> None:
        """Release the engine and end the daemon in good order."""
        daemon, name = self._daemon, self._name
        if daemon is None:
            return
        if name == "pins":
            with daemon.admin() as admin:
                admin.unpin(admin_pb2.UnpinRequest(selector=self._selector(), owner=operator()))
            self._wait("the end of the pin", lambda engine: not engine.in_force.pin_id)
        self._daemon, self._name = None, ""
        daemon.stop()

    def _pin(self, mode: Mode) -> None:
        assert self._daemon is not None
        request = admin_pb2.PinRequest(
            selector=self._selector(), mode=mode_to_wire(mode), owner=operator(), reason="bench"
        )
        with self._daemon.admin() as admin:
            admin.pin(request)
        self._wait(f"the pin to {mode}", lambda engine: bool(engine.pin.id) and engine.in_force.pin_id == engine.pin.id)

    def _wait(self, what: str, wanted: Callable[[admin_pb2.Engine], bool]) -> admin_pb2.Engine:
        assert self._daemon is not None
        deadline, engine = time.monotonic() + IN_FORCE_WITHIN_S, None
        with self._daemon.admin() as admin:
            while time.monotonic() < deadline:
                engine = self._engine(admin)
                if engine is not None and wanted(engine):
                    return engine
                time.sleep(LOOK_EVERY_S)
        said = "it never came" if engine is None else f"{engine.in_force}, refused: {engine.lease.refusal}"
        raise ContenderError(f"{self._name}: the engine waits for {what} after {IN_FORCE_WITHIN_S:g} s; {said}")

    def _engine(self, admin: Controller) -> admin_pb2.Engine | None:
        try:
            return admin.engine(self._engine_id)
        except ControllerError:
            return None

    def _selector(self) -> admin_pb2.Selector:
        return admin_pb2.Selector(engine_ids=[self._engine_id])


def offered(contenders: Sequence[str], modes: Sequence[str]) -> list[str]:
    """The contenders that an engine with these modes can run: a `fixed:` one needs its mode."""
    return [name for name in contenders if not name.startswith(FIXED) or str(mode_of(name)) in modes]
