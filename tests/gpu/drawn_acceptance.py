"""Whether a draft is accepted, drawn for every request and position from probabilities that change by phase.

Models without weights have no acceptance of their own. What is drawn depends on the request's identity and on the
position in its text alone: all contenders find the same tokens easy and the same tokens hard, and fewer drafts see a
prefix of what more drafts see. A draft at depth d is accepted if the position's number is below the phase's
probability for d and all drafts before it are.

Nothing here copies or waits on the step path: random numbers and the probabilities of all phases lie on the device from
the start; a phase is a choice among tensors that are there. Requests bring one number each, with their prefill, from
pinned memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from schedule import place_in_table

TABLE_SIZE = 1 << 22
# A legal token of every vocabulary; what the requests' text says does not matter.
TOKEN = 100


class DrawnAcceptance:
    """Replaces what a verify accepted.

    Args:
        probabilities: For each phase by depth.
        seed: Of the random numbers.
        phase: Says which phase it is, at every launch.
    """

    def __init__(self, probabilities: Sequence[Sequence[float]], seed: int, phase: Callable[[], int]) -> None:
        self._probabilities = probabilities
        self._seed = seed
        self._phase = phase
        self._uniform: Any = None
        self._places: Any = None
        self._depths: Any = None
        self._by_phase: list[Any] = []

    def before_forward(self, _worker: Any, batch: Any, *_args: Any, **_kwargs: Any) -> None:
        """Hook before a worker's forward: requests that are prefilled bring their place in the table."""
        if not batch.forward_mode.is_extend() or not batch.reqs:
            return
        import torch

        if self._uniform is None:
            self._put_on(batch.req_pool_indices.device, batch.req_to_token_pool.req_to_token.shape[0])
        identities = [str(request.rid).partition(".")[2] for request in batch.reqs]
        places = torch.tensor([place_in_table(identity, TABLE_SIZE) for identity in identities], dtype=torch.int64)
        device = self._places.device
        if device.type != "cpu":
            places = places.pin_memory().to(device, non_blocking=True)
        self._places[batch.req_pool_indices.to(torch.int64)] = places

    def around_sample(
        self, sample: Callable[..., Any], verify_input: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any, Any]:
        """Hook around `eagle_sample`: the same tokens and lengths in the same shapes, but drawn."""
        import torch

        predict, lengths, index = sample(verify_input, batch, *args, **kwargs)
        if self._uniform is None or index.dim() < 2 or not index.shape[0]:
            return predict, lengths, index
        predict.fill_(TOKEN)
        depth = index.shape[1] - 1
        if not depth:
            return predict, lengths, index
        places = self._places[batch.req_pool_indices] + batch.seq_lens
        drawn = self._uniform[(places.unsqueeze(1) + self._depths[:depth]) & (TABLE_SIZE - 1)]
        hits = drawn < self._by_phase[self._phase()][:depth]
        accepted = hits.to(torch.int32).cumprod(dim=1).sum(dim=1)
        depths = self._depths[: depth + 1]
        chain = torch.where(depths <= accepted.unsqueeze(1), index[:, :1] + depths, -1)
        return predict, (accepted + 1).to(lengths.dtype), chain.to(index.dtype)

    def _put_on(self, device: Any, requests: int) -> None:
        import torch

        generator = torch.Generator().manual_seed(self._seed)
        self._uniform = torch.rand(TABLE_SIZE, generator=generator).to(device)
        self._places = torch.zeros(requests, dtype=torch.int64, device=device)
        self._by_phase = [torch.tensor(list(p), dtype=torch.float32).to(device) for p in self._probabilities]
        self._depths = torch.arange(len(self._probabilities[0]) + 1, dtype=torch.int64).to(device)
