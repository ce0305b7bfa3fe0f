"""Builds, while the server starts, what native and cold plain run on; and says why where it cannot.

Runs in every rank, after SGLang has captured its own graphs and in the same order everywhere.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trimtab_sglang.plain_memory import MIB, PlainMemory, row_bytes, window_for
from trimtab_sglang.plain_offer import why_not_native

if TYPE_CHECKING:
    from trimtab_sglang.catch_up import CatchUp
    from trimtab_sglang.native_round import NativeRound
    from trimtab_sglang.settings import PluginSettings

logger = logging.getLogger("trimtab")

# SGLang reads it in every round of zero steps.
SKIP_DRAFT_EXTEND = "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"


def can_skip_draft_extend() -> bool:
    """Whether this version of SGLang reads the switch for cold plain."""
    try:
        from sglang.srt.environ import envs
    except ImportError:
        return False
    return hasattr(envs, SKIP_DRAFT_EXTEND)


def draft_extend_skipped() -> bool:
    """Whether rounds of zero steps leave the draft model out now."""
    return os.environ.get(SKIP_DRAFT_EXTEND, "").lower() in ("1", "true", "yes", "y") and can_skip_draft_extend()


class DeviceRounds:
    """What runs on the device. Owned by the scheduler thread.

    Args:
        worker: SGLang's draft worker.
        native: Runs native rounds; None where they are refused.
        catch_up: Catches up after them.
        window: Tokens that a request may miss before it must catch up.

    Attributes:
        skips_by_default: Whether the operator had rounds of zero steps leave the draft model out.
    """

    def __init__(
        self, worker: Any, native: NativeRound | None = None, catch_up: CatchUp | None = None, window: int = 0
    ) -> None:
        self.window = window
        self._worker = worker
        self._native = native
        self._catch_up = catch_up
        self._controller = getattr(worker, "adaptive_controller", None)
        self._widest = max(self._controller.candidate_steps) if self._controller is not None else 0
        self.skips_by_default = draft_extend_skipped()

    def native(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a native round; SGLang's result."""
        assert self._native is not None
        return self._native.run(batch, *args, **kwargs)

    def widen(self) -> None:
        """Put the worker into its widest state, in which a catch-up takes the fewest chunks."""
        if self._controller is not None and self._worker.speculative_num_steps != self._widest:
            self._controller._activate(self._widest)

    def catch_up(self, batch: Any, missed: Sequence[int]) -> Callable[[], int]:
        """Catch the batch up; what tells, once its result is in, how many ns it took."""
        assert self._catch_up is not None
        clock = _DeviceClock(batch.seq_lens)
        self._catch_up.run(batch, missed)
        return clock.stop()

    def skip_draft_extend(self, skip: bool) -> None:
        """Whether rounds of zero steps leave the draft model out from now on."""
        os.environ[SKIP_DRAFT_EXTEND] = "1" if skip else "0"


class _DeviceClock:
    """Measures what is launched between two points on the device of a tensor, without waiting for it."""

    def __init__(self, tensor: Any) -> None:
        self._events: tuple[Any, Any] | None = None
        if tensor.is_cuda:
            import torch

            self._events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._events[0].record()
        self._began_ns = time.perf_counter_ns()

    def stop(self) -> Callable[[], int]:
        """The second point; what tells how long it took, asked for when both lie behind."""
        if self._events is None:
            took_ns = time.perf_counter_ns() - self._began_ns
            return lambda: took_ns
        began, ended = self._events
        ended.record()
        return lambda: round(began.elapsed_time(ended) * 1e6)


