"""Checks, inside the engine environment, that what an engine needs is there. Prints one line a problem."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, entry_points, version

PLUGIN_GROUP = "sglang.srt.plugins"
PLUGINS = ("sglang_cpu", "step_log", "launch_log", "rank_faults", "trimtab")


def problems(sglang_version: str) -> list[str]:
    """What is wrong with this environment, for people; empty if nothing."""
    found = []
    try:
        installed = version("sglang")
    except PackageNotFoundError:
        return ["SGLang is not installed"]
    if installed != sglang_version:
        found.append(f"SGLang is {installed}, wanted {sglang_version}")
    names = {plugin.name for plugin in entry_points(group=PLUGIN_GROUP)}
    found += [f"the plugin {name} is not installed: SGLang would not load it" for name in PLUGINS if name not in names]
    for module in ("sglang_cpu.boot", "sgl_kernel", "sglang.srt.plugins.hook_registry", "trimtabpb.v1.control_pb2"):
        try:
            __import__(module)
        except Exception as error:  # noqa: BLE001
            found.append(f"{module} does not import: {type(error).__name__}: {error}")
    return found


if __name__ == "__main__":
    found = problems(sys.argv[1])
    for problem in found:
        print(problem, file=sys.stderr)
    sys.exit(1 if found else 0)
