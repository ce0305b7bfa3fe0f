"""Under data-parallel attention, the graphs of further step counts must be captured among the target's ranks.

SGLang builds the states of all candidates inside the draft's group of ranks, which is right for the draft and, with
tensor parallelism alone, the same group. Under data-parallel attention the draft's group is one rank, while the
target gathers from all of them: its capture fails ("output tensor size must be equal to world_size times input tensor
size", SGLang 0.5.16). Every capture of the target's therefore runs in the scope in which its first one ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab_sglang.plugin import Plugin

CAPTURE = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.__init__"
# What SGLang narrows for a draft with a group of its own.
NARROWED = (
    "tp_size", "tp_rank", "tp_group", "attn_tp_size", "attn_tp_rank", "attn_tp_group", "attn_dp_size", "attn_dp_rank",
    "attn_cp_size", "attn_cp_rank", "attn_cp_group", "moe_ep_size", "moe_ep_rank", "moe_ep_group", "moe_dp_size",
    "moe_tp_size", "moe_tp_rank",
)  # fmt: skip


def wrap_capture(plugin: Plugin, original: Callable[..., Any]) -> Callable[..., Any]:
    """Capture the target's graphs in the target's scope; a draft's where SGLang does."""
    scope = TargetScope()

    def __init__(self: Any, model_runner: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - takes its place
        if model_runner.is_draft_worker:
            original(self, model_runner, *args, **kwargs)
            return
        with scope():
            original(self, model_runner, *args, **kwargs)

    return __init__


class TargetScope:
    """The target's group of ranks, as it is when first asked for."""

    def __init__(self) -> None:
        self._group: Any = None
        self._values: dict[str, Any] = {}

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """The target's ranks again, wherever SGLang has narrowed them to the draft's."""
        from sglang.srt.distributed import parallel_state
        from sglang.srt.runtime_context import get_flags, get_parallel

        parallel, flags = get_parallel(), get_flags().dp
        if self._group is None:
            self._group = parallel_state._TP
            self._values = _values(parallel)
        if parallel_state._TP is self._group:
            yield
            return
        narrowed, parallel_state._TP = parallel_state._TP, self._group
        try:
            with ExitStack() as scope:
                scope.enter_context(parallel.override(**self._values))
                if hasattr(flags, "scoped_gather_slot"):
                    scope.enter_context(flags.override(scoped_gather_slot=None))
                yield
        finally:
            parallel_state._TP = narrowed


def _values(parallel: Any) -> dict[str, Any]:
    """Those of NARROWED that this SGLang has, and that are set up."""
    found = {}
    for name in NARROWED:
        with suppress(AttributeError, AssertionError):
            found[name] = getattr(parallel, name)
    return found
