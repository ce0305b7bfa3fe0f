"""An embedded engine and its link, without a thread and a network: the test is both."""

from __future__ import annotations

from collections.abc import Sequence

from support.hooked_engine import CANDIDATES, EmbeddedEngine
from trimtab_sglang.link import Link
from trimtabpb.v1 import control_pb2 as pb

MS = 1_000_000


class Unlinked:
    """What the engine's link would say, when asked.

    Attributes:
        engine: The engine.
        link: Its link; its thread never starts.
        now_ns: Time of the newest step that `decode` wrote down.
    """

    def __init__(self, candidates: Sequence[int] = CANDIDATES) -> None:
        self.engine = EmbeddedEngine(candidates=candidates)
        plugin = self.engine.plugin
        assert plugin.facts is not None
        self.link = Link(plugin, plugin.facts)
        self.now_ns = 1_000 * MS
        self._seq = 0

    def decode(self, steps: int, step_ms: float, accepted: int) -> list[int]:
        """Decode steps that took so long and accepted so many drafts of each request; the drafts of each."""
        ring = self.engine.plugin.recorder.ring
        for _ in range(steps):
            self.engine.decode()
            self.now_ns += round(step_ms * MS)
            launch, _, reqs, _, *rest = ring.pop()
            ring.append((launch, self.now_ns, reqs, [accepted] * len(reqs), *rest))
        return self.engine.steps_run[-steps:]

    def report(self) -> pb.Report:
        """The next report."""
        self._seq += 1
        self.link.watch()
        return self.link.report(self._seq).report
