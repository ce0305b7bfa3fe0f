"""What a session tells its policy of step times, and what it keeps of what the policy learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from support.step_rows import MadeUpEngine
from trimtab.domain import CostKey, EngineInfo, EngineKey, Mode, Report, StepRow, modes_of
from trimtab.errors import PolicyError
from trimtab.policies.contract import BandDecision, Decision, Policy, PolicyContext
from trimtab.policies.profile import ProfilePoint, profile_of
from trimtab.policies.registry import policy_factory
from trimtab.session.engine_session import EngineSession, SessionSettings
from trimtab.session.events import Connected, Effect, Note, Reported
from trimtab.session.profiles import KeyedProfile, ProfileChoice, choose_profile

MODES = modes_of([0, 1, 3])
KEY = CostKey("/models/8b", "v1", "/models/8b-eagle", "NVIDIA H200", "fa3", "bfloat16", "auto", 1, "0.5.23")
ENGINE = EngineInfo(EngineKey("e"), "boot-1", modes=MODES, graph_batch_sizes=(1, 2, 4, 8), cost_key=KEY)


def keyed(name: str, **key: Any) -> KeyedProfile:
    return KeyedProfile(name, CostKey(**key), profile_of([ProfilePoint(8, {mode: len(name) for mode in MODES})]))


H200 = keyed("h200", model="/models/8b", device_name="NVIDIA H200")
H100 = keyed("h100", model="/models/8b", device_name="NVIDIA H100")
LARGE = keyed("large", model="/models/70b", device_name="NVIDIA H100", tp_size=8)


class Spy:
    """A policy that remembers what happened to it; `snapshot` holds the steps it has seen."""

    name: ClassVar[str] = "spy"
    summary: ClassVar[str] = "looks on"

    def __init__(self, context: PolicyContext, agrees: bool = True) -> None:
        self.context = context
        self.agrees = agrees
        self.seen = 0
        self.forgot = 0

    def learn(self, rows: Sequence[StepRow]) -> None:
        self.seen += len(rows)

    def choose(self) -> Decision:
        return Decision((BandDecision(1, MODES[0], "fixed"),))

    def probability_of(self, batch_size: int, mode: Mode) -> float:
        return 1.0

    def forget(self) -> None:
        self.forgot += 1

    def snapshot(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        if not self.agrees:
            raise PolicyError("other bands: start afresh")
        self.seen = snapshot["seen"]


class Scene:
    """A session whose policies can be looked at."""

    def __init__(self, profiles: tuple[KeyedProfile, ...] = (), agrees: bool = True) -> None:
        self.policies: list[Spy] = []
        self.agrees = agrees
        self.session = EngineSession("spy", self._make, SessionSettings(profiles=profiles))
        self._now_ns = 0

    def _make(self, context: PolicyContext) -> Policy:
        self.policies.append(Spy(context, self.agrees))
        return self.policies[-1]

    def connect(self, info: EngineInfo) -> dict[str, Mapping[str, Any]]:
        """Say Hello; the notes by event."""
        return notes(self.session.step(Connected(info), self._tick()))

    def report(self, rows: int) -> None:
        """Report so many steps."""
        seq = self.session.report.seq + 1 if self.session.report else 1
        steps = MadeUpEngine(seed=1).report(lambda size: MODES[0], rows)
        self.session.step(Reported(Report(seq, self._tick(), tuple(steps))), self._tick())

    def _tick(self) -> int:
        self._now_ns += 1_000_000
        return self._now_ns


def notes(effects: Sequence[Effect]) -> dict[str, Mapping[str, Any]]:
    return {effect.event: effect.fields for effect in effects if isinstance(effect, Note)}


# -- which profile -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profiles", "name", "ignored"),
    [
        ((), "", ""),
        ((H100, H200), "h200", ""),
        ((keyed("any model", device_name="NVIDIA H200"), H200), "h200", ""),
        ((H200, keyed("again", model="/models/8b", device_name="NVIDIA H200")), "h200", ""),
        ((LARGE, H100), "", "h100: device_name is 'NVIDIA H100' there, 'NVIDIA H200' here"),
        (
            (keyed("old", model="/models/8b", sglang_version="0.4", tp_size=2),),
            "",
            "old: tp_size is 2 there, 1 here; sglang_version is '0.4' there, '0.5.23' here",
        ),
    ],
    ids=["none", "one holds", "the most exact", "the first of equals", "none holds", "two differences"],
)
def test_the_profile_whose_key_holds_is_used_and_otherwise_the_nearest_is_named(
    profiles: tuple[KeyedProfile, ...], name: str, ignored: str
) -> None:
    choice = choose_profile(profiles, KEY)
    assert (choice.name, choice.ignored) == (name, ignored)
    assert choice.profile is next((p.profile for p in profiles if p.name == name), None)


def test_what_the_engine_does_not_say_is_called_not_known() -> None:
    choice = choose_profile((H200,), CostKey(model="/models/8b"))
    assert choice == ProfileChoice(ignored="h200: device_name is 'NVIDIA H200' there, not known here")


def test_the_policy_is_told_the_profile_and_the_log_which_it_is() -> None:
    scene = Scene((H100, H200))
    said = scene.connect(replace(ENGINE, kv_capacity_tokens=4096))
    assert said["profile_used"] == {"profile": "h200"}
    (policy,) = scene.policies
    assert policy.context.profile is H200.profile
    assert policy.context.kv_capacity_tokens == 4096
    assert "profile_used" not in scene.connect(ENGINE), "said once"


def test_a_mismatch_is_ignored_and_said_once() -> None:
    scene = Scene((H100,))
    why = "h100: device_name is 'NVIDIA H100' there, 'NVIDIA H200' here"
    assert scene.connect(ENGINE)["profile_ignored"] == {"why": why}
    assert scene.session.profile.ignored == why
    assert scene.policies[0].context.profile is None
    assert "profile_ignored" not in scene.connect(ENGINE)


def test_an_engine_that_came_back_on_another_gpu_gets_its_profile_and_a_fresh_policy() -> None:
    scene = Scene((H100, H200))
    scene.connect(ENGINE)
    scene.report(10)
    moved = replace(ENGINE, boot_id="boot-2", cost_key=replace(KEY, device_name="NVIDIA H100"))
    assert scene.connect(moved)["profile_used"] == {"profile": "h100"}
    assert [policy.context.profile for policy in scene.policies] == [H200.profile, H100.profile]
    assert scene.policies[-1].seen == 0


# -- what is kept ------------------------------------------------------------------------------------


def test_a_reconnect_of_the_same_process_keeps_everything() -> None:
    scene = Scene()
    scene.connect(ENGINE)
    scene.report(10)
    scene.connect(ENGINE)
    (policy,) = scene.policies
    assert (policy.seen, policy.forgot) == (10, 0)


def test_a_restart_keeps_the_costs_and_forgets_acceptance() -> None:
    scene = Scene()
    scene.connect(ENGINE)
    scene.report(10)
    said = scene.connect(replace(ENGINE, boot_id="boot-2"))
    assert said["learned_kept"] == {"policy": "spy"}
    _, policy = scene.policies
    assert (policy.seen, policy.forgot) == (10, 1)


def test_new_weights_in_the_same_process_only_forget_acceptance() -> None:
    scene = Scene()
    scene.connect(ENGINE)
    scene.report(10)
    said = scene.connect(replace(ENGINE, cost_key=replace(KEY, weight_version="v2")))
    assert said["acceptance_forgotten"] == {"weight_version": "v2"}
    (policy,) = scene.policies
    assert (policy.seen, policy.forgot) == (10, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"cost_key": replace(KEY, attention_backend="triton")},
        {"cost_key": replace(KEY, sglang_version="0.5.24")},
        {"modes": modes_of([0, 1])},
        {"graph_batch_sizes": (1, 2, 4)},
        {"max_running_requests": 4},
        {"block_verification": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("boot_id", ["boot-1", "boot-2"])
def test_an_engine_whose_steps_cost_something_else_is_learned_afresh(changes: dict[str, Any], boot_id: str) -> None:
    scene = Scene()
    scene.connect(ENGINE)
    scene.report(10)
    said = scene.connect(replace(ENGINE, boot_id=boot_id, **changes))
    assert not {"learned_kept", "learned_dropped"} & said.keys()
    _, policy = scene.policies
    assert (policy.seen, policy.forgot) == (0, 0)


def test_what_a_policy_does_not_agree_to_is_dropped_and_said() -> None:
    scene = Scene(agrees=False)
    scene.connect(ENGINE)
    scene.report(10)
    said = scene.connect(replace(ENGINE, boot_id="boot-2"))
    assert said["learned_dropped"] == {"why": "other bands: start afresh"}
    assert scene.policies[-1].seen == 0


def test_goodput_knows_after_a_restart_what_steps_cost_and_not_what_is_accepted() -> None:
    session = EngineSession("goodput", policy_factory("goodput"))
    session.step(Connected(ENGINE), 0)
    engine = MadeUpEngine(seed=3, largest_batch=8)
    for seq in range(1, 60):
        rows = tuple(engine.report(lambda size: MODES[2]))
        session.step(Reported(Report(seq, seq, rows)), seq)
    learned = candidates(session)
    session.step(Connected(replace(ENGINE, boot_id="boot-2")), 100)
    kept = candidates(session)
    fresh_session = EngineSession("goodput", policy_factory("goodput"))
    fresh_session.step(Connected(replace(ENGINE, boot_id="boot-2")), 100)
    fresh = candidates(fresh_session)
    assert [ms for ms, _ in kept] == pytest.approx([ms for ms, _ in learned])
    assert [accepted for _, accepted in kept] == pytest.approx([accepted for _, accepted in fresh])
    assert [accepted for _, accepted in kept] != pytest.approx([accepted for _, accepted in learned], rel=0.01)


def candidates(session: EngineSession) -> list[tuple[float, float]]:
    """Step time and accepted drafts of every candidate in the first band."""
    assert session.decision is not None
    return [(c.step_ms or 0.0, c.accepted_drafts or 0.0) for c in session.decision.bands[0].candidates]
