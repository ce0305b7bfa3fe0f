"""What is hooked, what is not and why, and the self-check that says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.hooked_engine import UNLINKED, EmbeddedEngine, fresh_copy
from trimtab.demo.embedded_registry import EmbeddedRegistry
from trimtab_sglang import host
from trimtab_sglang.facts import HookStatus
from trimtab_sglang.host import HOOK_TABLE, POLICY_CLASS, HookKind
from trimtab_sglang.settings import PluginMode, PluginSettings

OBSERVING = PluginSettings(mode=PluginMode.OBSERVE, controller="unix:/nowhere/x.sock")
TARGETS = {place.target.rpartition(".")[2]: place.target for place in HOOK_TABLE}


def takes_more(original: Any) -> Any:
    def other(self: Any, batch: Any, result: Any, more: Any = None) -> Any:
        return original(self, batch, result)

    return other


# -- the hook table on an engine -----------------------------------------------------------------


def test_every_place_is_hooked_in_an_engine_that_has_them_all() -> None:
    plugin = EmbeddedEngine().plugin
    optional = {POLICY_CLASS: False} | {place.target: place.optional for place in HOOK_TABLE}
    assert plugin.hooks == [HookStatus(target, True, optional=optional[target]) for target in optional]
    assert plugin.acts
    assert not plugin.observe_reasons


def test_to_observe_neither_policy_nor_request_processing_is_touched() -> None:
    bare = fresh_copy()
    engine = EmbeddedEngine(OBSERVING)
    untouched = {TARGETS[name] for name in ("process_input_requests", "init_all_cuda_graphs", "init_states")}
    assert {hook.target for hook in engine.plugin.hooks} == set(TARGETS.values()) - untouched
    assert all(hook.applied for hook in engine.plugin.hooks)
    assert engine.plugin.observe_reasons == ["TRIMTAB_MODE=observe"]
    assert engine.plugin.policy is None
    assert engine.shape.Scheduler.process_input_requests.__code__ == bare.Scheduler.process_input_requests.__code__


def test_an_observing_plugin_records_and_changes_no_step() -> None:
    engine = EmbeddedEngine(OBSERVING)
    engine.admit(2)
    engine.decode(3)
    assert [(row.mode.steps, row.step) for row in engine.rows()] == [(3, 1), (3, 2), (3, 3)]


def test_a_place_that_is_missing_is_not_hooked_and_the_plugin_observes_and_says_so() -> None:
    engine = EmbeddedEngine(prepare=lambda shape: delattr(shape, "release_kv_cache"))
    reason = "this SGLang has no such place (module 'trimtab.demo.sglang_shape' has no attribute 'release_kv_cache')"
    assert HookStatus(TARGETS["release_kv_cache"], False, reason) in engine.plugin.hooks
    assert engine.plugin.observe_reasons == [f"hook not in place: {TARGETS['release_kv_cache']}: {reason}"]
    assert not engine.plugin.acts


def test_without_the_place_that_only_native_plain_needs_the_plugin_acts_all_the_same() -> None:
    def prepare(shape: Any) -> None:
        shape.Scheduler.init_all_cuda_graphs = lambda self, more=None: None

    plugin = EmbeddedEngine(prepare=prepare).plugin
    (missing,) = [hook for hook in plugin.hooks if not hook.applied]
    assert (missing.target, missing.optional) == (TARGETS["init_all_cuda_graphs"], True)
    assert plugin.acts


def test_a_place_that_is_not_needed_may_be_missing() -> None:
    engine = EmbeddedEngine(prepare=lambda shape: delattr(shape.SchedulerWeightUpdaterManager, "end_weight_update"))
    assert TARGETS["end_weight_update"] not in {hook.target for hook in engine.plugin.hooks}
    assert engine.plugin.acts


def test_a_place_that_is_not_needed_and_not_hooked_is_named_and_the_plugin_acts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    applied = EmbeddedRegistry.applied
    monkeypatch.setattr(EmbeddedRegistry, "applied", lambda self, t: applied(self, t) and "lora" not in t)
    engine = EmbeddedEngine()
    assert {hook.target for hook in engine.plugin.hooks if not hook.applied} == {
        target for name, target in TARGETS.items() if "lora" in name
    }
    assert engine.plugin.acts


def test_a_place_with_another_signature_is_not_hooked_and_the_plugin_observes_and_says_so() -> None:
    def prepare(shape: Any) -> None:
        processor = shape.SchedulerBatchResultProcessor
        processor.process_batch_result_decode = takes_more(processor.process_batch_result_decode)

    engine = EmbeddedEngine(prepare=prepare)
    (missing,) = [hook for hook in engine.plugin.hooks if not hook.applied]
    assert missing.target == TARGETS["process_batch_result_decode"]
    assert missing.reason == (
        "this SGLang's takes ('self', 'batch', 'result', 'more'), not ('self', 'batch', 'result')"
    )
    assert engine.plugin.observe_reasons == [f"hook not in place: {missing.target}: {missing.reason}"]
    engine.admit()
    engine.decode(3)
    assert engine.rows() == []
    assert not engine.plugin.fuse.blown


def test_a_place_that_is_no_function_is_not_hooked() -> None:
    engine = EmbeddedEngine(prepare=lambda shape: setattr(shape.Scheduler, "run_batch", 7))
    (missing,) = [hook for hook in engine.plugin.hooks if not hook.applied]
    assert missing.target == TARGETS["run_batch"]
    assert "is not a callable" in missing.reason


def test_a_hook_that_was_not_applied_is_named() -> None:
    registry = EmbeddedRegistry(fresh_copy())
    status = host.hook_status(registry, UNLINKED)
    assert {(hook.applied, hook.reason) for hook in status} == {(False, "SGLang did not apply it")}
    assert len(status) == len(HOOK_TABLE) + 1


def test_another_plugin_that_took_the_policy_is_noticed() -> None:
    engine = EmbeddedEngine()
    controller = engine.scheduler.draft_worker.adaptive_controller
    controller.params = controller.params.stock
    engine.plugin.attach(engine.scheduler)
    assert engine.plugin.observe_reasons == ["another plugin replaced SGLang's adaptive policy after this one"]


def test_the_class_that_is_replaced_is_kept_out_of_the_registrys_reach() -> None:
    engine = EmbeddedEngine(UNLINKED)
    policy: Any = engine.plugin.policy
    assert type(policy) is engine.shape.AdaptiveSpeculativeParams
    assert type(policy.stock) is not engine.shape.AdaptiveSpeculativeParams


# -- versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.5.16", "0.5.19", "0.5.20", "0.5.23", "0.5.23rc1", "0.5.16.post2", "embedded"])
def test_versions_that_the_table_was_compared_with(version: str) -> None:
    assert host.is_known(version)


@pytest.mark.parametrize("version", ["0.5.15", "0.5.24", "0.5.230", "0.6.16", "1.0.5.16", "0.5.1", "", "embedded2"])
def test_versions_that_it_was_not_compared_with(version: str) -> None:
    assert not host.is_known(version)


# -- the self-check ------------------------------------------------------------------------------


HEALTHY: dict[str, Any] = {
    "sglang_version": "0.5.23",
    "version_known": True,
    "mode": "act",
    "controller": "unix:/run/x.sock",
    "problem": "",
    "hooks": [
        {"target": "sglang.a.b", "applied": True, "reason": ""},
        {"target": "sglang.c.d", "applied": False, "reason": "SGLang did not apply it"},
    ],
    "topologies": [{"what": "one rank", "outcome": "acts"}],
    "would_be_refused": [{"what": "plain_native", "outcome": "refused (NO_STATE)"}],
}
PAGES: list[tuple[dict[str, Any], list[str]]] = [
    (
        {},
        [
            "SGLang 0.5.23: known to this plugin",
            "Mode act, controller unix:/run/x.sock",
            "  hooked  sglang.a.b",
            "  MISSING sglang.c.d: SGLang did not apply it",
            "Ranks:",
            "  one rank: acts",
            "What would be refused:",
            "  plain_native: refused (NO_STATE)",
        ],
    ),
    (
        {"sglang_version": "0.6.0", "version_known": False, "hooks": [], "would_be_refused": []},
        [
            "SGLang 0.6.0: NOT known to this plugin: it will only observe",
            "Mode act, controller unix:/run/x.sock",
            "Ranks:",
            "  one rank: acts",
            "What would be refused:",
        ],
    ),
    (
        {"problem": "TRIMTAB_MODE is 'on'", "mode": None, "hooks": [], "would_be_refused": []},
        [
            "SGLang 0.5.23: known to this plugin",
            "The plugin stays off: TRIMTAB_MODE is 'on'",
            "Ranks:",
            "  one rank: acts",
            "What would be refused:",
        ],
    ),
    (
        {"mode": "off", "hooks": [], "would_be_refused": []},
        [
            "SGLang 0.5.23: known to this plugin",
            "The plugin is off (TRIMTAB_MODE=off): nothing is hooked.",
            "Ranks:",
            "  one rank: acts",
            "What would be refused:",
        ],
    ),
    (
        {"sglang_version": None},
        ["SGLang is not installed in this environment: install Trimtab beside it."],
    ),
]


@pytest.mark.parametrize(("change", "lines"), PAGES)
def test_the_self_check_for_people(change: dict[str, Any], lines: list[str]) -> None:
    assert host.render({**HEALTHY, **change}).splitlines() == lines


def test_without_sglang_the_self_check_says_so_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert host.main([]) == 1
    assert capsys.readouterr().out.startswith("SGLang is not installed")
    assert host.main(["--json"]) == 1
    assert json.loads(capsys.readouterr().out)["sglang_version"] is None


def test_a_setting_that_cannot_be_used_is_in_the_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_MODE", "on")
    assert host.self_check()["problem"] == "TRIMTAB_MODE is 'on'; it takes off, observe or act"


def test_kinds_of_hooks_are_sglangs_own_words() -> None:
    assert [kind.value for kind in HookKind] == ["before", "after", "around", "replace"]
