"""Reads into the draft model what it missed, from hidden states of the target that were kept on the device.

In native plain the draft model is not run. Each round leaves, for every request, the target's hidden state and the
token that it led to in a ring of `window` positions. Before drafting goes on, or when a request's ring is full, the
draft model reads all of it with SGLang's own draft extend, a chunk of its width at a time, so that captured graphs
serve: a draft cache that is caught up in part is worth next to nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import SimpleNamespace
from typing import Any

import torch

# What a draft extend leaves for the next round of drafting; those that this SGLang or server does not use are None.
DRAFT_FIELDS = ("topk_p", "topk_index", "hidden_states", "draft_probs", "dsa_topk_indices")


class HiddenRing:
    """The last `window` hidden states of every request, by its row in SGLang's request pool and its position.

    Args:
        rows: Rows of the request pool.
        window: Positions kept of each request.
        width: Of a hidden state as the draft model reads it.
        dtype: Of a hidden state.
        device: Where it lies.
    """

    def __init__(self, rows: int, window: int, width: int, dtype: Any, device: Any) -> None:
        self.window = window
        # Zeros, because surplus rows of a chunk are computed as well, and nothing may come out as not a number.
        self._hidden = torch.zeros((rows, window, width), dtype=dtype, device=device)
        self._tokens = torch.zeros((rows, window), dtype=torch.int64, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return int(self._hidden.nbytes + self._tokens.nbytes)

    def save(self, rows: Any, positions: Any, hidden: Any, tokens: Any) -> None:
        """Keep a round's hidden states `(n, width)` at these positions, and the tokens after them; the rest `(n,)`."""
        at = positions % self.window
        self._hidden[rows, at] = hidden
        self._tokens[rows, at] = tokens.to(torch.int64)

    def read(self, rows: Any, positions: Any) -> tuple[Any, Any]:
        """Hidden states `(n * k, width)` and tokens `(n * k,)` at positions of shape `(n, k)`."""
        at = positions % self.window
        rows = rows[:, None]
        return self._hidden[rows, at].flatten(0, 1), self._tokens[rows, at].flatten()


class CatchUp:
    """Runs the draft model over what it missed. Owned by the scheduler thread.

    Args:
        worker: SGLang's `EAGLEWorkerV2`.
        ring: Where the native rounds leave their hidden states.
        contexts: What SGLang enters around a draft extend.
    """

    def __init__(
        self, worker: Any, ring: HiddenRing, contexts: Callable[[], Sequence[AbstractContextManager[Any]]]
    ) -> None:
        self._draft = worker.draft_worker
        self._req_to_token = worker.req_to_token_pool.req_to_token
        self._ring = ring
        self._contexts = contexts

    def run(self, batch: Any, missed: Sequence[int]) -> None:
        """Catch the batch up; its draft input is then as if it had never left.

        Args:
            batch: SGLang's `ScheduleBatch` before a decode round.
            missed: Tokens that the draft model has not read of each request; shape `(n_requests,)`.
        """
        lengths = _Lengths(batch, missed)
        width = self._draft.speculative_num_draft_tokens
        chunks = -(-max(missed) // width)
        result = None
        with ExitStack() as stack:
            for context in self._contexts():
                stack.enter_context(context)
            for chunk in range(chunks):
                result = self._extend(batch, lengths, width, left=chunks - chunk)
        _adopt(batch.spec_info, result.next_draft_input if result else None, lengths.missed > 0)

    def _extend(self, batch: Any, lengths: _Lengths, width: int, left: int) -> Any:
        """One chunk: the last `left * width` missed tokens begin with it.

        A request with fewer reads its first ones again, which changes nothing; columns beyond its missed tokens fall
        into slots that are reserved for drafts.
        """
        start, start_cpu = lengths.start(left * width)
        columns = torch.arange(width, device=start.device)
        begin = lengths.first + start
        wanted = torch.minimum(start[:, None] + columns, (lengths.missed - 1).clamp(min=0)[:, None])
        hidden, tokens = self._ring.read(batch.req_pool_indices, lengths.first[:, None] + wanted)
        chunk = copy.copy(batch)
        chunk.seq_lens, chunk.seq_lens_cpu = begin, start_cpu
        chunk.seq_lens_sum = None if start_cpu is None else int(start_cpu.sum())
        slots = self._req_to_token[batch.req_pool_indices[:, None], begin[:, None] + columns]
        chunk.out_cache_loc = slots.flatten().to(torch.int64)
        accepted = (lengths.missed - start).clamp(1, width).to(torch.int32)
        result = SimpleNamespace(
            logits_output=SimpleNamespace(hidden_states=hidden),
            next_token_ids=tokens,
            accept_lens=accepted,
            new_seq_lens=begin + accepted,
            next_draft_input=copy.copy(batch.spec_info),
            prepared_draft_extend_inputs=None,
        )
        self._draft._draft_extend_for_decode(chunk, result)
        return result


class _Lengths:
    """Where each request's missed tokens lie: `first` is the position of the first one; shapes `(n_requests,)`."""

    def __init__(self, batch: Any, missed: Sequence[int]) -> None:
        seq_lens = batch.seq_lens
        on_host = torch.tensor(missed, dtype=seq_lens.dtype, pin_memory=seq_lens.is_cuda)
        # From pinned memory the copy waits for nothing, and nothing waits for it.
        self.missed = on_host.to(seq_lens.device, non_blocking=True)
        self.first = seq_lens - self.missed
        self._missed_cpu = on_host
        self._seq_lens_cpu = batch.seq_lens_cpu

    def start(self, remaining: int) -> tuple[Any, Any]:
        """Missed tokens before the chunk with which the last `remaining` begin; and the length of its prefix on the
        host, None where SGLang keeps none there."""
        start = (self.missed - remaining).clamp(min=0)
        if self._seq_lens_cpu is None:
            return start, None
        start_cpu = (self._missed_cpu - remaining).clamp(min=0)
        return start, self._seq_lens_cpu - self._missed_cpu + start_cpu


def _adopt(draft_input: Any, caught_up: Any, behind: Any) -> None:
    """Take over what the catch-up leaves for drafting, for the requests that were behind."""
    for field in DRAFT_FIELDS:
        new, old = getattr(caught_up, field, None), getattr(draft_input, field, None)
        if new is None or old is None:
            continue
        rows = behind.view(-1, *[1] * (new.dim() - 1))
        setattr(draft_input, field, torch.where(rows, new, old))
