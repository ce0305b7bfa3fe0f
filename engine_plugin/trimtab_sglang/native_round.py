"""One round of native plain: SGLang's zero-step round, with the target's forward run as a decode.

SGLang's own verify of a single token does everything around the forward: slots, grammar, penalties, sampling,
log probabilities, the result in its own form. Only where it calls the target, the batch that it prepared as a verify
of one token is turned into what it is, a decode, and runs on the decode kernel and the decode graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.speculative.eagle_info import EagleVerifyInput

from trimtab_sglang.catch_up import HiddenRing
from trimtab_sglang.decode_graph import DecodeGraph

# Where the event lies that marks the end of a forward's reads from buffers shared with the scheduler.
READ_DONE_EVENTS = ("shared_read_done_event", "war_fastpath_read_done_event")


class NativeRound:
    """Runs native rounds on one worker. Owned by the scheduler thread.

    Args:
        worker: SGLang's `EAGLEWorkerV2`.
        graph: The decode graph and its attention backend.
        ring: Where hidden states are left for the catch-up.
        most_requests: Largest batch.
    """

    def __init__(self, worker: Any, graph: DecodeGraph, ring: HiddenRing, most_requests: int) -> None:
        self._worker = worker
        self._runner = worker.target_worker.model_runner
        self._graph = graph
        self._ring = ring
        self._target = _DecodingTarget(worker.target_worker, self._runner, graph)
        device = worker.device
        self._index = torch.arange(most_requests, dtype=torch.int64, device=device).unsqueeze(1)
        self._none = torch.full((most_requests, 1), -1, dtype=torch.int64, device=device)
        self._mask = torch.ones(most_requests, dtype=torch.bool, device=device)
        self._takes = frozenset(inspect.signature(worker.verify).parameters)
        self._read_done = next((name for name in READ_DONE_EVENTS if hasattr(self._runner, name)), "")

    def run(self, batch: Any, on_publish: Callable[[Any], None] | None = None, **verify: Any) -> Any:
        """One token of every request; SGLang's result of the round.

        Args:
            batch: SGLang's `ScheduleBatch`.
            on_publish: SGLang's own, called with the new lengths.
            verify: What SGLang passes on to its verify, in versions whose verify takes it.
        """
        seq_lens = batch.seq_lens
        batch.spec_info = self._one_token(batch)
        self._set_read_done(self._runner, None)
        result = self._verify(batch, verify)
        # SGLang asked its verify graph, which was put aside.
        result.can_run_cuda_graph = self._target.ran_graph
        self._ring.save(batch.req_pool_indices, seq_lens, result.logits_output.hidden_states, result.next_token_ids)
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        self._worker._stub_skipped_draft_extend(batch, result)
        # The scheduler looks for it where a draft extend would have left it.
        self._set_read_done(self._worker.draft_worker.draft_runner, getattr(self._runner, self._read_done, None))
        return result

    def _one_token(self, batch: Any) -> EagleVerifyInput:
        """A tree of the last token alone."""
        n = batch.seq_lens.shape[0]
        return EagleVerifyInput(
            draft_token=batch.spec_info.bonus_tokens,
            custom_mask=self._mask[:n],
            positions=batch.seq_lens.to(torch.int64),
            retrieve_index=self._index[:n],
            retrieve_next_token=self._none[:n],
            retrieve_next_sibling=self._none[:n],
            retrieve_cum_len=None,
            spec_steps=0,
            topk=1,
            draft_token_num=1,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            seq_lens_sum=None,
            seq_lens_cpu=None,
        )

    def _verify(self, batch: Any, verify: dict[str, Any]) -> Any:
        worker, runner = self._worker, self._runner
        width = (worker.speculative_num_steps, worker.speculative_num_draft_tokens, worker.topk)
        target, backend, graph = worker._target_worker, runner.attn_backend, runner.decode_cuda_graph_runner
        try:
            worker.speculative_num_steps, worker.speculative_num_draft_tokens, worker.topk = 0, 1, 1
            worker._target_worker = self._target
            if self._graph.attn_backend is not None:
                runner.attn_backend = self._graph.attn_backend
            # A verify graph would take the batch for its own.
            runner.decode_cuda_graph_runner = None
            return worker.verify(batch, **{name: given for name, given in verify.items() if name in self._takes})
        finally:
            worker.speculative_num_steps, worker.speculative_num_draft_tokens, worker.topk = width
            worker._target_worker, runner.attn_backend, runner.decode_cuda_graph_runner = target, backend, graph

    def _set_read_done(self, runner: Any, event: Any) -> None:
        if self._read_done:
            setattr(runner, self._read_done, event)


class _DecodingTarget:
    """SGLang's target worker, but for its forward of a verify.

    Attributes:
        ran_graph: Whether the last forward ran from the decode graph.
    """

    def __init__(self, target: Any, runner: Any, graph: DecodeGraph) -> None:
        self.ran_graph = False
        self._target = target
        self._runner = runner
        self._graph = graph

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward_batch_generation(self, *args: Any, forward_batch: Any, **kwargs: Any) -> Any:
        """The target's forward of one token for each request."""
        _as_decode(forward_batch)
        self._runner.decode_cuda_graph_runner = self._graph.runner
        output = self._target.forward_batch_generation(*args, forward_batch=forward_batch, **kwargs)
        self.ran_graph = bool(output.can_run_cuda_graph)
        return output


def _as_decode(forward_batch: Any) -> None:
    """Turn the verify of one token into a decode: there the lengths count the token that is read."""
    forward_batch.forward_mode = ForwardMode.DECODE
    forward_batch.spec_info = None
    forward_batch.seq_lens = forward_batch.seq_lens + 1
    if forward_batch.seq_lens_cpu is not None:
        forward_batch.seq_lens_cpu = forward_batch.seq_lens_cpu + 1
    if forward_batch.seq_lens_sum is not None:
        forward_batch.seq_lens_sum += forward_batch.batch_size
