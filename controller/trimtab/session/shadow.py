"""A policy that decides beside the acting one and is not followed: what would it have done?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trimtab.domain import Mode, StepFlag, StepRow, TableEntry
from trimtab.errors import PolicyError
from trimtab.policies.bands import band_of
from trimtab.policies.contract import Decision, Policy
from trimtab.policies.registry import PolicyFactory
from trimtab.session.events import Note
from trimtab.session.state import Learned, PolicyChoice, ShadowState

# A policy that wavers would fill the log.
NOTE_EVERY_NS = 10_000_000_000

# A policy for the engine as it is now, that begins in this mode.
Make = Callable[[PolicyFactory, Mode | None], Policy | None]


class Shadow:
    """Learns from what the acting policy makes the engine do, and counts how often both agree. Owned by a session.

    Attributes:
        choice: The policy by name.
        factory: Makes it.
        policy: The policy itself; None where it cannot decide for the engine, for the reason in `unusable`.
        incumbent: The mode in force when it was created, or None.
        waiting: What it learned under a controller that is gone, until the engine is back.
        decision: Its last decision, or None.
        steps: Decode steps since it began.
        agreed_steps: Those of them for which it chose the mode that the acting policy chose.
    """

    def __init__(
        self,
        choice: PolicyChoice,
        factory: PolicyFactory,
        policy: Policy | None = None,
        incumbent: Mode | None = None,
        waiting: Learned | None = None,
    ) -> None:
        self.choice = choice
        self.factory = factory
        self.policy = policy
        self.incumbent = incumbent
        self.waiting = waiting
        self.decision: Decision | None = None
        self.steps = 0
        self.agreed_steps = 0
        self.unusable = ""
        self._decided = False
        self._noted: tuple[TableEntry, ...] = ()
        self._noted_at_ns = -NOTE_EVERY_NS
        self._changes = 0

    @property
    def name(self) -> str:
        """The policy's name."""
        return self.choice.name

    def begin(self, make: Make, mode: Mode | None, keep: bool = False) -> list[Note]:
        """Start the policy for the engine as it is now; with `keep` all that was learnt but acceptance stays."""
        learned, self.decision, self._decided = self.policy, None, False
        notes = self._make(make, mode)
        if keep and learned is not None and self.policy is not None:
            try:
                self.policy.restore(learned.snapshot())
                self.policy.forget()
            except PolicyError:
                return self._make(make, mode)
        return notes

    def observe(self, rows: Sequence[StepRow], acting: Decision | None, now_ns: int) -> list[Note]:
        """Compare what both would have run, learn from the rows, and decide anew."""
        if self.policy is None:
            return []
        if acting is not None and self.decision is not None:
            self._compare(rows, acting, self.decision)
        self.policy.learn(rows)
        self.decision, self._decided = self.policy.choose(), True
        return self._say(self.decision, now_ns)

    # -- its state -------------------------------------------------------------------------------

    def state(self) -> ShadowState:
        """What decides how it goes on, as plain values."""
        learned = Learned(self.incumbent, self.policy.snapshot()) if self.policy is not None else self.waiting
        return ShadowState(self.choice, learned, self._decided, self.unusable, self.steps, self.agreed_steps)

    def resume(self, state: ShadowState) -> None:
        """Count on from a state; what it learned waits until `remember`."""
        self.waiting, self._decided, self.unusable = state.learned, state.decided, state.unusable
        self.steps, self.agreed_steps = state.steps, state.agreed_steps

    def remember(self, make: Make) -> None:
        """Go on from what was learned; if that cannot be, the policy has to `begin`."""
        learned, self.waiting = self.waiting, None
        if learned is None:
            return
        self._make(make, learned.incumbent)
        try:
            if self.policy is not None:
                self.policy.restore(learned.snapshot)
        except PolicyError:
            self.policy, self._decided = None, False
            return
        self.decision = self.policy.choose() if self.policy is not None and self._decided else None

    # -- inside ----------------------------------------------------------------------------------

    def _make(self, make: Make, mode: Mode | None) -> list[Note]:
        self.policy, self.incumbent, self.waiting, self.unusable = None, mode, None, ""
        try:
            self.policy = make(self.factory, mode)
        except PolicyError as error:
            self.unusable = str(error)
            return [Note("shadow_unusable", {"policy": self.name, "why": self.unusable}, warning=True)]
        return []

    def _compare(self, rows: Sequence[StepRow], acting: Decision, own: Decision) -> None:
        theirs, mine = _Table(acting), _Table(own)
        for row in rows:
            if not row.flags & (StepFlag.WARM_UP | StepFlag.SWEEP):
                self.steps += 1
                self.agreed_steps += theirs.mode_at(row.batch_size) == mine.mode_at(row.batch_size)

    def _say(self, decision: Decision, now_ns: int) -> list[Note]:
        """A note when the table changed, so often at most."""
        table = decision.table
        self._changes += [e.mode for e in table] != [e.mode for e in self._noted]
        if not self._changes or now_ns - self._noted_at_ns < NOTE_EVERY_NS:
            return []
        words = ", ".join(f"{entry.min_batch_size}: {entry.mode}" for entry in table)
        note = Note("shadow_decision", {"policy": self.name, "table": words, "changes": self._changes})
        self._noted, self._noted_at_ns, self._changes = table, now_ns, 0
        return [note]


class _Table:
    """The first mode of every band, to be looked up by batch size."""

    def __init__(self, decision: Decision) -> None:
        self._edges = [band.min_batch_size for band in decision.bands]
        self._modes = [band.mode for band in decision.bands]

    def mode_at(self, batch_size: int) -> Mode:
        return self._modes[band_of(self._edges, batch_size)]
