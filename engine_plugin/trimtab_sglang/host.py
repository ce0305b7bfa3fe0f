"""What is hooked in SGLang, in which versions, and the self-check: `python -m trimtab_sglang.host`."""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from trimtab_sglang import dp_attention, hooks, plain_check, target_scope
from trimtab_sglang.facts import HookStatus, sglang_version
from trimtab_sglang.policy import leased_policy_class
from trimtab_sglang.settings import PluginMode, PluginSettings, SettingError, read_settings
from trimtab_sglang.startup_check import Outcome, judge, start_settings
from trimtab_sglang.topology import SUPPORT

if TYPE_CHECKING:
    from trimtab_sglang.plugin import Plugin

# Versions whose names and signatures were compared with the table below.
KNOWN_VERSIONS = re.compile(r"0\.5\.(1[6-9]|2[0-3])(\D.*)?$|embedded$")

POLICY_CLASS = "sglang.srt.speculative.adaptive_spec_params.AdaptiveSpeculativeParams"


class HookKind(StrEnum):
    """When a hook runs; the values of SGLang's `HookType`."""

    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


class Registry(Protocol):
    """SGLang's `HookRegistry`, or another that applies hooks the same way."""

    def register(self, target: str, hook: Callable[..., Any], kind: HookKind) -> None:
        """Note a hook for `target`, a dotted path."""

    def resolve(self, target: str) -> Any:
        """The object at `target`; ImportError or AttributeError if this SGLang has none."""

    def applied(self, target: str) -> bool:
        """Whether the hooks of `target` are in place."""

    def bind(self, target: str, wrap: Callable[[hooks.Hook], hooks.Hook]) -> bool:
        """Put `wrap(original)` in the place of the applied hook, if ours is the only one; whether it was."""


@dataclass(frozen=True, slots=True)
class HookPlace:
    """One row of the hook table.

    Attributes:
        target: Dotted path in SGLang, the same from 0.5.16 to 0.5.23.
        kind: When the hook runs.
        build: Makes the hook for a plugin; for "around" takes the original as well and makes the method.
        parameters: What the target takes, by name; a target that takes anything else is not hooked.
        acting_only: Not needed to observe.
        optional: Not needed to act; a SGLang may lack the place.
    """

    target: str
    kind: HookKind
    build: Callable[..., hooks.Hook]
    parameters: tuple[str, ...] | None = None
    acting_only: bool = False
    optional: bool = False


MANAGERS = "sglang.srt.managers"
COMPONENTS = f"{MANAGERS}.scheduler_components"
UPDATER = f"{COMPONENTS}.weight_updater.SchedulerWeightUpdaterManager"
# What makes everything learned of the engine out of date.
RESETS = {
    f"{UPDATER}.update_weights_from_disk": "weights updated",
    f"{UPDATER}.update_weights_from_distributed": "weights updated",
    f"{UPDATER}.update_weights_from_tensor": "weights updated",
    f"{UPDATER}.update_weights_from_ipc": "weights updated",
    f"{UPDATER}.end_weight_update": "weights updated",
    f"{UPDATER}.resume_memory_occupation": "memory released and resumed",
    f"{MANAGERS}.scheduler.Scheduler.load_lora_adapter": "LoRA adapter loaded",
    f"{MANAGERS}.scheduler.Scheduler.load_lora_adapter_from_tensors": "LoRA adapter loaded",
    f"{MANAGERS}.scheduler.Scheduler.unload_lora_adapter": "LoRA adapter unloaded",
}
HOOK_TABLE: tuple[HookPlace, ...] = (
    HookPlace(f"{MANAGERS}.scheduler.Scheduler.__init__", HookKind.AFTER, hooks.after_scheduler_init),
    HookPlace(
        f"{MANAGERS}.scheduler.Scheduler.init_all_cuda_graphs",
        HookKind.AFTER,
        hooks.after_cuda_graphs,
        ("self",),
        acting_only=True,
        optional=True,
    ),
    HookPlace(
        f"{COMPONENTS}.request_receiver.SchedulerRequestReceiver._pull_raw_reqs",
        HookKind.AROUND,
        hooks.wrap_pull,
        ("self",),
    ),
    HookPlace(
        f"{MANAGERS}.scheduler.Scheduler.process_input_requests",
        HookKind.AROUND,
        hooks.wrap_process_requests,
        ("self", "recv_reqs"),
        acting_only=True,
    ),
    HookPlace(
        f"{MANAGERS}.scheduler.Scheduler.run_batch",
        HookKind.AROUND,
        hooks.wrap_run_batch,
        ("self", "batch", "pp_proxy_tensors"),
    ),
    HookPlace(
        f"{COMPONENTS}.batch_result_processor.SchedulerBatchResultProcessor.process_batch_result_decode",
        HookKind.AROUND,
        hooks.wrap_decode_result,
        ("self", "batch", "result"),
    ),
    HookPlace("sglang.srt.mem_cache.common.release_kv_cache", HookKind.BEFORE, hooks.before_release),
    HookPlace(
        "sglang.srt.speculative.adaptive_runtime_state.AdaptiveController.init_states",
        HookKind.AROUND,
        hooks.wrap_init_states,
        ("self", "cuda_graph_bs"),
        acting_only=True,
        optional=True,
    ),
    *(
        HookPlace(target, HookKind.AFTER, partial(hooks.after_reset, what=what), optional=True)
        for target, what in RESETS.items()
    ),
)
# Only where the operator wants to act under data-parallel attention.
DP_ATTENTION_TABLE: tuple[HookPlace, ...] = (
    HookPlace(dp_attention.EXCHANGE, HookKind.AFTER, dp_attention.after_exchange, acting_only=True),
    HookPlace(target_scope.CAPTURE, HookKind.AROUND, target_scope.wrap_capture, acting_only=True, optional=True),
)


