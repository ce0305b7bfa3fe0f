"""What the command line knows of an engine: read from the admin service, shown as text or as JSON.

The fields of these classes are the keys of `--json`; None (null) is unknown. They only grow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from itertools import zip_longest
from typing import Any

import msgspec
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from trimtab.domain import Mode
from trimtab.errors import WireError
from trimtab.policies.contract import Candidate
from trimtab.wire import mode_from_wire
from trimtabpb.v1 import admin_pb2, control_pb2

# The values whose zero means something; elsewhere zero and empty mean that nobody said.
MEANINGFUL_ZEROS = frozenset({"adaptive", "dp_rank", "dp_attention", "rejection_sampling", "block_verification"})


class PinView(msgspec.Struct, frozen=True):
    """An operator's order. `remaining_s` null: until released. `in_force`: the engine runs it now.

    Attributes:
        mode: What is held; with a range of steps, what runs within it while no lease is in force.
        min_steps: Of the range that the policy chooses within; null, as `max_steps`, where one mode is held.
        ordered_for: Whom the order stands for, engines still to come among them: labels, or "all"; null where it is
            for this engine alone.
    """

    mode: Mode | None
    owner: str
    reason: str
    remaining_s: float | None
    pinned_at: str | None
    in_force: bool
    min_steps: int | None = None
    max_steps: int | None = None
    ordered_for: str | None = None

    @property
    def what(self) -> str:
        """What is held, for people."""
        return f"steps {self.min_steps}-{self.max_steps}" if self.min_steps is not None else str(self.mode or "-")


class LeaseView(msgspec.Struct, frozen=True):
    """The last lease that the engine was sent; `refusal` says why it was refused, if it was."""

    version: int
    age_s: float | None
    acknowledged: bool
    refusal: str | None


class BandView(msgspec.Struct, frozen=True):
    """The policy's last decision for batch sizes from `min_batch_size` to `max_batch_size` (null: no end)."""

    min_batch_size: int
    max_batch_size: int | None
    mode: Mode | None
    probability: float
    reason: str
    candidates: tuple[Candidate, ...]


class ShadowView(msgspec.Struct, frozen=True):
    """A policy that decides beside the acting one and is not followed.

    Attributes:
        steps: Decode steps since it began.
        agreement: Share of them for which it chose the mode that the acting policy chose; null before the first.
        unusable: Why it cannot decide for this engine; null if it can.
        bands: Its last decision.
    """

    policy: str
    steps: int
    agreement: float | None
    unusable: str | None
    bands: tuple[BandView, ...]


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """One engine in a line. `decided_by` is stock, lease, pin, fuse or expiry; measured over the last few seconds.

    Attributes:
        state: connected, stalled or disconnected.
        acts: False where the plugin only observes.
        accepted_drafts: Accepted drafts a request and step, over the steps that drafted.
        policy_paused: Whether a pin holds one mode, so that the policy learns and is not followed.
        canary: Whether the policy is on trial here, as a canary.
        shadow: A policy on trial that is not followed; null without one.
        switches: Changes of mode since the engine started.
        lease: Null before the first, and where the plugin only observes.
    """

    engine_id: str
    state: str
    labels: Mapping[str, str]
    model: str | None
    acts: bool
    mode: Mode | None
    decided_by: str | None
    policy: str | None
    policy_paused: bool
    canary: bool
    shadow: ShadowView | None
    pin: PinView | None
    lease: LeaseView | None
    goodput_tps: float | None
    accepted_drafts: float | None
    step_ms: float | None
    batch_size: float | None
    switches: int
    running_requests: int
    waiting_requests: int
    last_message_age_s: float | None


