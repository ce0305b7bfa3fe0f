"""The target's decode graph beside its verify graphs, captured at start-up.

It has an attention backend of its own: captured kernels hold on to a backend's buffers, so none is ever shared.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DecodeGraph:
    """What a native round runs on.

    Attributes:
        runner: SGLang's decode graph runner in its plain form; None: without graphs.
        attn_backend: The backend that it was captured with; None: whatever is in force.
        nbytes: Bytes that capturing took on the device.
        seconds: Time that it took.
    """

    runner: Any = None
    attn_backend: Any = None
    nbytes: int = 0
    seconds: float = 0.0


EAGER = DecodeGraph()


def capture_decode_graph(worker: Any) -> DecodeGraph:
    """Capture the decode graph for the batch sizes of the server's decode graphs; `EAGER` where it runs without any.

    Args:
        worker: SGLang's `EAGLEWorkerV2`, its own graphs captured.
    """
    target = worker.target_worker.model_runner
    if target.decode_cuda_graph_runner is None:
        return EAGER
    import torch

    before, began = torch.cuda.mem_get_info()[0], time.perf_counter()
    backend = _new_backend(target)
    stock_backend = target.attn_backend
    try:
        # Some of SGLang's capture hooks look at the model runner's backend instead of the graph runner's.
        target.attn_backend = backend
        runner = _runner_class()(target, attn_backend=backend, speculative_num_steps=0, speculative_num_draft_tokens=1)
    finally:
        target.attn_backend = stock_backend
    nbytes = max(0, before - torch.cuda.mem_get_info()[0])
    return DecodeGraph(runner, backend, nbytes, time.perf_counter() - began)


def _new_backend(target: Any) -> Any:
    init_new_workspace = target.init_new_workspace
    try:
        return target._get_attention_backend(init_new_workspace=True)
    finally:
        target.init_new_workspace = init_new_workspace


def _runner_class() -> type[Any]:
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
    from sglang.srt.model_executor.runner import DecodeCudaGraphRunner

    class NativeDecodeRunner(DecodeCudaGraphRunner):  # type: ignore[misc]
        """SGLang's decode graph runner as in a server without speculation, with hidden states in its output.

        Beside speculation SGLang sets both modes to those of a verify while it initialises; here they stay.
        """

        @property
        def capture_forward_mode(self) -> Any:
            """Always a decode."""
            return ForwardMode.DECODE

        @capture_forward_mode.setter
        def capture_forward_mode(self, _mode: Any) -> None:
            """Stays a decode."""

        @property
        def capture_hidden_mode(self) -> Any:
            """Always with hidden states: the catch-up reads them."""
            return CaptureHiddenMode.FULL

        @capture_hidden_mode.setter
        def capture_hidden_mode(self, _mode: Any) -> None:
            """Stays with hidden states."""

        def get_spec_info(self, num_tokens: int) -> None:
            """A decode has none."""

    return NativeDecodeRunner