class PlainStart:
    """What came of building native plain.

    Attributes:
        rounds: What native rounds and catch-ups run on; None where they are refused.
        refusal: Why; empty where they are not.
        memory: What they take.
    """

    def __init__(self, refusal: str = "SGLang built no speculative worker that is known here") -> None:
        self.rounds: DeviceRounds | None = None
        self.refusal = refusal
        self.memory: PlainMemory | None = None

    def build(self, worker: Any, server: Mapping[str, Any], settings: PluginSettings) -> None:
        """Build for this worker, whose own graphs are captured. Whatever fails becomes the refusal.

        Args:
            worker: SGLang's draft worker; None without speculation.
            server: SGLang's settings as resolved.
            settings: The plugin's.
        """
        try:
            off = "" if settings.native_plain else "TRIMTAB_NATIVE_PLAIN=0"
            self.refusal = off or why_not_native(server, worker, os.environ)
            if not self.refusal:
                self._build(worker, settings.catch_up_mib * MIB)
        except Exception as error:
            self.rounds = self.memory = None
            self.refusal = f"{type(error).__name__}: {error}"[:200]
            logger.warning("trimtab offers no native plain: %s", self.refusal, exc_info=error)

    def _build(self, worker: Any, budget_bytes: int) -> None:
        began = time.perf_counter()
        ring_memory, ring_arguments = _plan_ring(worker, budget_bytes)
        if not ring_memory.window_tokens:
            self.refusal = _too_small(budget_bytes, ring_arguments)
            return
        # Not at the top: they import torch and SGLang, and the self-check does without.
        import torch

        from trimtab_sglang.catch_up import CatchUp, HiddenRing
        from trimtab_sglang.decode_graph import capture_decode_graph
        from trimtab_sglang.native_round import NativeRound

        with torch.no_grad():
            graph = capture_decode_graph(worker)
            ring = HiddenRing(**ring_arguments, window=ring_memory.window_tokens)
            native = NativeRound(worker, graph, ring, ring_arguments["rows"])
        catch_up = CatchUp(worker, ring, _draft_contexts(worker))
        self.rounds = DeviceRounds(worker, native, catch_up, ring.window)
        self.memory = replace(
            ring_memory,
            ring_bytes=ring.nbytes,
            graph_bytes=graph.nbytes,
            start_seconds=time.perf_counter() - began,
        )


def _plan_ring(worker: Any, budget_bytes: int) -> tuple[PlainMemory, Mapping[str, Any]]:
    """Size of the ring, and what `HiddenRing` takes besides its window."""
    from sglang.srt.speculative.eagle_utils import get_draft_input_from_target_hidden_dim

    target, draft = worker.target_worker.model_runner, worker.draft_worker.draft_runner
    rows = int(worker.req_to_token_pool.req_to_token.shape[0])
    width, dtype = int(get_draft_input_from_target_hidden_dim(draft)), target.model_config.dtype
    token_bytes = row_bytes(width, dtype.itemsize)
    window = window_for(budget_bytes, rows, token_bytes)
    memory = PlainMemory(
        window_tokens=window,
        ring_bytes=rows * window * token_bytes,
        kv_token_bytes=_kv_token_bytes(target) + _kv_token_bytes(draft),
    )
    return memory, {"rows": rows, "width": width, "dtype": dtype, "device": worker.device}


def _too_small(budget_bytes: int, ring: Mapping[str, Any]) -> str:
    from trimtab_sglang.plain_memory import LEAST_WINDOW

    needed = LEAST_WINDOW * ring["rows"] * row_bytes(ring["width"], ring["dtype"].itemsize)
    return (
        f"{budget_bytes // MIB} MiB hold too few hidden states of {ring['rows']} requests: "
        f"TRIMTAB_CATCH_UP_MIB must be at least {-(-needed // MIB)}"
    )


def _kv_token_bytes(runner: Any) -> int:
    """Bytes of a token in a runner's KV cache; 0 where its pool does not say."""
    try:
        sizes, pool = runner.token_to_kv_pool.get_kv_size_bytes(), runner.token_to_kv_pool
        return int((sum(sizes) if isinstance(sizes, tuple) else sizes) // pool.size)
    except Exception:  # noqa: BLE001 - pools differ, and no figure is worth a refusal
        return 0


def _draft_contexts(worker: Any) -> Callable[[], Sequence[AbstractContextManager[Any]]]:
    """What SGLang enters around a draft extend; how it places the draft model depends on the version."""
    module, draft = sys.modules[type(worker).__module__], worker.draft_worker

    def placement() -> AbstractContextManager[Any]:
        if hasattr(draft, "draft_tp_context"):
            context: AbstractContextManager[Any] = draft.draft_tp_context(draft.draft_runner.tp_group)
        else:
            layout = "parallel_layout" if hasattr(draft, "parallel_layout") else "draft_owns_attention"
            context = module.draft_tp_context(getattr(draft, layout))
        return context

    return lambda: (
        placement(), module.speculative_moe_backend_context(), module.speculative_moe_a2a_backend_context(),
    )  # fmt: skip