def places(settings: PluginSettings) -> list[HookPlace]:
    """What is hooked under these settings, SGLang's policy class apart."""
    acting = settings.mode is PluginMode.ACT
    table = (*HOOK_TABLE, *(DP_ATTENTION_TABLE if settings.dp_attention else ()))
    return [place for place in table if acting or not place.acting_only]


def install(plugin: Plugin, registry: Registry) -> None:
    """Register every hook whose target this SGLang has; the others keep the plugin from acting."""
    if plugin.settings.mode is PluginMode.ACT:
        _replace_policy(plugin, registry)
        if plugin.settings.dp_attention and not _unfit(registry, dp_attention.REFUSAL):
            registry.register(dp_attention.REFUSAL, dp_attention.lift_refusal(plugin), HookKind.AROUND)
    for place in places(plugin.settings):
        if not _unfit(registry, place.target, place.parameters):
            registry.register(place.target, _hook(place, plugin), place.kind)


def bind_step_path(plugin: Plugin, registry: Registry) -> None:
    """Once all hooks are applied: put our methods in directly where nobody else hooks the same place."""
    for place in places(plugin.settings):
        if place.kind is HookKind.AROUND and registry.applied(place.target):
            registry.bind(place.target, partial(place.build, plugin))


def _hook(place: HookPlace, plugin: Plugin) -> hooks.Hook:
    if place.kind is HookKind.AROUND:
        return hooks.as_around(partial(place.build, plugin))
    return place.build(plugin)


def _replace_policy(plugin: Plugin, registry: Registry) -> None:
    if not _unfit(registry, POLICY_CLASS):
        stock_class = registry.resolve(POLICY_CLASS)
        registry.register(POLICY_CLASS, leased_policy_class(stock_class, plugin), HookKind.REPLACE)


def hook_status(registry: Registry, settings: PluginSettings) -> list[HookStatus]:
    """Every place that is to be hooked and whether our hook is in it; optional ones only where SGLang has them."""
    status = [_status(registry, POLICY_CLASS)] if settings.mode is PluginMode.ACT else []
    return status + [
        _status(registry, place.target, place.parameters, place.optional)
        for place in places(settings)
        if not place.optional or not _unfit(registry, place.target)
    ]


def _status(
    registry: Registry, target: str, parameters: tuple[str, ...] | None = None, optional: bool = False
) -> HookStatus:
    unfit = _unfit(registry, target, parameters)
    applied = not unfit and registry.applied(target)
    return HookStatus(target, applied, unfit or ("" if applied else "SGLang did not apply it"), optional)