class EngineDetail(EngineView, frozen=True, kw_only=True):
    """Everything that is known of one engine.

    Attributes:
        offers: Modes that it can be told to run.
        on_expiry: What it does when the life of the last lease is over: stock, last:SECONDS or a mode.
        candidate_cost: What its step counts take: memory_bytes, kv_tokens and reserved_kv_tokens_per_request.
        profile: The cost profile that its policy begins with; null for none.
        profile_ignored: Why none of the configured profiles is used; null if one is, or none is configured.
        alarms: What an operator should look at.
        rank_divergence: What the engine's ranks disagreed about; null while they choose the same.
        journal_problem: Why the controller's journal fails; null if it does not.
        measured_rows: Decode steps behind the measured figures.
        dropped: Rows and samples that the engine left out, by reason, since it started.
        refused: Messages, rows and leases refused, by reason.
        hooks_not_applied: Where the plugin is not in place, and why.
        refused_modes: Plain modes that it cannot be told to run, and why.
        plain: What native plain takes: `window_tokens`, `ring_bytes`, `graph_bytes`, `kv_tokens`, `start_s`; null
            where it is not offered.
        stale_share: Share of the requests whose draft model has not read every token and never will.
        stale_resumes: Requests that were drafted for all the same, since the engine started.
    """

    boot_id: str | None
    connected_at: str | None
    software: Mapping[str, Any]
    topology: Mapping[str, Any]
    speculation: Mapping[str, Any]
    offers: tuple[Mode, ...]
    observe_reasons: tuple[str, ...]
    graph_batch_sizes: tuple[int, ...]
    max_running_requests: int | None
    kv_capacity_tokens: int | None
    fuse_reason: str | None
    on_expiry: str | None
    candidate_cost: Mapping[str, Any] | None
    profile: str | None
    profile_ignored: str | None
    alarms: tuple[str, ...]
    rank_divergence: str | None
    journal_problem: str | None
    bands: tuple[BandView, ...]
    measured_rows: int
    dropped: Mapping[str, int]
    refused: Mapping[str, int]
    hooks_applied: int
    hooks_not_applied: Mapping[str, str]
    refused_modes: Mapping[str, str]
    plain: Mapping[str, float] | None
    stale_share: float | None
    stale_resumes: int


def engine_view(engine: admin_pb2.Engine) -> EngineView:
    """The engine in a line."""
    return EngineView(**_summary(engine))


def engine_detail(engine: admin_pb2.Engine, journal_problem: str = "") -> EngineDetail:
    """The engine in full, and what is wrong with its controller's journal."""
    hello = engine.hello
    return EngineDetail(
        **_summary(engine),
        boot_id=hello.boot_id or None,
        connected_at=when(engine, "connected_at"),
        software=_plain(hello.software),
        topology=_plain(hello.topology),
        speculation=_plain(hello.speculation),
        offers=tuple(m for m in map(mode_view, hello.modes) if m),
        observe_reasons=tuple(hello.observe_reasons),
        graph_batch_sizes=tuple(hello.graph_batch_sizes),
        max_running_requests=hello.max_running_requests or None,
        kv_capacity_tokens=hello.kv_capacity_tokens or None,
        fuse_reason=engine.in_force.fuse_reason or None,
        on_expiry=hello.on_expiry or None,
        candidate_cost=_plain(hello.candidate_cost) if hello.HasField("candidate_cost") else None,
        profile=engine.profile.name or None,
        profile_ignored=engine.profile.ignored or None,
        alarms=tuple(engine.policy.alarms),
        rank_divergence=engine.rank_divergence or None,
        journal_problem=journal_problem or None,
        bands=_bands(engine.policy.bands),
        measured_rows=engine.measured.rows,
        dropped=dict(sorted(engine.measured.dropped.items())),
        refused=dict(sorted(engine.refused.items())),
        hooks_applied=sum(h.applied for h in hello.hooks),
        hooks_not_applied={h.target: h.reason for h in hello.hooks if not h.applied},
        refused_modes={str(mode_view(r.mode)): r.reason for r in hello.plain.refused},
        plain=_plain_memory(hello.plain),
        stale_share=engine.measured.stale_share if engine.measured.HasField("stale_share") else None,
        stale_resumes=engine.measured.stale_resumes,
    )


def _plain_memory(plain: control_pb2.Plain) -> dict[str, float] | None:
    if not plain.window_tokens:
        return None
    return {
        "window_tokens": plain.window_tokens,
        "ring_bytes": plain.ring_bytes,
        "graph_bytes": plain.graph_bytes,
        "kv_tokens": plain.kv_tokens,
        "start_s": plain.start_time.ToNanoseconds() / 1e9,
    }


def state_name(engine: admin_pb2.Engine) -> str:
    """connected, stalled or disconnected."""
    return admin_pb2.Engine.State.Name(engine.state).removeprefix("STATE_").lower()


def mode_view(mode: control_pb2.Mode) -> Mode | None:
    """The mode; None if it is absent or of a kind that this version does not know."""
    try:
        return mode_from_wire("mode", mode)
    except WireError:
        return None


