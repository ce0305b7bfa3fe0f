"""Whether a draft is accepted, drawn for every request and position from probabilities that change by phase.

Models without weights have no acceptance of their own. What is drawn depends on the request's identity and on the
position in its text alone: all contenders find the same tokens easy and the same tokens hard, and fewer drafts see a
prefix of what more drafts see. A draft at depth d is accepted if the position's number is below the phase's
probability for d and all drafts before it are.

Nothing here copies or waits on the step path: for every phase and every place in a long table of random numbers, how
many drafts in a row are accepted from there lies on the device from the start; a phase is a choice among tables that
are there, and a step looks its places up. Requests bring one number each, with their prefill, from pinned memory.
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
        self._places: Any = None
        self._depths: Any = None
        self._runs: list[Any] = []

    def before_forward(self, _worker: Any, batch: Any, *_args: Any, **_kwargs: Any) -> None:
        """Hook before a worker's forward: requests that are prefilled bring their place in the table."""
        if not batch.forward_mode.is_extend() or not batch.reqs:
            return
        import torch

        if self._places is None:
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
        if self._places is None or index.dim() < 2 or not index.shape[0]:
            return predict, lengths, index
        predict.fill_(TOKEN)
        depth = index.shape[1] - 1
        if not depth:
            return predict, lengths, index
        places = (self._places[batch.req_pool_indices] + batch.seq_lens) & (TABLE_SIZE - 1)
        accepted = self._runs[self._phase()][places].clamp(max=depth)
        depths = self._depths[: depth + 1]
        chain = torch.where(depths <= accepted.unsqueeze(1), index[:, :1] + depths, -1)
        return predict, (accepted + 1).to(lengths.dtype), chain.to(index.dtype)

    def _put_on(self, device: Any, requests: int) -> None:
        import torch

        uniform = torch.rand(TABLE_SIZE, generator=torch.Generator().manual_seed(self._seed))
        self._runs = [runs(uniform, phase).to(device) for phase in self._probabilities]
        self._places = torch.zeros(requests, dtype=torch.int64, device=device)
        self._depths = torch.arange(len(self._probabilities[0]) + 1, dtype=torch.int32).to(device)


def runs(uniform: Any, probabilities: Sequence[float]) -> Any:
    """How many drafts in a row are accepted from each place of the table; shape `(n_places,)`.

    Args:
        uniform: Random numbers in [0, 1); shape `(n_places,)`. The table has no end: its first place comes again.
        probabilities: By depth.
    """
    import torch

    found = torch.zeros(len(uniform), dtype=torch.int32)
    alive = torch.ones(len(uniform), dtype=torch.bool)
    for depth, probability in enumerate(probabilities):
        alive &= uniform.roll(-depth) < probability
        found += alive.to(torch.int32)
    return found