def _unfit(registry: Registry, target: str, parameters: tuple[str, ...] | None = None) -> str:
    """Why there is nothing to hook at `target`; empty if there is."""
    try:
        found = registry.resolve(target)
        takes = tuple(inspect.signature(found).parameters) if parameters is not None else None
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        return f"this SGLang has no such place ({error})"
    return "" if takes == parameters else f"this SGLang's takes {takes}, not {parameters}"


def is_known(version: str) -> bool:
    """Whether the hook table was compared with this version of SGLang."""
    return KNOWN_VERSIONS.match(version) is not None


def split_target(target: str) -> tuple[Any, str]:
    """The object that holds what a dotted path names, and its name there."""
    owner, _, name = target.rpartition(".")
    return pkgutil.resolve_name(owner), name


def replace_wrapper(owner: Any, name: str, wrap: Callable[[hooks.Hook], hooks.Hook]) -> bool:
    """Replace the registry's wrapper around a function by `wrap(function)`; False if there is none."""
    original = getattr(getattr(owner, name), "__wrapped__", None)
    if original is None:
        return False
    setattr(owner, name, functools.wraps(original)(wrap(original)))
    return True


class SglangRegistry:
    """SGLang's own hook registry."""

    def register(self, target: str, hook: Callable[..., Any], kind: HookKind) -> None:
        """Register with SGLang; applied when it has loaded all plugins."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(target, hook, HookType(kind.value))

    def resolve(self, target: str) -> Any:
        """Import what `target` names."""
        return getattr(*split_target(target))

    def applied(self, target: str) -> bool:
        """Whether SGLang says so."""
        from sglang.srt.plugins.hook_registry import HookRegistry

        return target in getattr(HookRegistry, "_patched", ())

    def bind(self, target: str, wrap: Callable[[hooks.Hook], hooks.Hook]) -> bool:
        """Only where the registry has a single hook for the target."""
        from sglang.srt.plugins.hook_registry import HookRegistry

        only_ours = len(getattr(HookRegistry, "_hooks", {}).get(target, ())) == 1
        return only_ours and replace_wrapper(*split_target(target), wrap)


WOULD_BE_REFUSED = (
    (
        "--speculative-adaptive missing or turned off by SGLang",
        "its one step count and plain_native are offered; without plain_native it observes",
    ),
    ("a lease or pin for steps that are not candidates", "refused (NO_STATE); what ran before goes on"),
    (
        "plain_native and plain_cold with rejection sampling or block verification",
        "refused (NO_STATE): the next draft would be tested against stand-in probabilities",
    ),
    (
        "plain_native with pipeline parallelism, data-parallel attention, two-batch overlap, pdmux, LoRA, "
        "disaggregation, hierarchical sparse attention, encoder-decoder or hybrid (mamba) models",
        "refused (NO_STATE) until proven: plain_warm, SGLang's zero steps, is offered",
    ),
    ("plain_native where its memory does not fit", "refused (NO_STATE), with the reason in `trimtab show`"),
)


def server_check(flags: Sequence[str]) -> dict[str, Any]:
    """The verdict on a server that would be started with these flags; no weights are loaded.

    Raises:
        ImportError: SGLang is not installed.
        SystemExit: A flag that this SGLang does not know.
    """
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.speculative.adaptive_spec_params import resolve_candidate_steps_from_config

    parser = argparse.ArgumentParser(prog="python -m sglang.launch_server", add_help=False)
    ServerArgs.add_cli_args(parser)
    if "--config" in flags:
        from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger

        flags = ConfigArgumentMerger(parser).merge_config_with_args(list(flags))
    server = vars(parser.parse_args(list(flags)))
    steps = resolve_candidate_steps_from_config(server.get("speculative_adaptive_config"))
    verdict = judge(start_settings(server, steps))
    reserved = 2 * (max(steps) + 1) if verdict.acts else 0
    return {
        **asdict(verdict),
        "adaptive_asked_for": bool(server.get("speculative_adaptive")),
        "reserved_kv_tokens": reserved,
    }


def self_check() -> dict[str, Any]:
    """Load SGLang's plugins in this process, as its server does, and say what is in place."""
    settings, problem = None, ""
    try:
        settings = read_settings()
    except SettingError as error:
        problem = str(error)
    version = sglang_version()
    status: Sequence[HookStatus] = ()
    if version != "embedded" and settings is not None and settings.mode is not PluginMode.OFF:
        from sglang.srt.plugins import load_plugins

        load_plugins()
        status = hook_status(SglangRegistry(), settings)
    return {
        "sglang_version": version if version != "embedded" else None,
        "version_known": version != "embedded" and is_known(version),
        "mode": settings.mode.value if settings else None,
        "controller": settings.controller if settings else None,
        "problem": problem,
        "hooks": [asdict(s) for s in status],
        "topologies": [{"what": what, "outcome": outcome} for what, outcome in SUPPORT],
        "would_be_refused": [{"what": what, "outcome": outcome} for what, outcome in WOULD_BE_REFUSED],
    }


