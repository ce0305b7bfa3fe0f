"""The values that policies, sessions, services and replay speak in.

`Mode`, `Lease` and their parts are those of the plugin's pure lease machine, so both sides mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntFlag, StrEnum

from trimtab_sglang.lease import (
    PLAIN_COLD,
    PLAIN_NATIVE,
    PLAIN_WARM,
    Lease,
    LeaseError,
    Mode,
    ModeKind,
    Pin,
    StepRange,
    TableEntry,
    check_lease,
    modes_of,
    speculate,
)

__all__ = [
    "PLAIN_COLD", "PLAIN_NATIVE", "PLAIN_WARM", "CostKey", "DepthCounts", "EngineInfo", "EngineKey", "InForce", "Lease",
    "LeaseError", "Mode", "ModeKind", "Pin", "RankStep", "Report", "Source", "StepFlag", "StepRange", "StepRow",
    "TableEntry", "check_lease", "modes_of", "speculate",
]  # fmt: skip


class Source(StrEnum):
    """Who decides about the mode that an engine runs.

    EXPIRY is the engine's operator: the mode set for the time after the last lease.
    """

    STOCK = "stock"
    LEASE = "lease"
    PIN = "pin"
    FUSE = "fuse"
    EXPIRY = "expiry"


class StepFlag(IntFlag):
    """Flags of a step row; see `StepFlag` in control.proto."""

    NONE = 0
    GRAPH = 1
    GAP = 2
    WARM_UP = 4
    SWITCHED = 8
    EXPLORED = 16
    SWEEP = 32


@dataclass(frozen=True, slots=True)
class DepthCounts:
    """Drafts by depth. `offered[d]` requests reached draft d + 1, `accepted[d]` had it accepted."""

    offered: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRow:
    """One decode step. None is absent; the fields are those of `StepRows` in control.proto."""

    launch_id: int
    step: int
    result_ns: int
    mode: Mode
    batch_size: int
    emitted_tokens: int
    fresh_requests: int
    fresh: DepthCounts = DepthCounts()
    stale_requests: int = 0
    stale: DepthCounts = DepthCounts()
    lease_version: int = 0
    table_entry: int | None = None
    rank: int = 0
    dp_rank: int = 0
    padded_batch_size: int | None = None
    global_batch_size: int | None = None
    step_ns: int | None = None
    wall_gap_ns: int | None = None
    prefill_tokens: int = 0
    context_tokens_sum: int | None = None
    context_tokens_max: int | None = None
    kv_used_tokens: int | None = None
    running_requests: int | None = None
    waiting_requests: int | None = None
    retracted_requests: int | None = None
    greedy_requests: int | None = None
    grammar_requests: int | None = None
    lora_requests: int | None = None
    accepted_worst_decile: float | None = None
    catch_up_ns: int | None = None
    flags: StepFlag = StepFlag.NONE
    missed_tokens: int = 0
    caught_up_tokens: int = 0

    @property
    def accepted_tokens(self) -> int:
        """Accepted drafts over the batch, the bonus token not counted."""
        return sum(self.fresh.accepted) + sum(self.stale.accepted)


@dataclass(frozen=True, slots=True)
class InForce:
    """What an engine runs at this moment. `mode` is None before its first decode step."""

    source: Source = Source.STOCK
    mode: Mode | None = None
    lease_version: int = 0
    pin_id: str = ""
    fuse_reason: str = ""


@dataclass(frozen=True, slots=True)
class RankStep:
    """What a rank chose at a decode step. `digest` is that of every step up to this one."""

    rank: int
    step: int
    mode: Mode
    batch_size: int
    digest: int


@dataclass(frozen=True, slots=True)
class Report:
    """What an engine tells every report interval.

    `ranks` are all at the same step; empty for a single rank. When `resets` grows, what was learned of acceptance is
    void.
    """

    seq: int
    now_ns: int
    rows: tuple[StepRow, ...] = ()
    in_force: InForce = InForce()
    decode_steps: int = 0
    switches: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    last_step_age_ns: int | None = None
    waiting_requests: int = 0
    running_requests: int = 0
    ranks: tuple[RankStep, ...] = ()
    stale_resumes: int = 0
    resets: int = 0
    reset_reason: str = ""
    weight_version: str = ""


@dataclass(frozen=True, slots=True, order=True)
class EngineKey:
    """Identity of one engine: its id, and its replica under plain data parallelism."""

    engine_id: str
    dp_rank: int = 0

    def __str__(self) -> str:
        return f"{self.engine_id}/{self.dp_rank}" if self.dp_rank else self.engine_id


@dataclass(frozen=True, slots=True)
class CostKey:
    """What step times depend on besides load and mode. Empty or 0: the engine did not say, the profile does not care.

    Attributes:
        sglang_version: In a profile as far as it matters: 0.5 stands for 0.5.16 and 0.5.23.
    """

    model: str = ""
    weight_version: str = ""
    draft_model: str = ""
    device_name: str = ""
    attention_backend: str = ""
    dtype: str = ""
    kv_cache_dtype: str = ""
    tp_size: int = 0
    sglang_version: str = ""

    def stated(self) -> dict[str, str | int]:
        """The fields that say something."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name)}

    def unlike(self, engine: CostKey) -> tuple[str, ...]:
        """The fields of this profile's key that do not hold for the engine."""
        stated = self.stated()
        same_version = _begins_with(engine.sglang_version, self.sglang_version)
        return tuple(
            name
            for name, value in stated.items()
            if not (same_version if name == "sglang_version" else value == getattr(engine, name))
        )


def _begins_with(version: str, beginning: str) -> bool:
    """Whether a version begins with these dotted parts."""
    parts = beginning.split(".")
    return version.split(".")[: len(parts)] == parts


def minor_version(version: str) -> str:
    """The first two parts of a version: 0.5 of 0.5.23."""
    return ".".join(version.split(".")[:2])


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a session and its policy need to know of an engine.

    Attributes:
        modes: Modes that the engine can be told to run; empty where it only observes.
        graph_batch_sizes: Batch sizes with a captured graph, ascending; batches are padded to these.
        last_lease_version: Highest lease version that this engine process applied.
        pin: Pin that the engine holds, with `pin_remaining_s` (None: until released).
        cost_key: What its step times depend on.
        kv_capacity_tokens: Tokens that its KV cache holds; 0 if unknown.
        resets: Times that what was learned of it stopped to hold, since its process started.
    """

    key: EngineKey
    boot_id: str
    modes: tuple[Mode, ...] = ()
    graph_batch_sizes: tuple[int, ...] = ()
    max_running_requests: int = 0
    acts: bool = True
    observe_reasons: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    block_verification: bool = False
    rejection_sampling: bool = False
    initial_steps: int = 0
    in_force: InForce = InForce()
    pin: Pin | None = None
    pin_remaining_s: float | None = None
    last_lease_version: int = 0
    cost_key: CostKey = CostKey()
    kv_capacity_tokens: int = 0
    resets: int = 0
