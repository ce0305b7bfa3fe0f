"""What the entries of the journal hold, and how it is read back.

session               JSON of `SessionContent`
resumed, checkpoint   JSON of `StateContent`
hello, report, ack    the message of that name, as protobuf
pinned                JSON of `PinContent`
policy_set, shadow_set          JSON of `PolicyChoice`
disconnect, stopping, release   JSON of `ReasonContent`
tick, unpinned, shadow_dropped, policies_swapped   nothing
lease                 the `Lease` that was sent, as protobuf
decision              JSON of `DecisionContent`: the explanation of a lease with a new version
note, failed, admin   JSON of `NoteContent`, `FailedContent`, `AdminContent`
standing              the standing orders and the canary of a `Controller`, as protobuf
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from google.protobuf.message import DecodeError, Message

from trimtab.domain import Lease, Pin, Report
from trimtab.errors import DataError, TrimtabError
from trimtab.policies.contract import BandDecision
from trimtab.policies.registry import policy_factory
from trimtab.profile_file import ProfileContent, keyed_profile
from trimtab.session.engine_session import EngineSession, SessionSettings
from trimtab.session.events import (
    Connected,
    Disconnected,
    Event,
    Pinned,
    PoliciesSwapped,
    PolicySet,
    Reported,
    Resumed,
    SendLease,
    ShadowDropped,
    ShadowSet,
    ShuttingDown,
    Ticked,
    Unpinned,
)
from trimtab.session.profiles import KeyedProfile, ProfileChoice
from trimtab.session.state import PolicyChoice, SessionState
from trimtab.store.entries import Entry, Kind
from trimtab.wire import read_ack, read_hello, read_lease, read_report
from trimtabpb.v1 import control_pb2 as pb

Content = TypeVar("Content")
AnyMessage = TypeVar("AnyMessage", bound=Message)
# An entry before it has a number: its kind and payload.
Record = tuple[Kind, bytes]


class SessionContent(msgspec.Struct, frozen=True):
    """How a session began; the fields are those of `SessionSettings`, profiles by their ids."""

    policy: PolicyChoice
    report_interval_s: float
    lease_ttl_s: float
    seed: int
    stall_after_s: float
    profiles: tuple[str, ...] = ()


class StateContent(msgspec.Struct, frozen=True):
    """What a session knows, and its host of the engine.

    Attributes:
        session: How it began in this run.
        profile: Id of the profile that its policy was told; empty without one.
        profile_name: That profile's name; `profile_ignored` says why there is none.
        hello: The engine's last Hello, as protobuf.
        refused_input: What the host refused of this engine, by reason.
    """

    session: SessionContent
    state: SessionState
    profile: str = ""
    profile_name: str = ""
    profile_ignored: str = ""
    hello: bytes = b""
    refused_input: dict[str, int] = {}


class PinContent(msgspec.Struct, frozen=True):
    """An order to hold a mode; `duration_s` null: until released."""

    pin: Pin
    duration_s: float | None = None


class ReasonContent(msgspec.Struct, frozen=True):
    """Why something ended."""

    reason: str


class DecisionContent(msgspec.Struct, frozen=True):
    """The decision behind a lease; under a pin, what the policy would do. Fields as in `Decision`."""

    version: int
    policy: str
    bands: tuple[BandDecision, ...]
    smoothing: float
    hysteresis: float
    min_dwell_steps: int
    exploration_seed: int
    exploration_dwell_steps: int
    alarms: tuple[str, ...]


class NoteContent(msgspec.Struct, frozen=True):
    """Something that the daemon logged of this engine."""

    event: str
    fields: Mapping[str, Any]
    warning: bool = False


class FailedContent(msgspec.Struct, frozen=True):
    """A session that failed on the event before: the kind of error, and its words."""

    error: str
    words: str = ""


class AdminContent(msgspec.Struct, frozen=True):
    """What an operator asked for.

    Attributes:
        call: Name of the call: Pin, Unpin, SetPolicy, PromotePolicy or WithdrawPolicy.
        request: Its message as JSON.
        engines: Engines that it changed.
        refused: Why nothing was done; empty if it was.
        who: By what the caller is known (`unix`, `cert:NAME`, `token:NAME` ...), and `peer` its address.
        claims: Who it says it is; nobody checked this.
        outcome: Name of the gRPC status code.
    """

    call: str
    request: Mapping[str, Any]
    engines: tuple[str, ...] = ()
    refused: str = ""
    who: str = ""
    peer: str = ""
    claims: str = ""
    outcome: str = ""


class KeptProfile(msgspec.Struct, frozen=True):
    """A cost profile under its name."""

    name: str
    profile: ProfileContent


def content_of(entry: Entry, kind: type[Content]) -> Content:
    """The JSON of an entry.

    Raises:
        DataError: It is not of this kind.
    """
    try:
        return msgspec.json.decode(entry.payload, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise _damaged(entry, error) from error


def message_of(entry: Entry, kind: type[AnyMessage]) -> AnyMessage:
    """The protobuf message of an entry; `DataError` if it is none of this kind."""
    try:
        return kind.FromString(entry.payload)
    except DecodeError as error:
        raise _damaged(entry, error) from error


def report_of(entry: Entry) -> Report:
    """The report of an entry of kind `report`, without the rows that were refused; `DataError` if it is none."""
    try:
        return read_report(message_of(entry, pb.Report))[0]
    except TrimtabError as error:
        raise _damaged(entry, error) from error


def lease_of(entry: Entry) -> Lease | None:
    """The lease that was in force after this entry: one that was sent, or that a session remembers.

    Entries of kind `lease`, `checkpoint` and `resumed` know one; None for the others. `DataError` if it is damaged.
    """
    if entry.kind is Kind.LEASE:
        return sent_lease_of(entry).lease
    if entry.kind in (Kind.CHECKPOINT, Kind.RESUMED):
        return content_of(entry, StateContent).state.lease
    return None


def sent_lease_of(entry: Entry) -> SendLease:
    """The lease of an entry of kind `lease` as it was sent; `DataError` if it is damaged."""
    try:
        return read_lease(message_of(entry, pb.Lease))
    except (TrimtabError, ValueError) as error:
        raise _damaged(entry, error) from error


def event_of(entry: Entry, profile: Callable[[str], KeyedProfile]) -> Event:
    """The event of an entry, as the session took it.

    Args:
        entry: An entry of one of `EVENTS`.
        profile: Gives the profile with an id.

    Raises:
        DataError: It is damaged, or of a policy that this Trimtab does not have.
    """
    try:
        return _event_of(entry, profile)
    except DataError:
        raise
    except (TrimtabError, ValueError) as error:
        raise _damaged(entry, error) from error


def _event_of(entry: Entry, profile: Callable[[str], KeyedProfile]) -> Event:
    match entry.kind:
        case Kind.HELLO:
            return Connected(read_hello(message_of(entry, pb.Hello))[0])
        case Kind.REPORT:
            return Reported(report_of(entry))
        case Kind.ACK:
            return read_ack(message_of(entry, pb.Ack))
        case Kind.TICK:
            return Ticked()
        case Kind.PINNED:
            order = content_of(entry, PinContent)
            return Pinned(order.pin, order.duration_s)
        case Kind.UNPINNED:
            return Unpinned()
        case Kind.POLICY_SET:
            choice = content_of(entry, PolicyChoice)
            return PolicySet(choice.name, policy_factory(choice.name, choice.parameters), choice.parameters)
        case Kind.SHADOW_SET:
            choice = content_of(entry, PolicyChoice)
            return ShadowSet(choice.name, policy_factory(choice.name, choice.parameters), choice.parameters)
        case Kind.SHADOW_DROPPED:
            return ShadowDropped()
        case Kind.POLICIES_SWAPPED:
            return PoliciesSwapped()
        case Kind.DISCONNECT:
            return Disconnected(content_of(entry, ReasonContent).reason)
        case Kind.STOPPING:
            return ShuttingDown(content_of(entry, ReasonContent).reason)
        case Kind.RESUMED | Kind.CHECKPOINT:
            return resumed_of(content_of(entry, StateContent), profile)
        case _:
            raise ValueError(f"{entry.kind} is no event")


def session_of(content: SessionContent, profile: Callable[[str], KeyedProfile]) -> EngineSession:
    """A session that begins as this one did.

    Raises:
        PolicyError: This Trimtab does not have its policy.
    """
    choice = content.policy
    settings = SessionSettings(
        content.report_interval_s,
        content.lease_ttl_s,
        content.seed,
        content.stall_after_s,
        tuple(profile(kept) for kept in content.profiles),
    )
    return EngineSession(choice.name, policy_factory(choice.name, choice.parameters), settings, choice.parameters)


def resumed_of(content: StateContent, profile: Callable[[str], KeyedProfile]) -> Resumed:
    """The event that takes a session to this state."""
    cost = profile(content.profile).profile if content.profile else None
    return Resumed(content.state, ProfileChoice(content.profile_name, cost, content.profile_ignored))


def read_profile_content(text: str) -> KeyedProfile:
    """The profile of this JSON; `DataError` if it is none."""
    try:
        kept = msgspec.json.decode(text, type=KeptProfile)
    except msgspec.MsgspecError as error:
        raise DataError("profile", f"is damaged: {error}") from error
    return keyed_profile(kept.name, kept.profile, kept.name)


def _damaged(entry: Entry, error: Exception) -> DataError:
    return DataError(f"entry {entry.seq}", f"({entry.kind} of {entry.engine or 'no engine'}) cannot be read: {error}")
