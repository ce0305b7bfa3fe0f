"""Draws accepted drafts as the GPU benchmark's plugin does, without an engine, and prints what came out as JSON.

Runs in the engine environment, which has torch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
from drawn_acceptance import DrawnAcceptance

PHASES = ([0.9, 0.6, 0.3], [0.2, 0.2, 0.2])
REQUESTS, POSITIONS = 64, 200


class Forward:
    """A forward mode."""

    @staticmethod
    def is_extend() -> bool:
        return True


class Verifier:
    """Asks for drafts of requests in slots of a pool."""

    def __init__(self, slots: list[int], seed: int = 8) -> None:
        self.phase = 0
        self._slots = torch.tensor(slots)
        self._drawn = DrawnAcceptance(PHASES, seed, lambda: self.phase)
        pool = SimpleNamespace(req_to_token=torch.zeros(256, 4))
        # The number of the run, which differs from contender to contender, stands before the first dot.
        requests = [SimpleNamespace(rid=f"{seed}{slots[0]}.8-cell-0-{i}-0.300") for i in range(len(slots))]
        batch = SimpleNamespace(
            forward_mode=Forward, reqs=requests, req_pool_indices=self._slots, req_to_token_pool=pool
        )
        self._drawn.before_forward(None, batch)

    def accepted(self, position: int, depth: int) -> list[int]:
        """Accepted drafts by request, all at the same position."""
        roots = torch.arange(len(self._slots), dtype=torch.int32) * (depth + 1)
        index = torch.full((len(self._slots), depth + 1), -1, dtype=torch.int32)
        index[:, 0] = roots
        lengths = torch.ones(len(self._slots), dtype=torch.int32)
        batch = SimpleNamespace(req_pool_indices=self._slots, seq_lens=torch.full((len(self._slots),), position))

        def sample(*_: Any) -> Any:
            return torch.zeros(len(self._slots) * (depth + 1), dtype=torch.int32), lengths, index

        _, lengths, chain = self._drawn.around_sample(sample, None, batch)
        assert chain.dtype == lengths.dtype == torch.int32
        for row, root, length in zip(chain.tolist(), roots.tolist(), lengths.tolist(), strict=True):
            assert row == [root + i if i < length else -1 for i in range(depth + 1)], (row, length)
        return [int(length) - 1 for length in lengths]


def main() -> None:
    """Print the findings."""
    one, other = Verifier(list(range(REQUESTS))), Verifier(list(range(100, 100 + REQUESTS)))
    rates = []
    for one.phase in range(len(PHASES)):
        drawn = [one.accepted(position, 3) for position in range(0, POSITIONS * 4, 4)]
        flat = [count for row in drawn for count in row]
        rates.append([sum(count > depth for count in flat) / len(flat) for depth in range(3)])
    one.phase = 0
    deep = [one.accepted(position, 3) for position in range(50)]
    shallow = [one.accepted(position, 1) for position in range(50)]
    findings = {
        "rates": rates,
        "same_in_other_slots": deep == [other.accepted(position, 3) for position in range(50)],
        "fewer_drafts_see_a_prefix": shallow == [[min(count, 1) for count in row] for row in deep],
        "requests_differ": len({tuple(column) for column in zip(*deep, strict=True)}) == REQUESTS,
        "no_drafts": one.accepted(0, 0),
    }
    print(json.dumps(findings))


if __name__ == "__main__":
    main()
