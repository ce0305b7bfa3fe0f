"""A session and what is said in it: a policy that decides what a test wants, and events at given times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trimtab.domain import EngineInfo, EngineKey, InForce, Mode, Report, StepRow, modes_of, speculate
from trimtab.errors import PolicyError
from trimtab.policies.contract import BandDecision, Decision, PolicyContext, probability_in
from trimtab.session.engine_session import EngineSession, SessionSettings
from trimtab.session.events import Connected, Effect, Event, Note, Reported, SendLease

MS = 1_000_000


def one_mode(mode: Mode, **fields: Any) -> Decision:
    """A decision for one mode at every batch size."""
    return Decision((BandDecision(1, mode, "exploit"),), **fields)


class TestPolicy:
    """Decides what it is told to."""

    __test__ = False
    name: ClassVar[str] = "told"
    summary: ClassVar[str] = "what the test wants"

    def __init__(self, context: PolicyContext, decision: Decision) -> None:
        self.context = context
        self.decision = decision
        self.learned: list[StepRow] = []

    def learn(self, rows: Sequence[StepRow]) -> None:
        """Keep the rows."""
        self.learned += rows

    def choose(self) -> Decision:
        """The decision."""
        return self.decision

    def probability_of(self, batch_size: int, mode: Mode) -> float:
        """Of the decision."""
        return probability_in(self.decision, batch_size, mode)

    def forget(self) -> None:
        """Forget the rows."""
        self.learned.clear()

    def snapshot(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Nothing."""


def engine(**fields: Any) -> EngineInfo:
    """An engine that acts on 0, 1 and 3 steps."""
    return EngineInfo(
        **{
            "key": EngineKey("e1"),
            "boot_id": "boot-1",
            "modes": modes_of([0, 1, 3]),
            "graph_batch_sizes": (1, 2, 4, 8),
            "max_running_requests": 8,
            "initial_steps": 3,
            **fields,
        }
    )


class Talk:
    """One session under a policy that decides what the test wants.

    Attributes:
        session: The session.
        policies: Every policy that it made, the newest last.
        notes: Names of all notes so far, with their fields.
    """

    def __init__(self, settings: SessionSettings | None = None) -> None:
        self.policies: list[TestPolicy] = []
        self.wanted = one_mode(speculate(3))
        self.unusable = ""
        self.notes: list[Note] = []
        self.session = EngineSession("told", self.make_policy, settings)
        self._seq = 0

    def make_policy(self, context: PolicyContext) -> TestPolicy:
        """The policy that the session asks for."""
        if self.unusable:
            raise PolicyError(self.unusable)
        self.policies.append(TestPolicy(context, self.wanted))
        return self.policies[-1]

    def decide(self, decision: Decision) -> None:
        """The policy decides so from now on."""
        self.wanted = self.policies[-1].decision = decision

    def at(self, ms: float, event: Event) -> list[Effect]:
        """What the session asks for when this happens then; notes are kept apart."""
        effects = self.session.step(event, round(ms * MS))
        self.notes += [effect for effect in effects if isinstance(effect, Note)]
        return [effect for effect in effects if not isinstance(effect, Note)]

    def lease_at(self, ms: float, event: Event) -> SendLease:
        """The one lease that it asks for."""
        (effect,) = self.at(ms, event)
        assert isinstance(effect, SendLease)
        return effect

    def connect(self, ms: float = 0, **fields: Any) -> list[Effect]:
        """The engine says Hello."""
        self._seq = 0
        return self.at(ms, Connected(engine(**fields)))

    def report(self, ms: float, **fields: Any) -> list[Effect]:
        """The next report comes in."""
        self._seq = fields.pop("seq", self._seq + 1)
        told: dict[str, Any] = {"now_ns": round(ms * MS), "in_force": InForce(), **fields}
        return self.at(ms, Reported(Report(seq=self._seq, **told)))

    @property
    def noted(self) -> list[str]:
        """Names of all notes so far."""
        return [note.event for note in self.notes]