def _summary(engine: admin_pb2.Engine) -> dict[str, Any]:
    measured = engine.measured
    known = measured.rows > 0
    return {
        "engine_id": engine.engine_id,
        "state": state_name(engine),
        "labels": dict(sorted(engine.hello.labels.items())),
        "model": engine.hello.speculation.model or None,
        "acts": engine.hello.acts,
        "mode": mode_view(engine.in_force.mode),
        "decided_by": _decided_by(engine.in_force),
        "policy": engine.policy.name or None,
        "policy_paused": engine.policy.paused,
        "canary": engine.policy.canary,
        "shadow": _shadow(engine.policy.shadow) if engine.policy.HasField("shadow") else None,
        "pin": _pin(engine),
        "lease": _lease(engine.lease) if engine.lease.version else None,
        "goodput_tps": measured.goodput_tps if known else None,
        "accepted_drafts": measured.accepted_drafts if measured.HasField("accepted_drafts") else None,
        "step_ms": measured.step_ms if measured.HasField("step_ms") else None,
        "batch_size": measured.batch_size if known else None,
        "switches": measured.switches,
        "running_requests": measured.running_requests,
        "waiting_requests": measured.waiting_requests,
        "last_message_age_s": seconds_of(engine, "last_message_age"),
    }


def _decided_by(in_force: control_pb2.InForce) -> str | None:
    if not in_force.source:
        return None
    if in_force.after_expiry:
        return "expiry"
    return control_pb2.InForce.Source.Name(in_force.source).removeprefix("SOURCE_").lower()


def _pin(engine: admin_pb2.Engine) -> PinView | None:
    if not engine.HasField("pin"):
        return None
    pin, now = engine.pin, engine.in_force
    ranged = pin.HasField("range")
    return PinView(
        mode=mode_view(pin.mode),
        owner=pin.owner,
        reason=pin.reason,
        remaining_s=seconds_of(pin, "remaining"),
        pinned_at=when(engine, "pinned_at"),
        in_force=now.source == control_pb2.InForce.SOURCE_PIN and now.pin_id == pin.id,
        min_steps=pin.range.min_steps if ranged else None,
        max_steps=pin.range.max_steps if ranged else None,
        ordered_for=selector_text(engine.pin_selector) if engine.HasField("pin_selector") else None,
    )


def selector_text(selector: admin_pb2.Selector) -> str:
    """The engines that an order is for, for people."""
    labels = ", ".join(f"{key}={value}" for key, value in sorted(selector.labels.items()))
    return ", ".join(selector.engine_ids) or labels or "all"


def _shadow(shadow: admin_pb2.ShadowState) -> ShadowView:
    agreement = shadow.agreed_steps / shadow.steps if shadow.steps else None
    return ShadowView(shadow.name, shadow.steps, agreement, shadow.unusable or None, _bands(shadow.bands))


def _lease(lease: admin_pb2.LeaseState) -> LeaseView:
    return LeaseView(lease.version, seconds_of(lease, "age"), lease.acknowledged, lease.refusal or None)


def _bands(bands: Sequence[admin_pb2.BandDecision]) -> tuple[BandView, ...]:
    ends = [band.min_batch_size - 1 for band in bands[1:]]
    return tuple(
        BandView(
            min_batch_size=band.min_batch_size,
            max_batch_size=end,
            mode=mode_view(band.mode),
            probability=band.probability,
            reason=band.reason,
            candidates=tuple(c for c in map(_candidate, band.candidates) if c),
        )
        for band, end in zip_longest(bands, ends)
    )


def _candidate(candidate: admin_pb2.Candidate) -> Candidate | None:
    mode = mode_view(candidate.mode)
    if mode is None:
        return None
    return Candidate(
        mode=mode,
        accepted_drafts=candidate.accepted_drafts if candidate.HasField("accepted_drafts") else None,
        step_ms=candidate.step_ms if candidate.HasField("step_ms") else None,
        goodput_tps=candidate.goodput_tps if candidate.HasField("goodput_tps") else None,
        goodput_low_tps=candidate.goodput_low_tps if candidate.HasField("goodput_low_tps") else None,
        goodput_high_tps=candidate.goodput_high_tps if candidate.HasField("goodput_high_tps") else None,
    )


def seconds_of(message: Message, field: str) -> float | None:
    """Seconds of a duration field; None if it is absent."""
    value: Duration = getattr(message, field)
    return value.seconds + value.nanos / 1e9 if message.HasField(field) else None


def when(message: Message, field: str) -> str | None:
    """A timestamp field as text; None if it is absent."""
    value: Timestamp = getattr(message, field)
    return value.ToDatetime(UTC).isoformat(timespec="seconds") if message.HasField(field) else None


def _plain(message: Message) -> dict[str, Any]:
    """The message's fields by name, those that nobody filled in as None."""
    values = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if isinstance(value, float):
            value = round(value, 6)  # they travel as 32 bits
        elif not isinstance(value, str | int):
            value = list(value)
        values[field.name] = value if value or field.name in MEANINGFUL_ZEROS else None
    return values
