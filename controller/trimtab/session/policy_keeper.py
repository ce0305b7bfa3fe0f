"""Which policy decides for an engine, and what it keeps of what it learned when one of them comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trimtab.domain import EngineInfo, Mode, StepRow
from trimtab.errors import PolicyError
from trimtab.policies.bands import band_edges
from trimtab.policies.contract import Decision, Policy, PolicyContext
from trimtab.policies.registry import PolicyFactory, policy_factory
from trimtab.session.events import Effect, Note
from trimtab.session.profiles import KeyedProfile, ProfileChoice, choose_profile
from trimtab.session.shadow import Make, Shadow
from trimtab.session.state import Learned, PolicyChoice, SessionState, ShadowState

# Keeps a decision within what the operator allows.
Limit = Callable[[Decision], Decision]


class PolicyKeeper:
    """Makes the policy of one engine, asks it, and carries what it learned over reconnects and restarts.

    Attributes:
        configured: The policy to begin with.
        choice: The policy that decides.
        profile: What it is told that steps cost.
        policy: The policy itself; None where none can decide for the engine.
        decision: Its last decision, or None.
        decisions: Times that a policy was asked.
        shadow: A policy on trial that is not followed, or None.
    """

    def __init__(
        self, choice: PolicyChoice, factory: PolicyFactory, profiles: Sequence[KeyedProfile], seed: int
    ) -> None:
        self.configured = self.choice = choice
        self.profile = ProfileChoice()
        self.policy: Policy | None = None
        self.decision: Decision | None = None
        self.decisions = 0
        self.shadow: Shadow | None = None
        self._factory = factory
        self._profiles = profiles
        self._seed = seed
        self._incumbent: Mode | None = None
        # What a controller that is gone learned, until the engine is back.
        self._waiting: Learned | None = None

    # -- the engine ------------------------------------------------------------------------------

    def meet(self, before: EngineInfo | None, info: EngineInfo) -> list[Effect]:
        """The engine is there: start the policy afresh, or go on from what it learned of the engine `before`."""
        told, notes = self.profile, self._remember(before)
        self.profile = choose_profile(self._profiles, info.cost_key)
        if self.profile != told:
            notes += self._profile_notes()
        same_costs = before is not None and self.profile == told and has_costs_of(info, before)
        if self.shadow is not None and (self.shadow.policy is None or not same_costs or has_new_state(info, before)):
            notes += self._begin_shadow(info, info.in_force.mode, keep=same_costs)
        return notes + self._keep_learning(before if same_costs else None, info)

    def reset(self, info: EngineInfo, mode: Mode | None, why: str) -> list[Effect]:
        """What was learned of acceptance no longer holds; with other weights perhaps not the profile either."""
        told, self.profile = self.profile, choose_profile(self._profiles, info.cost_key)
        same_costs = self.profile == told
        notes: list[Effect] = [
            Note("acceptance_forgotten", {"why": why, "weight_version": info.cost_key.weight_version})
        ]
        if not same_costs:
            notes += [*self._profile_notes(), *self._build(info, mode)]
        elif self.policy is not None:
            self.policy.forget()
        return notes + self._begin_shadow(info, mode, keep=same_costs)

    def change(
        self, choice: PolicyChoice, factory: PolicyFactory, info: EngineInfo | None, mode: Mode | None
    ) -> list[Effect]:
        """Another policy decides from now on; `mode` is the one in force."""
        self.choice, self._factory, self._waiting = choice, factory, None
        return self._build(info, mode) if info is not None else []

    def check(self, factory: PolicyFactory, info: EngineInfo, mode: Mode | None) -> None:
        """Raise `PolicyError` unless this policy can decide for the engine."""
        self._new_policy(factory, info, mode)

    def follows(self, factory: PolicyFactory) -> bool:
        """Whether the acting policy is of this kind."""
        return self._factory == factory

    # -- a policy beside -------------------------------------------------------------------------

    def set_shadow(
        self, choice: PolicyChoice, factory: PolicyFactory, info: EngineInfo | None, mode: Mode | None
    ) -> list[Effect]:
        """Another policy decides beside from now on, and learns afresh."""
        self.shadow = Shadow(choice, factory)
        return self._begin_shadow(info, mode) if info is not None else []

    def drop_shadow(self) -> list[Effect]:
        """No policy decides beside any more."""
        shadow, self.shadow = self.shadow, None
        return [Note("shadow_dropped", {"policy": shadow.name})] if shadow else []

    def swap(self, present: bool) -> list[Effect]:
        """The shadow acts, the acting policy is its shadow; nothing if the shadow cannot decide for an engine that is
        `present`.
        """
        other = self.shadow
        if other is None or (present and other.policy is None):
            return []
        self.shadow = Shadow(self.choice, self._factory, self.policy, self._incumbent, self._waiting)
        self.choice, self._factory, self.policy = other.choice, other.factory, other.policy
        self._incumbent, self._waiting, self.decision = other.incumbent, other.waiting, None
        return [Note("policy_set", {"policy": self.choice.name, "before": self.shadow.name})]

    # -- the policy ------------------------------------------------------------------------------

    def learn(self, rows: Sequence[StepRow], now_ns: int) -> list[Effect]:
        """Hand rows to the policy, and to the one beside it."""
        notes: list[Effect] = [*self.shadow.observe(rows, self.decision, now_ns)] if self.shadow is not None else []
        if self.policy is not None:
            self.policy.learn(rows)
        return notes

    def ask(self, limit: Limit) -> list[Effect]:
        """The policy's decision; a note for every alarm that was not there before."""
        if self.policy is None:
            return []
        known = self.decision.alarms if self.decision else ()
        self.decision = limit(self.policy.choose())
        self.decisions += 1
        return [Note("policy_alarm", {"alarm": a}, warning=True) for a in self.decision.alarms if a not in known]

    # -- its state -------------------------------------------------------------------------------

    def learned(self) -> Learned | None:
        """What the policy learned, as plain values."""
        if self.policy is None:
            return self._waiting
        return Learned(self._incumbent, self.policy.snapshot())

    def resume(self, state: SessionState, profile: ProfileChoice, limit: Limit) -> list[Effect]:
        """Go on from a state: at once, or when an engine comes back that was led by another run of the controller."""
        dropped = self._resume_shadow(state.shadow)
        if state.policy == state.configured != self.configured:
            why = f"the settings name policy {self.configured.name} now, with its parameters"
            return [*dropped, _dropped(why)] if state.learned else dropped
        try:
            self._take_factory(state.policy)
        except PolicyError as error:
            return [*dropped, _dropped(str(error))]
        self.profile, self._waiting, self.decisions = profile, state.learned, state.decisions
        if state.returning:
            return dropped
        notes = self._remember(state.info)
        self.decision = limit(self.policy.choose()) if self.policy else None
        return dropped + notes

    def _resume_shadow(self, state: ShadowState | None) -> list[Effect]:
        if state is None:
            return []
        try:
            factory = policy_factory(state.policy.name, state.policy.parameters)
        except PolicyError as error:
            return [Note("shadow_dropped", {"policy": state.policy.name, "why": str(error)}, warning=True)]
        self.shadow = Shadow(state.policy, factory)
        self.shadow.resume(state)
        return []

    def _take_factory(self, choice: PolicyChoice) -> None:
        if choice != self.choice:
            self._factory = policy_factory(choice.name, choice.parameters)
            self.choice = choice

    def _remember(self, info: EngineInfo | None) -> list[Effect]:
        """The policy as it was when the state was written down, of the engine as it was then."""
        learned, self._waiting = self._waiting, None
        if info is not None and self.shadow is not None:
            self.shadow.remember(self._make(info))
        if learned is None or info is None:
            return []
        notes = self._build(info, learned.incumbent)
        return notes + self._restore(learned.snapshot, info, learned.incumbent)

    def _restore(self, snapshot: Mapping[str, Any], info: EngineInfo, incumbent: Mode | None) -> list[Effect]:
        """Go on from the snapshot; if that cannot be, begin afresh and say so."""
        if self.policy is None:
            return []
        try:
            self.policy.restore(snapshot)
        except PolicyError as error:
            return [*self._build(info, incumbent), _dropped(str(error))]
        return []

    # -- inside ----------------------------------------------------------------------------------

    def _profile_notes(self) -> list[Effect]:
        if self.profile.name:
            return [Note("profile_used", {"profile": self.profile.name})]
        return [Note("profile_ignored", {"why": self.profile.ignored}, warning=True)] if self.profile.ignored else []

    def _keep_learning(self, before: EngineInfo | None, info: EngineInfo) -> list[Effect]:
        """Within one run of the engine's process everything is kept. Over a restart, which brings acceptance back, only
        what does not depend on acceptance is; the same holds for new weights.
        """
        mode, learned = info.in_force.mode, self.policy
        if before is None or learned is None:
            return self._build(info, mode)
        if before.boot_id != info.boot_id:
            return self._carry_over(learned, info, mode)
        if not has_new_state(info, before):
            return []
        learned.forget()
        return [Note("acceptance_forgotten", {"weight_version": info.cost_key.weight_version})]

    def _carry_over(self, learned: Policy, info: EngineInfo, mode: Mode | None) -> list[Effect]:
        """A new policy that goes on where the one of the engine's last run stood, except for acceptance."""
        notes = self._build(info, mode)
        if self.policy is None:
            return notes
        dropped = self._restore(learned.snapshot(), info, mode)
        if dropped:
            return notes + dropped
        self.policy.forget()
        return [*notes, Note("learned_kept", {"policy": self.choice.name})]

    def _build(self, info: EngineInfo, mode: Mode | None) -> list[Effect]:
        """Start the policy afresh; without one that can decide for this engine, the engine follows its own."""
        self.decision, self.policy, self._incumbent = None, None, mode
        try:
            self.policy = self._new_policy(self._factory, info, mode)
        except PolicyError as error:
            return [Note("policy_unusable", {"policy": self.choice.name, "why": str(error)}, warning=True)]
        return []

    def _begin_shadow(self, info: EngineInfo, mode: Mode | None, keep: bool = False) -> list[Effect]:
        return [*self.shadow.begin(self._make(info), mode, keep)] if self.shadow is not None else []

    def _make(self, info: EngineInfo) -> Make:
        return lambda factory, mode: self._new_policy(factory, info, mode)

    def _new_policy(self, factory: PolicyFactory, info: EngineInfo, mode: Mode | None) -> Policy | None:
        """A policy for this engine; None if it offers no modes to choose from."""
        if not info.modes:
            return None
        return factory(
            PolicyContext(
                modes=info.modes,
                bands=band_edges(info.graph_batch_sizes, info.max_running_requests),
                graph_batch_sizes=info.graph_batch_sizes,
                incumbent=mode,
                initial_steps=info.initial_steps,
                seed=self._seed,
                block_verification=info.block_verification,
                profile=self.profile.profile,
                kv_capacity_tokens=info.kv_capacity_tokens,
            )
        )


def has_new_state(info: EngineInfo, before: EngineInfo | None) -> bool:
    """Whether what was learned of acceptance of the engine as it was `before` is void: another process, other weights,
    or a reset.
    """

    def decisive(engine: EngineInfo) -> tuple[object, ...]:
        return engine.boot_id, engine.cost_key.weight_version, engine.resets

    return before is None or decisive(info) != decisive(before)


def has_costs_of(info: EngineInfo, other: EngineInfo) -> bool:
    """Whether what was learned of step times of one engine holds for the other."""

    def decisive(engine: EngineInfo) -> tuple[object, ...]:
        key = replace(engine.cost_key, weight_version="")
        return key, engine.modes, engine.graph_batch_sizes, engine.max_running_requests, engine.block_verification

    return decisive(info) == decisive(other)


def _dropped(why: str) -> Note:
    return Note("learned_dropped", {"why": why}, warning=True)
