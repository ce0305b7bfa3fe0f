"""What happens to a session, and what it asks its host to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab.domain import EngineInfo, Lease, Pin, Report
from trimtab.policies.registry import PolicyFactory
from trimtab.session.profiles import ProfileChoice
from trimtab.session.state import SessionState


@dataclass(frozen=True, slots=True)
class Connected:
    """An engine said Hello on a new stream."""

    info: EngineInfo


@dataclass(frozen=True, slots=True)
class Reported:
    """A report came in."""

    report: Report


@dataclass(frozen=True, slots=True)
class Answered:
    """The engine acknowledged (or refused) the lease with this nonce."""

    nonce: int
    version: int
    accepted: bool
    refusal: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed; the host ticks at least twice a report interval."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """An operator holds the engine in a mode. `duration_s` None: until released."""

    pin: Pin
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Unpinned:
    """An operator gives control back to the policy."""


@dataclass(frozen=True, slots=True)
class PolicySet:
    """Another policy decides from now on; it learns afresh. `parameters` are those that `factory` gives it."""

    name: str
    factory: PolicyFactory
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShadowSet:
    """A policy decides beside the acting one and is not followed; it learns afresh."""

    name: str
    factory: PolicyFactory
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShadowDropped:
    """No policy decides beside the acting one any more."""


@dataclass(frozen=True, slots=True)
class PoliciesSwapped:
    """The shadow acts from now on, and the acting policy goes on as its shadow; both keep what they learnt."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The engine's stream ended."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class ShuttingDown:
    """The controller stops; the engine is to go back to its own policy at once."""

    reason: str = "controller stops"


@dataclass(frozen=True, slots=True)
class Resumed:
    """The session of an earlier run of the controller goes on here; the first event of a new one.

    Attributes:
        state: What that session knew.
        profile: What its policy was told that steps cost.
    """

    state: SessionState
    profile: ProfileChoice = field(default_factory=ProfileChoice)


Event = (
    Connected | Reported | Answered | Ticked | Pinned | Unpinned | PolicySet | ShadowSet | ShadowDropped
    | PoliciesSwapped | Disconnected | ShuttingDown | Resumed
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SendLease:
    """Send this lease. `pin_remaining_s` None: the pin, if there is one, has no deadline."""

    lease: Lease
    nonce: int
    ttl_s: float
    pin_remaining_s: float | None = None


@dataclass(frozen=True, slots=True)
class SendRelease:
    """Tell the engine to go back to its own policy."""

    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth a log line: an event name and its fields."""

    event: str
    fields: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    warning: bool = False


Effect = SendLease | SendRelease | Note
