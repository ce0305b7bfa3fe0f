"""What goes into the journal comes out of it as it was, or as an error that names the entry."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from support.session_talk import engine
from support.step_rows import MadeUpEngine
from trimtab.domain import PLAIN_WARM, CostKey, Pin, StepRange, modes_of, speculate
from trimtab.errors import DataError
from trimtab.policies.profile import ContextCost, ProfilePoint, profile_of
from trimtab.policies.registry import POLICIES, policy_factory
from trimtab.session.engine_session import EngineSession
from trimtab.session.events import (
    Answered,
    Connected,
    Disconnected,
    Event,
    Pinned,
    PoliciesSwapped,
    PolicySet,
    Reported,
    Resumed,
    ShadowDropped,
    ShadowSet,
    ShuttingDown,
    Ticked,
    Unpinned,
)
from trimtab.session.profiles import KeyedProfile
from trimtab.session.state import PolicyChoice
from trimtab.store.content import (
    DecisionContent,
    SessionContent,
    StateContent,
    content_of,
    event_of,
    lease_of,
    read_profile_content,
    report_of,
    sent_lease_of,
)
from trimtab.store.entries import EVENTS, Entry, Kind
from trimtab.store.records import Record, effect_records, event_record, profile_content, profile_id
from trimtab.wire import mode_to_wire, read_hello, read_report, rows_to_columns
from trimtabpb.v1 import control_pb2 as pb

HELLO = pb.Hello(
    protocol_version=1,
    engine_id="a",
    boot_id="b",
    acts=True,
    modes=[mode_to_wire(mode) for mode in modes_of([0, 1, 3])],
    graph_batch_sizes=[1, 2, 4],
    labels={"team": "chat"},
)
REPORT = pb.Report(seq=1, now_ns=5, rows=rows_to_columns(MadeUpEngine(1).report(lambda _: speculate(3), 5)))
ACK = pb.Ack(nonce=3, version=9, refusal=pb.REFUSAL_NO_STATE, detail="no such mode")
FIXED = PolicySet("fixed", policy_factory("fixed", {"steps": "1"}), {"steps": "1"})

EVENTS_AND_BYTES: dict[str, tuple[Event, bytes]] = {
    "hello": (Connected(read_hello(HELLO)[0]), HELLO.SerializeToString()),
    "report": (Reported(read_report(REPORT)[0]), REPORT.SerializeToString()),
    "ack": (Answered(3, 9, accepted=False, refusal="no_state", detail="no such mode"), ACK.SerializeToString()),
    "disconnect": (Disconnected("connection lost"), b""),
    "tick": (Ticked(), b""),
    "pinned": (Pinned(Pin("p", PLAIN_WARM, "why", "kim"), 60.5), b""),
    "pinned to a range": (Pinned(Pin("p", speculate(1), "why", "kim", StepRange(1, 3))), b""),
    "unpinned": (Unpinned(), b""),
    "policy_set": (FIXED, b""),
    "shadow_set": (ShadowSet(FIXED.name, FIXED.factory, FIXED.parameters), b""),
    "shadow_dropped": (ShadowDropped(), b""),
    "policies_swapped": (PoliciesSwapped(), b""),
    "stopping": (ShuttingDown("the controller stops"), b""),
}


def entry(record: Record) -> Entry:
    return Entry(7, 1, "a", 0, record[0], 0, 0, record[1])


def no_profile(profile_id: str) -> KeyedProfile:
    raise AssertionError(f"nobody asked for {profile_id}")


@pytest.mark.parametrize("kind", EVENTS_AND_BYTES)
def test_an_event_comes_back_as_the_session_got_it(kind: str) -> None:
    event, wire = EVENTS_AND_BYTES[kind]
    record = event_record(event, wire)
    back = event_of(entry(record), no_profile)

    assert record[0] == kind.partition(" ")[0]
    assert back == event


def test_every_event_is_covered() -> None:
    assert {name.partition(" ")[0] for name in EVENTS_AND_BYTES} == {str(kind) for kind in EVENTS - {Kind.RESUMED}}
    with pytest.raises(ValueError, match="what its host knows"):
        event_record(Resumed(EngineSession("fixed", policy_factory("fixed")).state()))


DAMAGED: dict[str, tuple[Kind, bytes]] = {
    "no message": (Kind.REPORT, b"\xff\xff\xff"),
    "a message that breaks the protocol": (Kind.HELLO, b""),
    "no JSON": (Kind.DISCONNECT, b"{"),
    "other JSON": (Kind.PINNED, b'{"duration_s": 5}'),
    "an impossible mode": (Kind.PINNED, b'{"pin": {"id": "p", "mode": {"kind": "speculate", "steps": 0}}}'),
    "an unknown policy": (Kind.POLICY_SET, b'{"name": "oracle"}'),
    "no state": (Kind.RESUMED, b"{}"),
    "no event": (Kind.NOTE, b"{}"),
    "no text": (Kind.STOPPING, b'{"reason": "\xff"}'),
}


@pytest.mark.parametrize("record", DAMAGED.values(), ids=DAMAGED)
def test_an_entry_that_cannot_be_read_is_named(record: Record) -> None:
    with pytest.raises(DataError, match=rf"^entry 7: \({record[0]} of a\) cannot be read: "):
        event_of(entry(record), no_profile)


def test_a_damaged_lease_or_report_is_named() -> None:
    for read, kind in ((report_of, Kind.REPORT), (sent_lease_of, Kind.LEASE)):
        with pytest.raises(DataError, match=rf"^entry 7: \({kind} of a\)"):
            read(entry((kind, b"\xff\xff\xff")))


# -- what comes of an event ----------------------------------------------------------------------


def connected() -> tuple[EngineSession, list[Record]]:
    session = EngineSession("goodput", policy_factory("goodput"))
    return session, effect_records(session, session.step(Connected(engine()), 0), 0)


def test_a_new_lease_comes_with_its_explanation_and_a_renewed_one_without() -> None:
    session, records = connected()
    assert [kind for kind, _ in records] == [Kind.NOTE, Kind.LEASE, Kind.DECISION]
    decision = content_of(entry(records[2]), DecisionContent)
    assert session.decision is not None
    assert (decision.version, decision.policy, decision.bands) == (1, "goodput", session.decision.bands)
    assert decision.bands[0].candidates

    renewed = effect_records(session, session.step(Ticked(), 1_000_000_000), 1)
    assert [kind for kind, _ in renewed] == [Kind.LEASE]


def test_the_lease_in_force_is_known_from_leases_and_states() -> None:
    session, records = connected()
    assert lease_of(entry(records[1])) == sent_lease_of(entry(records[1])).lease
    assert lease_of(entry(records[0])) is None
    content: dict[str, Any] = {
        "session": {
            "policy": {"name": "goodput", "parameters": {}}, "report_interval_s": 0.25, "lease_ttl_s": 2.0, "seed": 0,
            "stall_after_s": 10.0,
        },
        "state": msgspec.to_builtins(session.state()),
    }  # fmt: skip
    assert lease_of(entry((Kind.CHECKPOINT, msgspec.json.encode(content)))) == session.lease


# -- profiles and snapshots ----------------------------------------------------------------------


def test_a_profile_comes_back_digit_for_digit() -> None:
    points = [
        ProfilePoint(8, {speculate(3): 1 / 3, PLAIN_WARM: 0.1 + 0.2}, 500),
        ProfilePoint(8, {speculate(3): 1 / 7}),
        ProfilePoint(16, {PLAIN_WARM: 5e-324}),
    ]
    profile = KeyedProfile("x", CostKey(model="m", tp_size=2), profile_of(points, ContextCost(1 / 9, 1e-7, 1e-9)))
    assert read_profile_content(profile_content(profile)) == profile
    assert profile_id(profile_content(profile)) == profile_id(profile_content(profile))
    with pytest.raises(DataError, match="profile: is damaged"):
        read_profile_content("{")


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_state_with_any_policys_snapshot_comes_back(policy: str) -> None:
    session = EngineSession(policy, policy_factory(policy))
    session.step(Connected(engine()), 0)
    world = MadeUpEngine(2, largest_batch=8)
    for seq in range(1, 30):
        report = pb.Report(seq=seq, now_ns=seq, rows=rows_to_columns(world.report(lambda _: speculate(3))))
        session.step(Reported(read_report(report)[0]), seq * 250_000_000)
    state = session.state()
    content = StateContent(content_of_session(policy), state)
    assert msgspec.json.decode(msgspec.json.encode(content), type=StateContent).state == state


def content_of_session(policy: str) -> SessionContent:
    return SessionContent(PolicyChoice(policy), 0.25, 2.0, 0, 10.0)