def render(check: dict[str, Any]) -> str:
    """The self-check for people."""
    version = check["sglang_version"]
    if version is None:
        return "SGLang is not installed in this environment: install Trimtab beside it."
    known = "known to this plugin" if check["version_known"] else "NOT known to this plugin: it will only observe"
    lines = [f"SGLang {version}: {known}"]
    if check["problem"]:
        lines.append(f"The plugin stays off: {check['problem']}")
    elif check["mode"] == PluginMode.OFF:
        lines.append("The plugin is off (TRIMTAB_MODE=off): nothing is hooked.")
    else:
        lines.append(f"Mode {check['mode']}, controller {check['controller']}")
    lines += [_render_hook(hook) for hook in check["hooks"]]
    lines.append("Ranks:")
    lines += [f"  {row['what']}: {row['outcome']}" for row in check["topologies"]]
    lines.append("What would be refused:")
    lines += [f"  {row['what']}: {row['outcome']}" for row in check["would_be_refused"]]
    return "\n".join(lines)


def render_server(check: dict[str, Any]) -> str:
    """The verdict on a server, for people."""
    lines = [f"A server with these flags: {check['outcome']}" + (f": {check['reason']}" if check["reason"] else "")]
    if check["fits"] and check["outcome"] in (Outcome.OK, Outcome.TRIM):
        lines.append(f"  steps under control: {', '.join(map(str, check['fits']))}")
        lines.append(f"  KV tokens kept free by each running request, in plain as well: {check['reserved_kv_tokens']}")
    if check["needs_rows"]:
        lines.append(f"  rows of logits that the widest graph writes: {check['needs_rows']}")
    if not check["adaptive_asked_for"]:
        lines.append("  --speculative-adaptive is missing: the server would run fixed steps")
    if check["offers_plain"]:
        lines.append("  native plain decoding does not depend on any of this")
    return "\n".join(lines)


def _render_hook(hook: dict[str, Any]) -> str:
    return f"  {'hooked ' if hook['applied'] else 'MISSING'} {hook['target']}" + (
        f": {hook['reason']}" if hook["reason"] else ""
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the self-check; exit status 1 if the plugin could not do what its mode asks for."""
    parser = argparse.ArgumentParser(prog="python -m trimtab_sglang.host", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print data")
    plain_check.add_options(parser)
    parser.add_argument(
        "--server", nargs=argparse.REMAINDER, metavar="FLAG", help="judge a server with these flags, before it starts"
    )
    options = parser.parse_args(arguments)
    if options.server is not None:
        return _print_server_check(options.server, options.json)
    try:
        plain = plain_check.expected(options)
    except ValueError as error:
        parser.error(str(error))
    check = self_check() | {"plain": plain_check.as_json(plain)}
    print(json.dumps(check, indent=2) if options.json else "\n".join([render(check), *plain_check.render(plain)]))
    healthy = (
        check["version_known"]
        and not check["problem"]
        and all(hook["applied"] or hook.get("optional", False) for hook in check["hooks"])
    )
    return 0 if healthy else 1


def _print_server_check(flags: Sequence[str], as_json: bool) -> int:
    """Exit status 1 if its steps would not be under control."""
    try:
        check = server_check(flags)
    except ImportError:
        print("SGLang is not installed in this environment: install Trimtab beside it.")
        return 1
    except (OSError, ValueError) as error:
        print(f"The flags cannot be used: {error}")
        return 1
    print(json.dumps(check, indent=2) if as_json else render_server(check))
    return 0 if check["outcome"] in (Outcome.OK, Outcome.TRIM) and check["adaptive_asked_for"] else 1


if __name__ == "__main__":
    sys.exit(main())
