"""One entry of the journal, and the kinds of entries that there are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What an entry tells."""

    # How a session began: its policy, settings and seed. The first entry of an engine in a run.
    SESSION = "session"
    # Events, as the session took them.
    RESUMED = "resumed"
    HELLO = "hello"
    REPORT = "report"
    ACK = "ack"
    DISCONNECT = "disconnect"
    TICK = "tick"
    PINNED = "pinned"
    UNPINNED = "unpinned"
    POLICY_SET = "policy_set"
    SHADOW_SET = "shadow_set"
    SHADOW_DROPPED = "shadow_dropped"
    POLICIES_SWAPPED = "policies_swapped"
    STOPPING = "stopping"
    # What came of the event before: leases as they were sent, each new one explained.
    LEASE = "lease"
    DECISION = "decision"
    RELEASE = "release"
    NOTE = "note"
    FAILED = "failed"
    # What the session knows now, all of it.
    CHECKPOINT = "checkpoint"
    # What an operator asked for and what came of it; of no single engine.
    ADMIN = "admin"
    # All standing orders and the canary, whenever they change; of no single engine.
    STANDING = "standing"


EVENTS = frozenset({
    Kind.RESUMED, Kind.HELLO, Kind.REPORT, Kind.ACK, Kind.DISCONNECT, Kind.TICK, Kind.PINNED, Kind.UNPINNED,
    Kind.POLICY_SET, Kind.SHADOW_SET, Kind.SHADOW_DROPPED, Kind.POLICIES_SWAPPED, Kind.STOPPING,
})  # fmt: skip
ORDERS = frozenset({
    Kind.PINNED, Kind.UNPINNED, Kind.POLICY_SET, Kind.SHADOW_SET, Kind.SHADOW_DROPPED, Kind.POLICIES_SWAPPED,
})  # fmt: skip
# From these a session can go on; from the last the controller as a whole.
STATES = frozenset({Kind.RESUMED, Kind.CHECKPOINT})
NEWEST_STATES = STATES | {Kind.STANDING}
LANDMARKS = ORDERS | NEWEST_STATES
# Large and repetitive: compressed in the file.
PACKED = frozenset({Kind.REPORT, Kind.DECISION, Kind.CHECKPOINT, Kind.RESUMED})


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened.

    Attributes:
        seq: Its number in the journal.
        run: The run of the daemon.
        engine: The engine's key as text; empty where it concerns no single engine.
        missing: Entries of this engine and run that are missing just before this one: lost, or pruned.
        now_ns: The controller's monotonic clock; for events the time that the session was stepped with.
        wall_ns: Time since the epoch.
        payload: See `content.py`; empty where the reader did not ask for entries of this kind.
    """

    seq: int
    run: int
    engine: str
    missing: int
    kind: Kind
    now_ns: int
    wall_ns: int
    payload: bytes
