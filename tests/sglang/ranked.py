"""Engines with several ranks, and a controller that gives them no rest."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from engine_server import CANDIDATE_STEPS, EngineServer, EngineSettings
from step_log import Launch
from support.scripted_controller import ScriptedController
from traffic import Traffic
from trimtab_sglang.lease import Lease, Pin, TableEntry, modes_of
from trimtabpb.v1 import control_pb2 as pb
from waiting import wait_until

MODES = modes_of(CANDIDATE_STEPS)
# One core a rank.
ONE_CORE_EACH = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
TENSOR_PARALLEL = {"tp-size": "2"}
DP_ATTENTION = {
    "tp-size": "2", "dp-size": "2", "enable-dp-attention": "", "speculative-algorithm": "EAGLE3",
}  # fmt: skip
FAULT = "SGLANG_CPU_TRIMTAB_FAULT"
# Drafting rarely pays on a CPU, and modes drawn at random never do: the guard would be right to drop every lease.
UNGUARDED = {"SGLANG_CPU_TRIMTAB_UNGUARDED": "1"}
BETWEEN_LEASES_S = 0.05
WAIT_S = 90.0


def tensor_parallel(controller: str, fault: str = "") -> EngineSettings:
    """Two tensor-parallel ranks."""
    return EngineSettings("noisy", arguments=TENSOR_PARALLEL, environment=_environment(controller, fault))


def dp_attention(controller: str, fault: str = "") -> EngineSettings:
    """Two ranks with a batch each, under data-parallel attention."""
    environment = _environment(controller, fault) | {"TRIMTAB_DP_ATTENTION": "1"}
    return EngineSettings("qwen3", arguments=DP_ATTENTION, environment=environment)


def _environment(controller: str, fault: str) -> dict[str, str]:
    faults = {FAULT: fault} if fault else {}
    return {"TRIMTAB_CONTROLLER": controller, "TRIMTAB_MODE": "act", **ONE_CORE_EACH, **UNGUARDED, **faults}


class RestlessController:
    """A new lease every 50 ms with another table each time, some of them with a pin.

    Attributes:
        script: The controller that speaks; another one after a death.
        refused: Whether the engine refused the last lease because its fuse is blown.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.target = f"unix:{folder / 'restless.sock'}"
        self.script = self._new_script()
        self.refused = False
        self._random = random.Random(seed)
        self._version = 0

    def __enter__(self) -> RestlessController:
        self.script.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.script.__exit__(*exception)

    def _new_script(self) -> ScriptedController:
        return ScriptedController(target=self.target)

    def drive(self, engine: EngineServer, until_launches: int, ttl_s: float = 5.0) -> None:
        """Send leases until the engine has launched so many decode steps, or has given up for good."""
        deadline = itertools.count()
        while not self.refused and len(engine.launches()[0]) < until_launches:
            ack = self.script.lease(self._lease(), ttl_s, pin_remaining_s=0.3)
            self.refused = ack.refusal == pb.REFUSAL_FUSE
            assert ack.accepted or self.refused, ack
            time.sleep(BETWEEN_LEASES_S)
            assert next(deadline) * BETWEEN_LEASES_S < WAIT_S, "the engine stands still"

    def die_and_come_back(self, gone_s: float) -> None:
        """End without a word, and be there again after a while."""
        self.script.__exit__(None, None, None)
        time.sleep(gone_s)
        self.script = self._new_script()
        self.script.__enter__()
        self._version = max(self._version, self.script.next_hello().last_lease_version)

    def in_force(self) -> pb.InForce:
        """What the newest report says."""
        self.script.forget_reports()
        return self.script.next_report().in_force

    def last_steps(self) -> Sequence[pb.RankStep]:
        """What the ranks chose, as the newest report says."""
        self.script.forget_reports()
        return self.script.next_report().ranks

    def _lease(self) -> Lease:
        self._version += 1
        draw, modes = self._random, self._random.sample(MODES, 3)
        others = ((modes[2], 0.5),) if draw.random() < 0.3 else ()
        return Lease(
            self._version,
            (TableEntry(1, modes[0], 1 - 0.5 * len(others), others), TableEntry(3, modes[1])),
            smoothing=draw.choice((0.3, 1.0)),
            hysteresis=0.1,
            exploration_seed=self._version,
            exploration_dwell_steps=3 if others else 0,
            pin=Pin(f"p{self._version}", draw.choice(MODES)) if draw.random() < 0.1 else None,
        )


@contextmanager
def answered_as(
    expected: Mapping[tuple[int, ...], tuple[int, ...]], engine: EngineServer, tokens: int, concurrent: int
) -> Iterator[Traffic]:
    """Traffic whose every answer is the expected one."""
    prompts = [list(prompt) for prompt in expected]
    with Traffic(engine, prompts, tokens, concurrent) as traffic:
        yield traffic
    assert traffic.answers
    for prompt, answer in zip(traffic.asked, traffic.answers, strict=True):
        assert answer.tokens == expected[tuple(prompt)]


def same_on_all_ranks(engine: EngineServer, at_least: int) -> list[Launch]:
    """The launches of an engine at rest: the same steps on every rank. Those of the first rank."""

    def logs() -> list[list[Launch]] | None:
        found = engine.launches()
        return found if len({len(launches) for launches in found}) == 1 else None

    first, *others = wait_until("every rank has written down its launches", logs, 5)
    for launches in others:
        differing = [pair for pair in zip(first, launches, strict=True) if pair[0].steps != pair[1].steps]
        assert differing == []
    assert len(first) >= at_least
    return first
