"""What a session knows, as plain values: enough to go on after a restart of the controller, or to replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trimtab.domain import EngineInfo, InForce, Lease, Mode, Pin, Report
from trimtab.session.agreement import Disagreement


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy by name, and its parameters as they were given."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Learned:
    """A policy's state. `incumbent`: the mode in force when the policy was created, or None."""

    incumbent: Mode | None
    snapshot: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ShadowState:
    """A policy on trial that is not followed.

    Attributes:
        learned: What it learned; None where it cannot decide for the engine, or has not begun.
        decided: Whether it has decided since it began.
        unusable: Why it cannot decide for the engine; empty if it can.
    """

    policy: PolicyChoice
    learned: Learned | None = None
    decided: bool = False
    unusable: str = ""
    steps: int = 0
    agreed_steps: int = 0


@dataclass(frozen=True, slots=True)
class StandingPin:
    """A pin as ordered, with its deadline on the controller's clock (None: until released)."""

    pin: Pin
    since_ns: int
    deadline_ns: int | None = None

    def remaining_s(self, now_ns: int) -> float | None:
        """Seconds left, at least 0; None without a deadline."""
        return None if self.deadline_ns is None else max(0.0, (self.deadline_ns - now_ns) / 1e9)


@dataclass(frozen=True, slots=True)
class SessionState:
    """Everything that decides what a session says next. Fields in `_ns` are on the controller's monotonic clock.

    The fields are those of `EngineSession`, and besides:

    Attributes:
        configured: The policy that the session began with. One that differs from it was ordered by an operator.
        policy: The policy that decides.
        learned: What that policy learned; None where no policy can decide for the engine.
        report: The last report, without its rows.
        version: The highest lease version that was used.
        released_pin: Id of the last pin that was let go; empty if there was none.
        shadow: The policy that decides beside; None without one.
        returning: Whether the controller restarted and the engine has not been back since.
    """

    configured: PolicyChoice
    policy: PolicyChoice
    info: EngineInfo | None = None
    learned: Learned | None = None
    connected: bool = False
    connected_at_ns: int = 0
    last_message_ns: int = 0
    in_force: InForce = field(default_factory=InForce)
    decisions: int = 0
    pin: StandingPin | None = None
    released_pin: str = ""
    lease: Lease | None = None
    lease_since_ns: int = 0
    acknowledged: bool = False
    refusal: str = ""
    refused: Mapping[str, int] = field(default_factory=dict)
    report: Report | None = None
    reported_at_ns: int = 0
    version: int = 0
    nonce: int = 0
    sent_at_ns: int = 0
    stopping: bool = False
    returning: bool = False
    divergence: Disagreement | None = None
    shadow: ShadowState | None = None

    @property
    def ordered(self) -> bool:
        """Whether an operator chose the policy."""
        return self.policy != self.configured

    def pinned(self, pin: Pin, now_ns: int, duration_s: float | None) -> SessionState:
        """This state after the order to hold a mode."""
        return replace(self, pin=StandingPin(pin, now_ns, deadline_ns(duration_s, now_ns)))

    def unpinned(self) -> SessionState:
        """This state after the order to release the pin."""
        return replace(self, pin=None, released_pin=self.pin.pin.id) if self.pin else self

    def under(self, policy: PolicyChoice) -> SessionState:
        """This state after the order of another policy, which begins afresh."""
        return replace(self, policy=policy, learned=None)

    def shadowed(self, policy: PolicyChoice | None) -> SessionState:
        """This state after the order of a policy beside, which begins afresh; None: of none any more."""
        return replace(self, shadow=None if policy is None else ShadowState(policy))

    def swapped(self) -> SessionState:
        """This state after the order that the shadow acts, and the acting policy is its shadow."""
        other = self.shadow
        if other is None or other.unusable:
            return self
        return replace(self, policy=other.policy, learned=other.learned, shadow=ShadowState(self.policy, self.learned))

    def after_restart(self, shift_ns: int = 0, unknown_leases: int = 0) -> SessionState:
        """This state as a new run of the controller takes it over: no stream is open.

        Args:
            shift_ns: What the new run's clock shows more than the old one's at the same moment.
            unknown_leases: Leases that may have been sent after this state was written down.
        """
        pin = self.pin
        if pin is not None:
            deadline = None if pin.deadline_ns is None else pin.deadline_ns + shift_ns
            pin = StandingPin(pin.pin, pin.since_ns + shift_ns, deadline)
        return replace(
            self,
            connected=False,
            stopping=False,
            returning=True,
            pin=pin,
            connected_at_ns=self.connected_at_ns + shift_ns,
            last_message_ns=self.last_message_ns + shift_ns,
            lease_since_ns=self.lease_since_ns + shift_ns,
            reported_at_ns=self.reported_at_ns + shift_ns,
            sent_at_ns=self.sent_at_ns + shift_ns,
            version=self.version + unknown_leases,
        )


def deadline_ns(duration_s: float | None, now_ns: int) -> int | None:
    """When what begins now is over; None: never."""
    return None if duration_s is None else now_ns + round(duration_s * 1e9)
