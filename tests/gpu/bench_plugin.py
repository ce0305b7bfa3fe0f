"""An SGLang plugin for measurements: draws acceptance, records every result, swaps the table of SGLang's own rule.

It goes into every engine that is measured, with Trimtab and without, so that what it costs is the same for all. It
hooks no place that Trimtab hooks. TRIMTAB_BENCH_FOLDER holds what `bench_orders.py` describes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_orders import FOLDER, Desk
from drawn_acceptance import DrawnAcceptance
from step_recorder import StepRecorder

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
SAMPLE = "sglang.srt.speculative.eagle_utils.eagle_sample"
FORWARD = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.forward_batch_generation"
RETRACT = "sglang.srt.managers.schedule_batch.ScheduleBatch.retract_decode"


class StockTables:
    """SGLang's own rule under several tables: each keeps what it learned, and one of them is in force.

    Args:
        scheduler: With or without adaptive steps, under Trimtab or not.
    """

    def __init__(self, scheduler: Any) -> None:
        controller = getattr(getattr(scheduler, "draft_worker", None), "adaptive_controller", None)
        policy = getattr(controller, "params", None)
        # Under Trimtab SGLang's own policy is inside of ours.
        self._rule = getattr(policy, "stock", policy)
        self._kept: dict[str, Any] = {}

    def use(self, path: str) -> str:
        """Put the table of this file in force ("": SGLang's default); why it cannot be, or nothing."""
        rule = self._rule
        if rule is None:
            return "this engine has no adaptive rule"
        if path not in self._kept:
            fresh = type(rule)(max(rule.candidate_steps), path or None)
            lacking = sorted(set(fresh.candidate_steps) - set(rule.candidate_steps))
            if lacking:
                return f"the engine was built without steps {lacking}"
            self._kept[path] = (fresh._bs_list, fresh._slots)
        # Its `candidate_steps` were worked out at start-up and stay.
        rule._bs_list, rule._slots = self._kept[path]
        return ""


def register() -> None:
    """SGLang's entry point."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    folder = Path(os.environ[FOLDER])
    recorder, desk = StepRecorder(), Desk(folder)
    HookRegistry.register(f"{SCHEDULER}.process_batch_result", recorder.after_result, HookType.AFTER)
    HookRegistry.register(FORWARD, recorder.after_verify, HookType.AFTER)
    HookRegistry.register(RETRACT, recorder.after_retraction, HookType.AFTER)
    probabilities = desk.probabilities()
    if probabilities:
        acceptance = DrawnAcceptance(probabilities, desk.seed(), desk.phase)
        HookRegistry.register(SAMPLE, acceptance.around_sample, HookType.AROUND)
        HookRegistry.register(FORWARD, acceptance.before_forward, HookType.BEFORE)
    before_graphs: list[int] = []
    HookRegistry.register(
        f"{SCHEDULER}.init_all_cuda_graphs", lambda *_: before_graphs.append(_free_bytes()), HookType.BEFORE
    )
    HookRegistry.register(f"{SCHEDULER}.__init__", _attach(desk, recorder, before_graphs), HookType.AFTER)


def _attach(desk: Desk, recorder: StepRecorder, before_graphs: list[int]) -> Callable[..., None]:
    def after_init(_returned: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
        from sglang.version import __version__

        free = _free_bytes()
        desk.say_engine(
            sglang=__version__,
            device=_device(),
            kv_tokens=int(scheduler.max_total_num_tokens),
            # Graphs and whatever else was built with them; Trimtab's native plain as well.
            graph_bytes=max(before_graphs, default=free) - free,
            free_bytes=free,
        )
        desk.serve(recorder, StockTables(scheduler))

    return after_init


def _device() -> str:
    import torch

    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else "CPU"


def _free_bytes() -> int:
    import torch

    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else 0
