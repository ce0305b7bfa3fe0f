"""The plugin's machine and the controller's, in simulated time, over a link that a script disturbs.

The engine's side is the real plugin in the embedded engine (hooks, mailbox, lease machine, desk, guard, messages);
only its threads and the network are left out. The controller's side is the real `EngineSession` behind the real
translation of messages. `Scene.do` carries out one command of a script and returns what happened meanwhile.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.message_words import mode_named, words_of_controller, words_of_engine
from support.simulated_engine import MS, Engine
from support.simulated_link import Way
from trimtab.domain import Pin
from trimtab.policies.registry import policy_factory
from trimtab.session.engine_session import EngineSession, SessionSettings
from trimtab.session.events import (
    Connected,
    Disconnected,
    Effect,
    Event,
    Note,
    Pinned,
    PolicySet,
    Reported,
    SendLease,
    SendRelease,
    ShuttingDown,
    Ticked,
    Unpinned,
)
from trimtab.wire import lease_message, read_ack, read_hello, read_report, release_message
from trimtab_sglang.lease import Lease, TableEntry
from trimtabpb.v1 import control_pb2 as pb

REPORT_MS, TICK_MS, RETRY_MS = 250, 125, 250
IDLE_MS = 50
# Notes of the session that a script is about; the others only repeat what the trace shows.
NOTED = {"lease_refused", "engine_fuse_blown", "acceptance_forgotten", "engine_unpinned", "policy_unusable"}


class Scene:
    """Both machines, the link between them, and the time that passes for both.

    Attributes:
        now_ms: Simulated time since the scene began.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self.up, self.down = Way(), Way()
        self._said: list[str] = []
        self._step_ms: dict[int, int] = {}
        self._accept = 0.6
        self._policy = "5"
        self._engine: Engine | None = None
        self._session: EngineSession | None = None
        self._hung = False
        self._connected = False
        self._cut = False
        self._running = ""
        self._show_reports = False
        self._due = {"step": 0, "report": 0, "tick": 0, "connect": 0}

    def do(self, line: str) -> list[str]:
        """Carry out one command; what happened since the last one, a line each."""
        name, *words = line.split()
        getattr(self, f"_do_{name}")(*words)
        said, self._said = self._said, []
        return said

    # -- commands --------------------------------------------------------------------------------

    def _do_controller(self, what: str, *words: str) -> None:
        """start [steps=K], kill, stop (in good order), hang, resume."""
        if what == "start":
            self._session = None
            self._break("connection lost")
            self._policy = dict(_pairs(words)).get("steps", self._policy)
            self._session = EngineSession("fixed", self._factory(), SessionSettings())
            self._hung = False
        elif what == "kill":
            self._session = None
            self._break("connection lost")
        elif what == "stop":
            self._tell(ShuttingDown())
            self._deliver_all()
            self._do_controller("kill")
        else:
            self._hung = what == "hang"
            if not self._hung:
                self._deliver()

    def _do_engine(self, what: str, *words: str) -> None:
        """start [on_expiry=...] [accept=P], stop, kill."""
        if what == "start":
            given = dict(_pairs(words))
            self._accept = float(given.get("accept", self._accept))
            boot = self._engine.boot + 1 if self._engine else 1
            self._engine = Engine(boot, lambda: self.now_ms * MS, given.get("on_expiry", ""), self._accept)
            self._due["connect"] = self._due["step"] = self.now_ms
        else:
            if what == "stop" and self._connected:
                self._take_up(pb.EngineMessage(goodbye=pb.Goodbye(reason="engine stops")))
            assert self._engine is not None
            self._engine.embedded.running.clear()
            self._break("connection lost")
            self._due["connect"] = 1 << 60

    def _do_link(self, way: str, *words: str) -> None:
        """cut, mend; up or down with delay=MS drop=N double=N hold=N."""
        if way in ("cut", "mend"):
            self._cut = way == "cut"
            if self._cut:
                self._break("connection lost")
            return
        for name, value in _pairs(words):
            setattr(getattr(self, way), {"delay": "delay_ms"}.get(name, name), int(value))

    def _do_cost(self, *words: str) -> None:
        """Time of a step by its drafts, in ms: STEPS=MS."""
        self._step_ms |= {int(steps): int(ms) for steps, ms in _pairs(words)}

    def _do_load(self, requests: str) -> None:
        """So many requests decode from now on."""
        engine = self._the_engine().embedded
        engine.running.clear()
        if int(requests):
            engine.admit(int(requests))

    def _do_pin(self, mode: str, *words: str) -> None:
        """A mode by its name, and optionally for=SECONDS."""
        seconds = dict(_pairs(words)).get("for")
        self._tell(Pinned(Pin("p1", mode_named(mode), owner="kim"), float(seconds) if seconds else None))

    def _do_unpin(self) -> None:
        self._tell(Unpinned())

    def _do_policy(self, *words: str) -> None:
        """steps=K: the policy decides so from now on."""
        self._policy = dict(_pairs(words))["steps"]
        self._tell(PolicySet("fixed", self._factory()))

    def _do_say(self, *words: str) -> None:
        """A lease past the session: steps=K version=N nonce=N ttl=SECONDS, each as it pleases."""
        given = {"steps": "5", "version": "1", "nonce": "1", "ttl": "2"} | dict(_pairs(words))
        lease = Lease(
            int(given["version"]), (TableEntry(1, mode_named(f"speculate({given['steps']})")),), smoothing=1.0
        )
        message = lease_message(SendLease(lease, int(given["nonce"]), float(given["ttl"])))
        self._say(f"< {words_of_controller(message)}")
        self._say(f"> {words_of_engine(self._the_engine().link.take_lease(message.lease))}")

    def _do_weights(self, version: str) -> None:
        """The engine's weights are updated."""
        self._the_engine().embedded.scheduler.weight_updater.update_weights_from_disk(
            SimpleNamespace(weight_version=version)
        )

    def _do_fuse(self) -> None:
        """An exception of ours on one of the plugin's own threads."""
        self._the_engine().plugin.give_up("here", RuntimeError("boom"))

    def _do_reports(self, switch: str) -> None:
        """on, off: whether reports are part of what is shown."""
        self._show_reports = switch == "on"

    def _do_show(self) -> None:
        """Where both stand."""
        machine = self._the_engine().plugin.machine
        lease = f"lease v{machine.lease.version}" if machine.lease else "no lease"
        pin = f"pin {machine.pin.mode}" if machine.pin else "no pin"
        self._say(f"engine: {lease}, {pin}, last version {machine.last_version}, {self._running}")
        session = self._session
        if session is None:
            self._say("controller: none")
            return
        sent = f"lease v{session.lease.version}" if session.lease else "no lease"
        answer = session.refusal or ("accepted" if session.acknowledged else "no answer")
        refused = ", ".join(f"{reason} {n}" for reason, n in sorted(session.refused.items())) or "nothing"
        self._say(
            f"controller: {'connected' if session.connected else 'not connected'}, {sent}, {answer}, "
            f"engine under {session.in_force.source.value}, refused {refused}"
        )

    def _do_run(self, length: str) -> None:
        """Let time pass: 500ms, 2s."""
        end_ms = self.now_ms + (int(length[:-2]) if length.endswith("ms") else round(float(length[:-1]) * 1000))
        while (at_ms := self._next_ms()) <= end_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self._happen()
        self.now_ms = end_ms

    # -- time ------------------------------------------------------------------------------------

    def _next_ms(self) -> int:
        ways = [] if self._hung else [at for at in (self.up.next_ms(),) if at is not None]
        ways += [at for at in (self.down.next_ms(),) if at is not None]
        return min([*ways, *self._due.values()])

    def _happen(self) -> None:
        """Everything that is due now, always in the same order."""
        self._deliver()
        if self.now_ms >= self._due["tick"]:
            self._due["tick"] = self.now_ms + TICK_MS
            if self._session is not None and not self._hung:
                self._tell(Ticked())
        if self._engine is None:
            self._due["connect"] = self._due["step"] = self._due["report"] = self.now_ms + TICK_MS
            return
        if self.now_ms >= self._due["connect"]:
            self._connect(self._engine)
        if self.now_ms >= self._due["report"]:
            self._due["report"] = self.now_ms + REPORT_MS
            self._report(self._engine)
        if self.now_ms >= self._due["step"]:
            self._step(self._engine)

    def _connect(self, engine: Engine) -> None:
        self._due["connect"] = self.now_ms + RETRY_MS
        if not self._connected and not self._cut and self._session is not None:
            self._connected = True
            self._send_up(engine.begin_stream())

    def _report(self, engine: Engine) -> None:
        refusal = engine.link.watch()
        if self._connected and engine.welcomed:
            if refusal is not None:
                self._send_up(refusal)
            self._send_up(engine.report())

    def _step(self, engine: Engine) -> None:
        if not engine.embedded.running:
            engine.embedded.idle()
            self._due["step"] = self.now_ms + IDLE_MS
            return
        (steps,) = engine.embedded.decode()
        self._due["step"] = self.now_ms + self._step_ms.get(steps, 20)
        running = engine.running()
        if running != self._running:
            self._running = running
            self._say(f"runs {running}")

    # -- the link --------------------------------------------------------------------------------

    def _send_up(self, message: pb.EngineMessage) -> None:
        fate = self.up.send(message.SerializeToString(), self.now_ms)
        if fate:
            self._say(f"> {words_of_engine(message)}: {fate}")

    def _send_down(self, message: pb.ControllerMessage) -> None:
        if not self._connected:
            return
        fate = self.down.send(message.SerializeToString(), self.now_ms)
        if fate:
            self._say(f"< {words_of_controller(message)}: {fate}")

    def _deliver(self) -> None:
        if self._session is not None and not self._hung:
            for raw in self.up.arrived(self.now_ms):
                self._take_up(pb.EngineMessage.FromString(raw))
        for raw in self.down.arrived(self.now_ms):
            self._take_down(pb.ControllerMessage.FromString(raw))

    def _deliver_all(self) -> None:
        """What was said before the stream ended in good order still arrives."""
        while (at_ms := self.down.next_ms()) is not None:
            self.now_ms = max(self.now_ms, at_ms)
            self._deliver()

    def _break(self, reason: str) -> None:
        self.up.clear()
        self.down.clear()
        if self._connected:
            self._connected = False
            if self._engine is not None:
                self._engine.welcomed = False
            self._due["connect"] = self.now_ms + RETRY_MS
            if self._session is not None:
                self._tell(Disconnected(reason))

    def _take_up(self, message: pb.EngineMessage) -> None:
        kind = message.WhichOneof("message")
        if kind != "report" or self._show_reports:
            self._say(f"> {words_of_engine(message)}")
        if kind == "hello":
            self._send_down(pb.ControllerMessage(welcome=pb.Welcome()))
            self._tell(Connected(read_hello(message.hello)[0]))
        elif kind == "report":
            self._tell(Reported(read_report(message.report)[0]))
        elif kind == "ack":
            self._tell(read_ack(message.ack))

    def _take_down(self, message: pb.ControllerMessage) -> None:
        engine, kind = self._the_engine(), message.WhichOneof("message")
        if kind != "welcome":
            self._say(f"< {words_of_controller(message)}")
        if kind == "welcome":
            engine.welcomed = True
        elif kind == "lease":
            self._send_up(engine.link.take_lease(message.lease))
        elif kind == "release":
            engine.link.release(message.release.reason)

    def _tell(self, event: Event) -> None:
        if self._session is not None:
            for effect in self._session.step(event, self.now_ms * MS):
                self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendLease():
                self._send_down(lease_message(effect))
            case SendRelease():
                self._send_down(release_message(effect))
            case Note() if effect.event in NOTED:
                fields = ", ".join(f"{name}={value}" for name, value in effect.fields.items())
                self._say(f"{effect.event}: {fields}")

    def _factory(self) -> Any:
        return policy_factory("fixed", {"steps": self._policy})

    def _the_engine(self) -> Engine:
        assert self._engine is not None, "no engine was started"
        return self._engine

    def _say(self, text: str) -> None:
        self._said.append(f"{self.now_ms / 1000:7.3f} {text}")


def _pairs(words: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (word.partition("=") for word in words)]
