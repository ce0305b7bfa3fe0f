"""What every policy is given and what it must return.

A policy is created for one engine, learns from the step rows that come in, and answers with a mode for
every band of batch sizes. It is deterministic: the same context and the same calls give the same answers,
so a recorded session can be replayed. Time reaches it only through the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import msgspec

from trimtab.domain import Mode, StepFlag, StepRow, TableEntry
from trimtab.policies.profile import CostProfile


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """The engine that a policy decides for.

    Attributes:
        modes: Modes to choose from, at least one.
        bands: Smallest batch size of each band, ascending from 1; shape `(n_bands,)`.
        graph_batch_sizes: Sizes that batches are padded to; empty without graphs.
        incumbent: Mode in force when the policy was created, or None.
        initial_steps: Steps the engine was started with.
        seed: Seed of all randomness of the policy.
        block_verification: Acceptance at a depth then depends on the steps chosen.
        profile: What steps are expected to take, if somebody knows; policies that learn it may ignore it.
        kv_capacity_tokens: Tokens that the KV cache holds; 0 if unknown.
    """

    modes: tuple[Mode, ...]
    bands: tuple[int, ...]
    graph_batch_sizes: tuple[int, ...] = ()
    incumbent: Mode | None = None
    initial_steps: int = 0
    seed: int = 0
    block_verification: bool = False
    profile: CostProfile | None = None
    kv_capacity_tokens: int = 0


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """What a policy expects of a mode in a band. None is unknown.

    `goodput_tps` is emitted tokens a second, with an interval `[goodput_low_tps, goodput_high_tps]`.
    """

    mode: Mode
    accepted_drafts: float | None = None
    step_ms: float | None = None
    goodput_tps: float | None = None
    goodput_low_tps: float | None = None
    goodput_high_tps: float | None = None


class BandDecision(msgspec.Struct, frozen=True):
    """The choice for one band, its probabilities, and why.

    `reason` is one of "exploit", "explore", "probe", "fixed", "guard", "fallback".
    """

    min_batch_size: int
    mode: Mode
    reason: str
    probability: float = 1.0
    alternatives: tuple[tuple[Mode, float], ...] = ()
    candidates: tuple[Candidate, ...] = ()

    @property
    def entry(self) -> TableEntry:
        """The table entry that a lease carries for this band."""
        return TableEntry(self.min_batch_size, self.mode, self.probability, self.alternatives)


@dataclass(frozen=True, slots=True)
class Decision:
    """A table for all bands, and how the engine is to read it (see `Lease`).

    `alarms` name what an operator should look at, for example "acceptance_drift".
    """

    bands: tuple[BandDecision, ...]
    smoothing: float = 0.25
    hysteresis: float = 0.05
    min_dwell_steps: int = 8
    exploration_seed: int = 0
    exploration_dwell_steps: int = 0
    alarms: tuple[str, ...] = ()

    @property
    def table(self) -> tuple[TableEntry, ...]:
        """The entries that a lease carries."""
        return tuple(band.entry for band in self.bands)


class Policy(Protocol):
    """Chooses modes for one engine."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def learn(self, rows: Sequence[StepRow]) -> None:
        """Take in step rows in the order of their results. Rows that carry no information change nothing."""

    def choose(self) -> Decision:
        """A mode for every band, with probabilities and explanation. Changes nothing that `learn` builds on."""

    def probability_of(self, batch_size: int, mode: Mode) -> float:
        """Probability with which the last `choose` runs `mode` at this batch size."""

    def forget(self) -> None:
        """The engine was restarted or its weights changed: what was learnt of acceptance no longer holds."""

    def snapshot(self) -> dict[str, Any]:
        """The learned state as plain values (JSON)."""

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go on from a snapshot of the same policy and context; anything else raises `PolicyError`."""


def is_informative(row: StepRow) -> bool:
    """Whether the row says what a mode yields: timed, of a real batch, not a warm-up or sweep, nothing in between."""
    return (
        row.step_ns is not None
        and row.step_ns > 0
        and row.batch_size > 0
        and not row.flags & (StepFlag.WARM_UP | StepFlag.GAP | StepFlag.SWEEP)
    )


def probability_in(decision: Decision | None, batch_size: int, mode: Mode) -> float:
    """Probability of `mode` at `batch_size` under a decision; 0 without one."""
    if decision is None:
        return 0.0
    table = decision.table
    entry = next((e for e in reversed(table) if e.min_batch_size <= batch_size), table[0])
    return entry.probability_of(mode)
