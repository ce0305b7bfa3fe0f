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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trimtab.domain import EngineInfo, InForce, Lease, Mode, Report
from trimtab.errors import NotOfferedError, PolicyError
from trimtab.policies.contract import BandDecision, Decision
from trimtab.policies.registry import PolicyFactory
from trimtab.session.agreement import ALARM, Disagreement, disagreement, safe_pin
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
    Resumed,
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
from trimtab.session.policy_keeper import PolicyKeeper
from trimtab.session.profiles import KeyedProfile, ProfileChoice
from trimtab.session.shadow import Shadow
from trimtab.session.state import PolicyChoice, SessionState, StandingPin, deadline_ns

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


class EngineSession(Offers):
    """Decides what one engine is told.

    Attributes:
        info: What the engine said of itself at its last Hello, or None before the first.
        connected: Whether its stream is open.
        in_force: What it runs, by its last message.
        pin: The operator's standing order, or None.
        lease: The last lease sent on this stream, or None.
        acknowledged: Whether the engine accepted that lease.
        refusal: Why it refused the last one; empty if it did not.
        refused: Messages and leases refused so far, by reason.
        divergence: What the engine's ranks disagreed about in this run of it, or None.
        report: The last report, or None; `reported_at_ns` is when it came.
    """

    def __init__(
        self,
        policy_name: str,
        factory: PolicyFactory,
        settings: SessionSettings | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin without an engine; `parameters` are those that `factory` gives the policy."""
        super().__init__()
        self.settings = settings or SessionSettings()
        self.connected = False
        self.connected_at_ns = 0
        self.last_message_ns = 0
        self.in_force = InForce()
        self.pin: StandingPin | None = None
        self.lease: Lease | None = None
        self.lease_since_ns = 0
        self.acknowledged = False
        self.refusal = ""
        self.refused: Counter[str] = Counter()
        self.divergence: Disagreement | None = None
        self.report: Report | None = None
        self.reported_at_ns = 0
        self.window = Window()
        choice = PolicyChoice(policy_name, parameters or {})
        self._keeper = PolicyKeeper(choice, factory, self.settings.profiles, self.settings.seed)
        self._released_pin = ""
        self._returning = False
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
                return self._keeper.drop_shadow()
            case PoliciesSwapped():
                return self._swap_policies(now_ns)
            case Disconnected():
                self.connected = False
                return [Note("engine_disconnected", {"reason": event.reason})]
            case ShuttingDown():
                self._stopping = True
                return [SendRelease(event.reason)] if self.connected else []
            case Resumed():
                return self._resume(event)

    # -- questions, without consequences ---------------------------------------------------------

    @property
    def alarms(self) -> tuple[str, ...]:
        """What an operator should look at."""
        found = self.decision.alarms if self.decision else ()
        return found if self.divergence is None else (*found, ALARM)

    @property
    def policy_name(self) -> str:
        """Name of the policy that decides."""
        return self._keeper.choice.name

    @property
    def configured(self) -> PolicyChoice:
        """The policy that the session began with."""
        return self._keeper.configured

    @property
    def decision(self) -> Decision | None:
        """The policy's last decision, or None."""
        return self._keeper.decision

    @property
    def decisions(self) -> int:
        """Times that a policy was asked."""
        return self._keeper.decisions

    @property
    def profile(self) -> ProfileChoice:
        """What the policy is told that steps cost."""
        return self._keeper.profile

    @property
    def shadow(self) -> Shadow | None:
        """A policy on trial that is not followed, or None."""
        return self._keeper.shadow

    def state(self) -> SessionState:
        """Everything that decides what comes next; `Resumed` with it goes on from here."""
        return SessionState(
            configured=self._keeper.configured,
            policy=self._keeper.choice,
            info=self.info,
            learned=self._keeper.learned(),
            connected=self.connected,
            connected_at_ns=self.connected_at_ns,
            last_message_ns=self.last_message_ns,
            in_force=self.in_force,
            decisions=self.decisions,
            pin=self.pin,
            released_pin=self._released_pin,
            lease=self.lease,
            lease_since_ns=self.lease_since_ns,
            acknowledged=self.acknowledged,
            refusal=self.refusal,
            refused=dict(self.refused),
            report=replace(self.report, rows=()) if self.report else None,
            reported_at_ns=self.reported_at_ns,
            version=self._version,
            nonce=self._nonce,
            sent_at_ns=self._sent_at_ns,
            stopping=self._stopping,
            returning=self._returning,
            divergence=self.divergence,
            shadow=self.shadow.state() if self.shadow else None,
        )

    def check_policy(self, name: str, factory: PolicyFactory) -> None:
        """Raise `NotOfferedError`, saying why, unless this policy can decide for the engine."""
        info = self.known()
        try:
            self._keeper.check(factory, info, self.in_force.mode)
        except PolicyError as error:
            raise NotOfferedError(f"{info.key} cannot have policy {name}: {error}") from error

    def follows(self, factory: PolicyFactory) -> bool:
        """Whether the acting policy is of this kind."""
        return self._keeper.follows(factory)

    def stalled(self, now_ns: int) -> bool:
        """Whether requests run but no decode step finished for a while."""
        report = self.report
        if not self.connected or report is None or report.last_step_age_ns is None or not report.running_requests:
            return False
        age_s = (report.last_step_age_ns + now_ns - self.reported_at_ns) / 1e9
        return age_s > self.settings.stall_after_s

    # -- the stream ------------------------------------------------------------------------------

    def _connect(self, info: EngineInfo, now_ns: int) -> list[Effect]:
        before = self.info
        restarted = before is not None and before.boot_id != info.boot_id
        self.info, self.in_force = info, info.in_force
        self.connected, self.connected_at_ns, self.last_message_ns = True, now_ns, now_ns
        self.lease, self.acknowledged, self.refusal, self.report = None, False, "", None
        self._version = max(self._version, info.last_lease_version)
        if restarted:
            # Another process has another clock: the window would never empty.
            self.window = Window()
            self.divergence = None
        if before is None or self._returning:
            self._adopt_pin(info, now_ns)
        self._returning = False
        notes: list[Effect] = [Note("engine_connected", {"engine": str(info.key), "restarted": restarted})]
        if not info.acts:
            notes.append(Note("engine_observes", {"reasons": "; ".join(info.observe_reasons)}, warning=True))
        return notes + self._keeper.meet(before, info) + self._decide(now_ns)

    def _adopt_pin(self, info: EngineInfo, now_ns: int) -> None:
        """Take over a pin that the engine holds and nobody ordered here."""
        if self.pin is None and info.pin is not None and info.pin.id != self._released_pin:
            self.pin = StandingPin(info.pin, now_ns, deadline_ns(info.pin_remaining_s, now_ns))

    def _resume(self, event: Resumed) -> list[Effect]:
        state = event.state
        self.info, self.in_force = state.info, state.in_force
        self.connected, self._stopping = state.connected, state.stopping
        self.connected_at_ns, self.last_message_ns = state.connected_at_ns, state.last_message_ns
        self.pin, self._released_pin = state.pin, state.released_pin
        self.lease, self.lease_since_ns = state.lease, state.lease_since_ns
        self.acknowledged, self.refusal, self.refused = state.acknowledged, state.refusal, Counter(state.refused)
        self.report, self.reported_at_ns = state.report, state.reported_at_ns
        self._version, self._nonce, self._sent_at_ns = state.version, state.nonce, state.sent_at_ns
        self._returning, self.divergence = state.returning, state.divergence
        return self._keeper.resume(state, event.profile, self._within_pin)

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
        notes += self._watch_ranks(report, now_ns)
        self.window.add(report.rows, report.now_ns)
        if not reset:
            # Rows beside a reset are from before and after it.
            notes += self._keeper.learn(report.rows, now_ns)
        return notes + self._decide(now_ns)

    def _take_reset(self, report: Report) -> list[Effect]:
        info = self.known()
        if report.resets == info.resets:
            return []
        weights = report.weight_version or info.cost_key.weight_version
        self.info = replace(info, resets=report.resets, cost_key=replace(info.cost_key, weight_version=weights))
        return self._keeper.reset(self.info, self.in_force.mode, report.reset_reason)

    def _compare(self, now: InForce) -> list[Effect]:
        if now.fuse_reason and not self.in_force.fuse_reason:
            return [Note("engine_fuse_blown", {"reason": now.fuse_reason}, warning=True)]
        if now.source != self.in_force.source:
            return [Note("engine_source_changed", {"source": now.source.value, "mode": str(now.mode)})]
        return []

    def _watch_ranks(self, report: Report, now_ns: int) -> list[Effect]:
        """Ranks that no longer choose the same are held in one mode, once, and somebody is told."""
        found = disagreement(report.ranks) if report.ranks and self.divergence is None else None
        if found is None:
            return []
        self.divergence = found
        note = Note(ALARM, {"step": found.step, "what": found.what}, warning=True)
        pin = safe_pin(found, self.known(), report.in_force) if self.pin is None else None
        return [note] if pin is None else [note, *self._set_pin(Pinned(pin), now_ns)]

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
        self.pin = StandingPin(event.pin, now_ns, deadline_ns(event.duration_s, now_ns))
        note = Note("engine_pinned", {"mode": str(event.pin), "owner": event.pin.owner, "why": event.pin.reason})
        asked = self._ask_policy() if event.pin.range is not None else []
        return [note, *asked, *self._send(now_ns, changed=True)]

    def _drop_pin(self, why: str, now_ns: int) -> list[Effect]:
        if self.pin is None:
            return []
        pin, self.pin = self.pin.pin, None
        self._released_pin = pin.id
        note = Note("engine_unpinned", {"mode": str(pin), "why": why})
        if self._keeper.policy is None:
            return [note, *self._let_go(pin.mode, now_ns)]
        return [note, *self._ask_policy(), *self._send(now_ns, changed=True)]

    def _let_go(self, mode: Mode, now_ns: int) -> list[Effect]:
        """Release a pin where no policy takes over: only a lease ends a pin, so one comes and goes at once."""
        sent = self._send(now_ns, changed=True, table=Decision((BandDecision(1, mode, "fallback"),)))
        self.lease = None
        return [*sent, SendRelease("no policy decides for this engine")] if sent else []

    def _set_policy(self, event: PolicySet, now_ns: int) -> list[Effect]:
        choice = PolicyChoice(event.name, event.parameters)
        notes = self._keeper.change(choice, event.factory, self._present(), self.in_force.mode)
        return [Note("policy_set", {"policy": event.name}), *notes, *self._decide(now_ns)]

    def _set_shadow(self, event: ShadowSet) -> list[Effect]:
        choice = PolicyChoice(event.name, event.parameters)
        notes = self._keeper.set_shadow(choice, event.factory, self._present(), self.in_force.mode)
        return [Note("shadow_set", {"policy": event.name}), *notes]

    def _swap_policies(self, now_ns: int) -> list[Effect]:
        notes = self._keeper.swap(present=self._present() is not None)
        return [*notes, *self._decide(now_ns)] if notes else []

    def _present(self) -> EngineInfo | None:
        """The engine as policies are made for it; for one that is not back yet they are made when it is."""
        return None if self._returning else self.info

    def _decide(self, now_ns: int) -> list[Effect]:
        """Ask the policy; send a new lease if its table differs from the last, or renew it."""
        return [*self._ask_policy(), *self._send_what_differs(now_ns)]

    def _ask_policy(self) -> list[Effect]:
        return self._keeper.ask(self._within_pin)

    def _within_pin(self, decision: Decision) -> Decision:
        """What the policy chose, kept within the steps that a pin leaves."""
        allowed = self.pin.pin.range if self.pin else None
        modes = [mode for mode in self.known().modes if allowed is not None and mode in allowed]
        if allowed is None or not modes:
            # An engine that came back without any of these steps refuses the pin; the policy has to go on.
            return decision
        held = {entry.min_batch_size: entry.mode for entry in self.lease.table} if self.lease else {}
        return confined(decision, allowed, modes, held)

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

    def _send(self, now_ns: int, changed: bool, table: Decision | None = None) -> list[Effect]:
        info, table = self.info, table or self.decision
        if self._stopping or not self.connected or info is None or not info.acts:
            return []
        if table is None and self.pin is None:
            return []
        if changed or self.lease is None:
            self._version += 1
            self.lease_since_ns = now_ns
            self.lease = self._new_lease(table or NO_DECISION)
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
