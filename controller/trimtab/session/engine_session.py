"""One engine's session: what do we tell it, and when?

`EngineSession.step(event, now_ns)` is the whole interface: events go in, effects come out. The host's
duties, in order:

1. Call `step` with every message of the engine and every operator's order, one at a time, with its own
   monotonic clock; add `Ticked` at least twice a report interval.
2. Carry out the effects in order. A lease that cannot be sent is simply lost: it is sent again.
3. Keep the session when a stream ends; the engine comes back to the same one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from trimtab.domain import EngineInfo, InForce, Lease, Mode, Pin, Report
from trimtab.errors import NotOfferedError, PolicyError
from trimtab.policies.bands import band_edges
from trimtab.policies.contract import BandDecision, Decision, Policy, PolicyContext
from trimtab.policies.registry import PolicyFactory
from trimtab.session.confine import confined
from trimtab.session.events import (
    Answered,
    Connected,
    Disconnected,
    Effect,
    Event,
    Note,
    Pinned,
    PoliciesSwapped,
    PolicySet,
    Reported,
    SendLease,
    SendRelease,
    ShadowDropped,
    ShadowSet,
    ShuttingDown,
    Ticked,
    Unpinned,
)
from trimtab.session.measured import Window
from trimtab.session.offers import Offers
from trimtab.session.profiles import KeyedProfile, ProfileChoice, choose_profile
from trimtab.session.shadow import Shadow

# A pin needs no table beside it.
NO_DECISION = Decision(())


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a session runs. A lease lives `lease_ttl_s` and is renewed at half of it.

    `profiles` are what is known beforehand of step times, each for the engines of its key.
    """

    report_interval_s: float = 0.25
    lease_ttl_s: float = 2.0
    seed: int = 0
    stall_after_s: float = 10.0
    profiles: tuple[KeyedProfile, ...] = ()


@dataclass(frozen=True, slots=True)
class StandingPin:
    """A pin as ordered, with its deadline on the controller's clock (None: until released)."""

    pin: Pin
    since_ns: int
    deadline_ns: int | None = None

    def remaining_s(self, now_ns: int) -> float | None:
        """Seconds left, at least 0; None without a deadline."""
        return None if self.deadline_ns is None else max(0.0, (self.deadline_ns - now_ns) / 1e9)


