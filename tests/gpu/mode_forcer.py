"""An SGLang plugin that loads Trimtab's without a controller: a file says which mode runs, another gets every row.

TRIMTAB_GPU_FOLDER holds `mode` (`plain_native`, `plain_warm`, `plain_cold`, `speculate(3)`, or what else
`forced_leases` knows; empty: SGLang's own) and gets `rows.csv` (a row a decode step), `facts.json` (what the engine
offers and what native plain takes) and `fuse` (why the plugin gave up, if it did).
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forced_leases import lease_of
from plugin_path import FOLDER
from trimtab_sglang import host
from trimtab_sglang.facts import EngineFacts
from trimtab_sglang.lease import PLAIN_NATIVE, Mode
from trimtab_sglang.plugin import Plugin
from trimtab_sglang.policy import MODES_BY_STEPS
from trimtab_sglang.ranks import Command, Order, Posted
from trimtab_sglang.rows import GRAPH, SWITCHED, Row, RowMaker
from trimtab_sglang.settings import PluginSettings

POLL_S = 0.005
COLUMNS = (
    "result_ns", "step_ns", "mode", "batch_size", "graph", "switched", "accepted", "missed_tokens", "caught_up_tokens",
    "catch_up_ns",
)  # fmt: skip


class Forcer:
    """Follows the `mode` file and writes rows, on a thread of its own in the scheduler's process."""

    def __init__(self, plugin: Plugin, facts: EngineFacts, folder: Path) -> None:
        self._plugin = plugin
        self._folder = folder
        self._modes = {str(mode): mode for mode in facts.modes}
        self._rows = RowMaker(plugin.recorder, facts.graph_batch_sizes, self._mode_of)
        self._wanted, self._version = "", 0

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="trimtab-forcer", daemon=True).start()

    def _run(self) -> None:
        with (self._folder / "rows.csv").open("w", buffering=1 << 16) as file:
            file.write(",".join(COLUMNS) + "\n")
            while True:
                time.sleep(POLL_S)
                self._follow()
                for row in self._rows.drain(4096):
                    file.write(_line(row))
                file.flush()
                if self._plugin.fuse.reason:
                    (self._folder / "fuse").write_text(self._plugin.fuse.reason)
                    return

    def _follow(self) -> None:
        wanted = (self._folder / "mode").read_text().strip()
        if wanted == self._wanted:
            return
        self._wanted, self._version = wanted, self._version + 1
        order = Command(Order.RELEASE)
        if wanted:
            order = Command(Order.ADOPT, lease=lease_of(wanted, self._modes, self._version))
        self._plugin.mailbox.post(Posted(order))

    def _mode_of(self, draft_tokens: int | None) -> Mode:
        return PLAIN_NATIVE if draft_tokens is None else MODES_BY_STEPS[self._plugin.steps_of(draft_tokens)]


def _line(row: Row) -> str:
    values = (
        row.result_ns, row.step_ns, row.mode, row.batch_size, int(bool(row.flags & GRAPH)),
        int(bool(row.flags & SWITCHED)), sum(row.accepted) + sum(row.stale_accepted), row.missed_tokens,
        row.caught_up_tokens, row.catch_up_ns,
    )  # fmt: skip
    return ",".join(map(str, values)) + "\n"


def _say(facts: EngineFacts, plugin: Plugin, folder: Path) -> None:
    plain = facts.plain
    told = {
        "sglang": facts.sglang_version,
        "device": facts.device_name,
        "modes": [str(mode) for mode in facts.modes],
        "refused": {str(mode): why for mode, why in plain.refused.items()},
        "observes": plugin.observe_reasons,
        "memory": None if plain.memory is None else {**asdict(plain.memory), "kv_tokens": plain.memory.kv_tokens},
        "kv_capacity_tokens": facts.kv_capacity_tokens,
    }
    (folder / "facts.json").write_text(json.dumps(told))


def register() -> None:
    """SGLang's entry point, in the place of Trimtab's own."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    folder = Path(os.environ[FOLDER])
    registry = host.SglangRegistry()
    plugin = Plugin(PluginSettings(controller="unix:/nowhere"), registry, ForwardMode.DECODE)
    # There is no controller to link to.
    plugin.started = True
    attach = plugin.attach

    def attach_and_force(scheduler: Any) -> None:
        attach(scheduler)
        assert plugin.facts is not None
        _say(plugin.facts, plugin, folder)
        Forcer(plugin, plugin.facts, folder).start()

    plugin.attach = attach_and_force  # type: ignore[method-assign]
    host.install(plugin, registry)
