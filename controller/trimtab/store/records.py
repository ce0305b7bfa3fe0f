"""What happens to a session, as entries of the journal. The same live and in verification."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from trimtab.policies.contract import Decision
from trimtab.profile_file import content_of
from trimtab.session import events
from trimtab.session.engine_session import EngineSession
from trimtab.session.profiles import KeyedProfile
from trimtab.session.state import PolicyChoice
from trimtab.store.content import (
    DecisionContent,
    FailedContent,
    KeptProfile,
    NoteContent,
    PinContent,
    ReasonContent,
)
from trimtab.store.entries import Kind
from trimtab.wire import lease_message

# An entry before it has a number: its kind and payload.
Record = tuple[Kind, bytes]


def event_record(event: events.Event, wire: bytes = b"") -> Record:
    """The entry of an event; `wire` is the engine's message that it came from. `Resumed` has one of its own."""
    match event:
        case events.Connected():
            return Kind.HELLO, wire
        case events.Reported():
            return Kind.REPORT, wire
        case events.Answered():
            return Kind.ACK, wire
        case events.Ticked():
            return Kind.TICK, b""
        case events.Pinned():
            return Kind.PINNED, encode(PinContent(event.pin, event.duration_s))
        case events.Unpinned():
            return Kind.UNPINNED, b""
        case events.PolicySet():
            return Kind.POLICY_SET, encode(PolicyChoice(event.name, event.parameters))
        case events.ShadowSet():
            return Kind.SHADOW_SET, encode(PolicyChoice(event.name, event.parameters))
        case events.ShadowDropped():
            return Kind.SHADOW_DROPPED, b""
        case events.PoliciesSwapped():
            return Kind.POLICIES_SWAPPED, b""
        case events.Disconnected():
            return Kind.DISCONNECT, encode(ReasonContent(event.reason))
        case events.ShuttingDown():
            return Kind.STOPPING, encode(ReasonContent(event.reason))
        case events.Resumed():
            raise ValueError("the state of a resumed session is written with what its host knows")


def effect_records(session: EngineSession, effects: Iterable[events.Effect], explained: int) -> list[Record]:
    """The entries of what a session asked for just now, each new lease with the decision that it came from.

    Args:
        session: The session, right after the step that gave these effects.
        effects: What it asked for.
        explained: The newest lease version that has its decision in the journal.
    """
    records: list[Record] = []
    for effect in effects:
        match effect:
            case events.SendLease():
                message = lease_message(effect).lease
                records.append((Kind.LEASE, message.SerializeToString(deterministic=True)))
                if effect.lease.version > explained and session.decision is not None:
                    records.append(_decision_record(effect.lease.version, session.policy_name, session.decision))
            case events.SendRelease():
                records.append((Kind.RELEASE, encode(ReasonContent(effect.reason))))
            case events.Note():
                records.append((Kind.NOTE, encode(NoteContent(effect.event, effect.fields, effect.warning))))
    return records


def _decision_record(version: int, policy: str, decision: Decision) -> Record:
    fields = {name: getattr(decision, name) for name in DecisionContent.__struct_fields__[2:]}
    return Kind.DECISION, encode(DecisionContent(version, policy, **fields))


def failure_record(error: Exception) -> Record:
    """The entry of a session that failed on the event before."""
    return Kind.FAILED, encode(FailedContent(type(error).__name__, str(error)))


def profile_content(profile: KeyedProfile) -> str:
    """The profile as JSON, digit for digit."""
    content = content_of(profile.profile, profile.key, exact=True)
    return encode(KeptProfile(profile.name, content)).decode()


def profile_id(content: str) -> str:
    """The id of a profile with this content."""
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def encode(content: object) -> bytes:
    """JSON of a content."""
    return msgspec.json.encode(content)