class EngineSession(Offers):
    """Decides what one engine is told.

    Attributes:
        connected: Whether its stream is open.
        in_force: What it runs, by its last message.
        decision: The policy's last decision, or None.
        decisions: Times that a policy was asked.
        profile: What the policy is told that steps cost.
        pin: The operator's standing order, or None.
        shadow: A policy on trial that is not followed, or None.
        lease: The last lease sent on this stream, or None.
        acknowledged: Whether the engine accepted that lease.
        refusal: Why it refused the last one; empty if it did not.
        refused: Messages and leases refused so far, by reason.
        report: The last report, or None; `reported_at_ns` is when it came.
    """

    def __init__(self, policy_name: str, factory: PolicyFactory, settings: SessionSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or SessionSettings()
        self.policy_name = policy_name
        self.connected = False
        self.connected_at_ns = 0
        self.last_message_ns = 0
        self.in_force = InForce()
        self.decision: Decision | None = None
        self.decisions = 0
        self.profile = ProfileChoice()
        self.pin: StandingPin | None = None
        self.shadow: Shadow | None = None
        self.lease: Lease | None = None
        self.lease_since_ns = 0
        self.acknowledged = False
        self.refusal = ""
        self.refused: Counter[str] = Counter()
        self.report: Report | None = None
        self.reported_at_ns = 0
        self.window = Window()
        self._factory = factory
        self._policy: Policy | None = None
        self._version = 0
        self._nonce = 0
        self._sent_at_ns = 0
        self._stopping = False

    def step(self, event: Event, now_ns: int) -> list[Effect]:
        """Take in one event at `now_ns` (host's monotonic clock); return what the host must do."""
        match event:
            case Connected():
                return self._connect(event.info, now_ns)
            case Reported():
                return self._take_report(event.report, now_ns)
            case Answered():
                return self._take_answer(event, now_ns)
            case Ticked():
                return self._tick(now_ns)
            case Pinned():
                return self._set_pin(event, now_ns)
            case Unpinned():
                return self._drop_pin("released", now_ns)
            case PolicySet():
                return self._set_policy(event, now_ns)
            case ShadowSet():
                return self._set_shadow(event)
            case ShadowDropped():
                return self._drop_shadow()
            case PoliciesSwapped():
                return self._swap_policies(now_ns)
            case Disconnected():
                self.connected = False
                return [Note("engine_disconnected", {"reason": event.reason})]
            case ShuttingDown():
                self._stopping = True
                return [SendRelease(event.reason)] if self.connected else []

    # -- questions, without consequences ---------------------------------------------------------

    def check_policy(self, name: str, factory: PolicyFactory) -> None:
        """Raise `NotOfferedError`, saying why, unless this policy can decide for the engine."""
        info = self.known()
        try:
            self._new_policy(factory)
        except PolicyError as error:
            raise NotOfferedError(f"{info.key} cannot have policy {name}: {error}") from error

    def follows(self, factory: PolicyFactory) -> bool:
        """Whether the acting policy is of this kind."""
        return self._factory == factory

    def stalled(self, now_ns: int) -> bool:
        """Whether requests run but no decode step finished for a while."""
        report = self.report
        if not self.connected or report is None or report.last_step_age_ns is None or not report.running_requests:
            return False
        age_s = (report.last_step_age_ns + now_ns - self.reported_at_ns) / 1e9
        return age_s > self.settings.stall_after_s

    # -- the stream ------------------------------------------------------------------------------

    def _connect(self, info: EngineInfo, now_ns: int) -> list[Effect]:
        before, told = self.info, self.profile
        restarted = before is not None and before.boot_id != info.boot_id
        self.profile = choose_profile(self.settings.profiles, info.cost_key)
        self.info, self.in_force = info, info.in_force
        self.connected, self.connected_at_ns, self.last_message_ns = True, now_ns, now_ns
        self.lease, self.acknowledged, self.refusal, self.report = None, False, "", None
        self._version = max(self._version, info.last_lease_version)
        if restarted:
            # Another process has another clock: the window would never empty.
            self.window = Window()
        if before is None and info.pin is not None:
            self.pin = StandingPin(info.pin, now_ns, _deadline(info.pin_remaining_s, now_ns))
        notes: list[Effect] = [Note("engine_connected", {"engine": str(info.key), "restarted": restarted})]
        if not info.acts:
            notes.append(Note("engine_observes", {"reasons": "; ".join(info.observe_reasons)}, warning=True))
        if self.profile != told:
            notes += self._profile_notes()
        same_costs = before is not None and self.profile == told and has_costs_of(info, before)
        if self.shadow is not None and (restarted or not same_costs or has_new_weights(info, before)):
            notes += self.shadow.begin(self._new_policy, keep=same_costs)
        return notes + self._keep_learning(before if same_costs else None) + self._decide(now_ns)

    def _profile_notes(self) -> list[Effect]:
        if self.profile.name:
            return [Note("profile_used", {"profile": self.profile.name})]
        return [Note("profile_ignored", {"why": self.profile.ignored}, warning=True)] if self.profile.ignored else []

    def _keep_learning(self, before: EngineInfo | None) -> list[Effect]:
        """Start the policy afresh, or go on from what it learned of an engine that was the same `before`.

        Within one run of the engine's process everything is kept. Over a restart, which brings acceptance back, only
        what does not depend on acceptance is; the same holds for new weights.
        """
        info, learned = self.known(), self._policy
        if before is None or learned is None:
            return self._build_policy()
        if before.boot_id != info.boot_id:
            return self._carry_over(learned)
        if before.cost_key.weight_version == info.cost_key.weight_version and before.resets == info.resets:
            return []
        learned.forget()
        return [Note("acceptance_forgotten", {"weight_version": info.cost_key.weight_version})]

    def _carry_over(self, learned: Policy) -> list[Effect]:
        """A new policy that goes on where the one of the engine's last run stood, except for acceptance."""
        notes = self._build_policy()
        if self._policy is None:
            return notes
        try:
            self._policy.restore(learned.snapshot())
        except PolicyError as error:
            return [*self._build_policy(), Note("learned_dropped", {"why": str(error)}, warning=True)]
        self._policy.forget()
        return [*notes, Note("learned_kept", {"policy": self.policy_name})]

    def _build_policy(self) -> list[Effect]:
        """Start the policy afresh; without one that can decide for this engine, the engine follows its own."""
        self.decision, self._policy = None, None
        try:
            self._policy = self._new_policy(self._factory)
        except PolicyError as error:
            return [Note("policy_unusable", {"policy": self.policy_name, "why": str(error)}, warning=True)]
        return []

    def _new_policy(self, factory: PolicyFactory) -> Policy | None:
        """A policy for this engine; None if it offers no modes to choose from."""
        info = self.known()
        if not info.modes:
            return None
        return factory(
            PolicyContext(
                modes=info.modes,
                bands=band_edges(info.graph_batch_sizes, info.max_running_requests),
                graph_batch_sizes=info.graph_batch_sizes,
                incumbent=self.in_force.mode,
                initial_steps=info.initial_steps,
                seed=self.settings.seed,
                block_verification=info.block_verification,
                profile=self.profile.profile,
                kv_capacity_tokens=info.kv_capacity_tokens,
            )
        )

    def _take_report(self, report: Report, now_ns: int) -> list[Effect]:
        last = self.report.seq if self.report else 0
        if report.seq <= last:
            self.refused["duplicate_report"] += 1
            return []
        if report.seq > last + 1:
            self.refused["missing_report"] += report.seq - last - 1
        self.report, self.reported_at_ns, self.last_message_ns = report, now_ns, now_ns
        reset = self._take_reset(report)
        notes = self._compare(report.in_force) + reset
        self.in_force = report.in_force
        self.window.add(report.rows, report.now_ns)
        # Rows beside a reset are from before and after it.
        if self.shadow is not None and not reset:
            notes += self.shadow.observe(report.rows, self.decision, now_ns)
        if self._policy is not None and not reset:
            self._policy.learn(report.rows)
        return notes + self._decide(now_ns)

    def _take_reset(self, report: Report) -> list[Effect]:
        """What was learned of acceptance no longer holds; with other weights perhaps not the profile either."""
        info, told = self.known(), self.profile
        if report.resets == info.resets:
            return []
        weights = report.weight_version or info.cost_key.weight_version
        self.info = replace(info, resets=report.resets, cost_key=replace(info.cost_key, weight_version=weights))
        self.profile = choose_profile(self.settings.profiles, self.info.cost_key)
        note = Note("acceptance_forgotten", {"why": report.reset_reason, "weight_version": weights})
        begun = self.shadow.begin(self._new_policy, keep=self.profile == told) if self.shadow is not None else []
        if self.profile != told:
            return [note, *self._profile_notes(), *self._build_policy(), *begun]
        if self._policy is not None:
            self._policy.forget()
        return [note, *begun]

    def _compare(self, now: InForce) -> list[Effect]:
        if now.fuse_reason and not self.in_force.fuse_reason:
            return [Note("engine_fuse_blown", {"reason": now.fuse_reason}, warning=True)]
        if now.source != self.in_force.source:
            return [Note("engine_source_changed", {"source": now.source.value, "mode": str(now.mode)})]
        return []

    def _take_answer(self, answer: Answered, now_ns: int) -> list[Effect]:
        self.last_message_ns = now_ns
        if self.lease is None or answer.nonce != self._nonce:
            return []
        self.acknowledged = answer.accepted
        if answer.accepted:
            self.refusal = ""
            return []
        self.refused[f"lease_{answer.refusal}"] += 1
        repeated = self.refusal != ""
        self.refusal = f"{answer.refusal}: {answer.detail}" if answer.detail else answer.refusal
        return (
            [] if repeated else [Note("lease_refused", {"version": answer.version, "why": self.refusal}, warning=True)]
        )

    # -- decisions -------------------------------------------------------------------------------

    def _tick(self, now_ns: int) -> list[Effect]:
        if self.pin and self.pin.deadline_ns is not None and now_ns >= self.pin.deadline_ns:
            return self._drop_pin("its time is over", now_ns)
        return self._renew(now_ns)

    def _set_pin(self, event: Pinned, now_ns: int) -> list[Effect]:
        self.pin = StandingPin(event.pin, now_ns, _deadline(event.duration_s, now_ns))
        note = Note("engine_pinned", {"mode": str(event.pin), "owner": event.pin.owner, "why": event.pin.reason})
        asked = self._ask_policy() if event.pin.range is not None else []
        return [note, *asked, *self._send(now_ns, changed=True)]

    def _drop_pin(self, why: str, now_ns: int) -> list[Effect]:
        if self.pin is None:
            return []
        pin, self.pin = self.pin.pin, None
        note = Note("engine_unpinned", {"mode": str(pin), "why": why})
        if self._policy is None:
            return [note, *self._let_go(pin.mode, now_ns)]
        return [note, *self._ask_policy(), *self._send(now_ns, changed=True)]

    def _let_go(self, mode: Mode, now_ns: int) -> list[Effect]:
        """Release a pin where no policy takes over: only a lease ends a pin, so one comes and goes at once."""
        self.decision = Decision((BandDecision(1, mode, "fallback"),))
        sent = self._send(now_ns, changed=True)
        self.decision, self.lease = None, None
        return [*sent, SendRelease("no policy decides for this engine")] if sent else []

    def _set_policy(self, event: PolicySet, now_ns: int) -> list[Effect]:
        self.policy_name, self._factory = event.name, event.factory
        notes = self._build_policy() if self.info is not None else []
        return [Note("policy_set", {"policy": event.name}), *notes, *self._decide(now_ns)]

    def _set_shadow(self, event: ShadowSet) -> list[Effect]:
        self.shadow = Shadow(event.name, event.factory)
        notes = self.shadow.begin(self._new_policy) if self.info is not None else []
        return [Note("shadow_set", {"policy": event.name}), *notes]

    def _drop_shadow(self) -> list[Effect]:
        shadow, self.shadow = self.shadow, None
        return [Note("shadow_dropped", {"policy": shadow.name})] if shadow else []

    def _swap_policies(self, now_ns: int) -> list[Effect]:
        other = self.shadow
        if other is None or other.policy is None:
            return []
        self.shadow = Shadow(self.policy_name, self._factory, self._policy)
        self.policy_name, self._factory, self._policy, self.decision = other.name, other.factory, other.policy, None
        return [Note("policy_set", {"policy": other.name, "before": self.shadow.name}), *self._decide(now_ns)]

    def _decide(self, now_ns: int) -> list[Effect]:
        """Ask the policy; send a new lease if its table differs from the last, or renew it."""
        return [*self._ask_policy(), *self._send_what_differs(now_ns)]

    def _ask_policy(self) -> list[Effect]:
        """The policy's decision; a note for every alarm that was not there before."""
        if self._policy is None:
            return []
        known = self.decision.alarms if self.decision else ()
        self.decision = self._within_pin(self._policy.choose())
        self.decisions += 1
        return [Note("policy_alarm", {"alarm": a}, warning=True) for a in self.decision.alarms if a not in known]

    def _within_pin(self, decision: Decision) -> Decision:
        """What the policy chose, kept within the steps that a pin leaves."""
        allowed = self.pin.pin.range if self.pin else None
        if allowed is None:
            return decision
        held = {entry.min_batch_size: entry.mode for entry in self.lease.table} if self.lease else {}
        return confined(decision, allowed, self.known().modes, held)

    def _send_what_differs(self, now_ns: int) -> list[Effect]:
        if self.pin is not None and (self.pin.pin.range is None or self.decision is None):
            return self._send(now_ns, changed=True) if self._pin_differs() else self._renew(now_ns)
        decision = self.decision
        if decision is None:
            # The engine may still hold a pin that was released while it was away.
            held = self.in_force.mode if self.in_force.pin_id else None
            return self._let_go(held, now_ns) if held else []
        last, wanted = self.lease, self._new_lease(decision)
        same = last is not None and replace(wanted, version=last.version, reason=last.reason) == last
        return self._renew(now_ns) if same else self._send(now_ns, changed=True)

    def _pin_differs(self) -> bool:
        return self.pin is not None and (self.lease is None or self.lease.pin != self.pin.pin)

    def _renew(self, now_ns: int) -> list[Effect]:
        due = now_ns - self._sent_at_ns >= self.settings.lease_ttl_s / 2 * 1e9
        return self._send(now_ns, changed=False) if due and self.lease is not None else []

    def _send(self, now_ns: int, changed: bool) -> list[Effect]:
        info = self.info
        if self._stopping or not self.connected or info is None or not info.acts:
            return []
        if self.decision is None and self.pin is None:
            return []
        if changed or self.lease is None:
            self._version += 1
            self.lease_since_ns = now_ns
            self.lease = self._new_lease(self.decision or NO_DECISION)
        self._nonce += 1
        self._sent_at_ns = now_ns
        remaining_s = self.pin.remaining_s(now_ns) if self.pin else None
        return [SendLease(self.lease, self._nonce, self.settings.lease_ttl_s, remaining_s)]

    def _new_lease(self, decision: Decision) -> Lease:
        reasons = Counter(band.reason for band in decision.bands)
        return Lease(
            version=self._version,
            table=decision.table,
            smoothing=decision.smoothing,
            hysteresis=decision.hysteresis,
            min_dwell_steps=decision.min_dwell_steps,
            exploration_seed=decision.exploration_seed,
            exploration_dwell_steps=decision.exploration_dwell_steps,
            pin=self.pin.pin if self.pin else None,
            reason="pin" if self.pin else f"{self.policy_name}: {', '.join(sorted(reasons))}",
        )


def has_new_weights(info: EngineInfo, before: EngineInfo | None) -> bool:
    """Whether the engine's weights are not those that it had before."""
    return before is None or info.cost_key.weight_version != before.cost_key.weight_version


def has_costs_of(info: EngineInfo, other: EngineInfo) -> bool:
    """Whether what was learned of step times of one engine holds for the other."""

    def decisive(engine: EngineInfo) -> tuple[object, ...]:
        key = replace(engine.cost_key, weight_version="")
        return key, engine.modes, engine.graph_batch_sizes, engine.max_running_requests, engine.block_verification

    return decisive(info) == decisive(other)


def _deadline(duration_s: float | None, now_ns: int) -> int | None:
    return None if duration_s is None else now_ns + round(duration_s * 1e9)
