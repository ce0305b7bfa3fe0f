"""What operators see: sessions as `Engine` messages."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.timestamp_pb2 import Timestamp

from trimtab.domain import InForce, Source
from trimtab.policies.contract import BandDecision, Candidate, Decision
from trimtab.session.engine_session import EngineSession
from trimtab.session.measured import Measured
from trimtab.session.shadow import Shadow
from trimtab.wire import bounds
from trimtab.wire.bounds import NS_PER_S, duration
from trimtab.wire.downstream import pin_message
from trimtab.wire.modes import mode_to_wire
from trimtab.wire.upstream import SOURCES
from trimtabpb.v1 import admin_pb2, control_pb2

SOURCE_TO_WIRE = {source: number for number, source in SOURCES.items()}
SOURCE_TO_WIRE[Source.EXPIRY] = control_pb2.InForce.SOURCE_STOCK
MAX_WHY = 1024


def engine_message(
    session: EngineSession,
    hello: control_pb2.Hello,
    measured: Measured,
    refused: Mapping[str, int],
    now_ns: int,
    wall_ns: int,
) -> admin_pb2.Engine:
    """The engine as its session sees it.

    Args:
        session: A session that had a Hello.
        hello: That Hello.
        measured: Figures of the session's window.
        refused: What was refused of this engine, by reason.
        now_ns: The host's monotonic clock, the one that the session is stepped with.
        wall_ns: The host's wall clock at the same moment, since the epoch.
    """
    message = admin_pb2.Engine(
        engine_id=str(session.info.key) if session.info else hello.engine_id,
        state=engine_state(session, now_ns),
        hello=hello,
        in_force=_in_force_message(session.in_force),
        policy=_policy_message(session),
        lease=_lease_state(session, now_ns),
        measured=_measured_message(session, measured),
        last_message_age=duration((now_ns - session.last_message_ns) / NS_PER_S),
        connected_at=timestamp(session.connected_at_ns, now_ns, wall_ns),
        refused=refused,
        profile=admin_pb2.ProfileState(
            name=session.profile.name, ignored=bounds.clipped(session.profile.ignored, MAX_WHY)
        ),
        rank_divergence=_divergence_text(session),
    )
    if session.pin is not None:
        message.pin.CopyFrom(pin_message(session.pin.pin, session.pin.remaining_s(now_ns)))
        message.pinned_at.CopyFrom(timestamp(session.pin.since_ns, now_ns, wall_ns))
    return message


def engine_state(session: EngineSession, now_ns: int) -> admin_pb2.Engine.State.ValueType:
    """Whether the engine's stream is open, and its steps go on."""
    if not session.connected:
        return admin_pb2.Engine.STATE_DISCONNECTED
    return admin_pb2.Engine.STATE_STALLED if session.stalled(now_ns) else admin_pb2.Engine.STATE_CONNECTED


def timestamp(then_ns: int, now_ns: int, wall_ns: int) -> Timestamp:
    """The wall time of a moment on the monotonic clock."""
    message = Timestamp()
    message.FromNanoseconds(wall_ns - (now_ns - then_ns))
    return message


def _divergence_text(session: EngineSession) -> str:
    found = session.divergence
    return "" if found is None else bounds.clipped(f"at step {found.step}: {found.what}", MAX_WHY)


def _in_force_message(in_force: InForce) -> control_pb2.InForce:
    return control_pb2.InForce(
        source=SOURCE_TO_WIRE[in_force.source],
        mode=None if in_force.mode is None else mode_to_wire(in_force.mode),
        lease_version=in_force.lease_version,
        pin_id=in_force.pin_id,
        fuse_reason=in_force.fuse_reason,
        after_expiry=in_force.source is Source.EXPIRY,
    )


def _policy_message(session: EngineSession) -> admin_pb2.PolicyState:
    return admin_pb2.PolicyState(
        name=session.policy_name,
        bands=_band_messages(session.decision),
        alarms=session.alarms,
        paused=session.pin is not None and session.pin.pin.range is None,
        shadow=_shadow_message(session.shadow) if session.shadow else None,
    )


def _shadow_message(shadow: Shadow) -> admin_pb2.ShadowState:
    return admin_pb2.ShadowState(
        name=shadow.name,
        bands=_band_messages(shadow.decision),
        steps=shadow.steps,
        agreed_steps=shadow.agreed_steps,
        unusable=bounds.clipped(shadow.unusable, MAX_WHY),
    )


def _band_messages(decision: Decision | None) -> list[admin_pb2.BandDecision]:
    return [_band_message(band) for band in decision.bands] if decision else []


def _band_message(band: BandDecision) -> admin_pb2.BandDecision:
    return admin_pb2.BandDecision(
        min_batch_size=band.min_batch_size,
        mode=mode_to_wire(band.mode),
        probability=band.probability,
        reason=band.reason,
        candidates=[_candidate_message(candidate) for candidate in band.candidates],
    )


def _candidate_message(candidate: Candidate) -> admin_pb2.Candidate:
    return admin_pb2.Candidate(
        mode=mode_to_wire(candidate.mode),
        accepted_drafts=candidate.accepted_drafts,
        step_ms=candidate.step_ms,
        goodput_tps=candidate.goodput_tps,
        goodput_low_tps=candidate.goodput_low_tps,
        goodput_high_tps=candidate.goodput_high_tps,
    )


def _lease_state(session: EngineSession, now_ns: int) -> admin_pb2.LeaseState | None:
    """The last lease of this stream; absent without one."""
    if session.lease is None:
        return None
    return admin_pb2.LeaseState(
        version=session.lease.version,
        age=duration((now_ns - session.lease_since_ns) / NS_PER_S),
        acknowledged=session.acknowledged,
        refusal=session.refusal,
    )


def _measured_message(session: EngineSession, measured: Measured) -> admin_pb2.Measured:
    report = session.report
    return admin_pb2.Measured(
        goodput_tps=measured.goodput_tps,
        accepted_drafts=measured.accepted_drafts,
        step_ms=measured.step_ms,
        batch_size=measured.batch_size,
        rows=measured.rows,
        switches=report.switches if report else 0,
        dropped=report.dropped if report else {},
        running_requests=report.running_requests if report else 0,
        waiting_requests=report.waiting_requests if report else 0,
        stale_share=measured.stale_share,
        stale_resumes=report.stale_resumes if report else 0,
    )
