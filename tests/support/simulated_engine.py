"""One run of an engine's process in simulated time: the real plugin, without its threads and its network."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import patch

from support.hooked_engine import DrawnWorld, EmbeddedEngine
from trimtab_sglang import hooks
from trimtab_sglang.link import Link
from trimtab_sglang.settings import read_settings
from trimtabpb.v1 import control_pb2 as pb

MS = 1_000_000
REQUESTS = 4


class Engine:
    """The process.

    Attributes:
        embedded: The engine.
        plugin: Its plugin.
        link: The plugin's link; its thread never starts.
        welcomed: Whether the controller said Welcome on this stream.
    """

    def __init__(self, boot: int, clock_ns: Callable[[], int], on_expiry: str, accept: float) -> None:
        environ = {
            "TRIMTAB_CONTROLLER": "unix:/nowhere",
            "TRIMTAB_ENGINE_ID": "e",
            "TRIMTAB_ON_EXPIRY": on_expiry,
        }
        with patch.object(hooks, "time", SimpleNamespace(monotonic_ns=clock_ns)):
            self.embedded = EmbeddedEngine(read_settings(environ), DrawnWorld(boot, accept))
        plugin = self.plugin = self.embedded.plugin
        assert plugin.facts is not None
        self.link = Link(plugin, plugin.facts, clock_ns)
        self.boot = boot
        self.welcomed = False
        self.seq = 0
        self.embedded.admit(REQUESTS)

    def begin_stream(self) -> pb.EngineMessage:
        """What the plugin does first on a stream."""
        self.link._desk.begin()
        self.welcomed, self.seq = False, 0
        hello = self.link.hello()
        hello.hello.boot_id = f"boot-{self.boot}"
        return hello

    def report(self) -> pb.EngineMessage:
        """The next report."""
        self.seq += 1
        return self.link.report(self.seq)

    def running(self) -> str:
        """What the newest step ran, and who decided."""
        in_force = self.link.in_force()
        source = pb.InForce.Source.Name(in_force.source).removeprefix("SOURCE_").lower()
        who = "expiry" if in_force.after_expiry else source
        version = f" v{in_force.lease_version}" if source == "lease" else ""
        return f"{self.embedded.steps_run[-1]} steps, {who}{version}"
