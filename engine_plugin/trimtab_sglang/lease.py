"""Which mode does the next decode step run, given what the controller last allowed?

The pure half of the plugin: no clock, no I/O, no threads, no randomness beyond a hash of (seed, step).
Every rank of an engine runs the same `LeaseMachine` over the same sequence of calls, so every rank
chooses the same mode. Live engines, simulation and replay share it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

MAX_TABLE_ENTRIES = 64
MAX_ALTERNATIVES = 16
MAX_BATCH_SIZE = 65_536
MAX_DWELL_STEPS = 1_000_000


class ModeKind(StrEnum):
    """How a decode step runs; see `Mode.Kind` in control.proto."""

    SPECULATE = "speculate"
    PLAIN_WARM = "plain_warm"
    PLAIN_COLD = "plain_cold"
    PLAIN_NATIVE = "plain_native"


@dataclass(frozen=True, slots=True, order=True)
class Mode:
    """A way to run decode steps. `steps` is drafts a step: 0 for every plain kind."""

    kind: ModeKind
    steps: int = 0

    def __post_init__(self) -> None:
        if (self.kind is ModeKind.SPECULATE) != (self.steps > 0):
            raise ValueError(f"{self.kind.value} cannot have {self.steps} steps")

    def __str__(self) -> str:
        return f"speculate({self.steps})" if self.steps else self.kind.value


def speculate(steps: int) -> Mode:
    """The mode with `steps` drafts a step; plain with a warm draft cache for 0."""
    return Mode(ModeKind.SPECULATE, steps) if steps else PLAIN_WARM


PLAIN_WARM = Mode(ModeKind.PLAIN_WARM)
PLAIN_COLD = Mode(ModeKind.PLAIN_COLD)
PLAIN_NATIVE = Mode(ModeKind.PLAIN_NATIVE)


@dataclass(frozen=True, slots=True)
class TableEntry:
    """The mode for smoothed batch sizes from `min_batch_size` up to the next entry's.

    With `alternatives`, `mode` is drawn with `probability` and each alternative with its own; together
    they sum to 1.
    """

    min_batch_size: int
    mode: Mode
    probability: float = 1.0
    alternatives: tuple[tuple[Mode, float], ...] = ()

    def probability_of(self, mode: Mode) -> float:
        """Probability with which this entry runs `mode`."""
        if mode == self.mode:
            return self.probability
        return sum(p for m, p in self.alternatives if m == mode)

    def draw(self, u: float) -> Mode:
        """The mode at `u`, uniform in [0, 1)."""
        edge = self.probability
        if u < edge or not self.alternatives:
            return self.mode
        for mode, probability in self.alternatives:
            edge += probability
            if u < edge:
                return mode
        return self.alternatives[-1][0]


@dataclass(frozen=True, slots=True)
class StepRange:
    """Numbers of drafts a step, both ends included. Every kind of plain decoding has 0."""

    min_steps: int
    max_steps: int

    def __contains__(self, mode: Mode) -> bool:
        return self.min_steps <= mode.steps <= self.max_steps

    def __str__(self) -> str:
        return f"steps {self.min_steps}-{self.max_steps}"


@dataclass(frozen=True, slots=True)
class Pin:
    """An operator's order: it goes before every table and outlives the lease that brought it.

    With a `range` it leaves the choice among those steps to the lease's table; `mode` is what runs without one.
    """

    id: str
    mode: Mode
    reason: str = ""
    owner: str = ""
    range: StepRange | None = None

    def __str__(self) -> str:
        return str(self.range or self.mode)


@dataclass(frozen=True, slots=True)
class Lease:
    """What the controller allows the engine to do on its own.

    Attributes:
        version: Content version; only grows. The same version again extends the life.
        table: Entries in ascending `min_batch_size`, the first at 1 or below. May be empty with a pin.
        smoothing: Weight in (0, 1] of the newest batch size in the running mean that reads the table.
        hysteresis: Share of an edge by which the mean must pass it before the band changes, in [0, 1).
        min_dwell_steps: Decode steps between two changes of mode, at least.
        exploration_seed: Seed of the draws among an entry's modes.
        exploration_dwell_steps: Steps between two draws; 0 for none.
        life_steps: Decode launches that the lease lasts whatever the clock of the speaking rank says.
        pin: Operator's order, or None to release one.
        reason: For people.
        then: What runs when its life is over; None for the engine's own policy. The engine's operator says so
            (`TRIMTAB_ON_EXPIRY`), never the controller.
    """

    version: int
    table: tuple[TableEntry, ...]
    smoothing: float = 0.25
    hysteresis: float = 0.1
    min_dwell_steps: int = 0
    exploration_seed: int = 0
    exploration_dwell_steps: int = 0
    life_steps: int = 1_000_000
    pin: Pin | None = None
    reason: str = ""
    then: Mode | None = None

    @property
    def modes(self) -> frozenset[Mode]:
        """Every mode that this lease can run."""
        found = {self.pin.mode} if self.pin else set()
        for entry in self.table:
            found.add(entry.mode)
            found.update(mode for mode, _ in entry.alternatives)
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a mode came from: the lease and its table entry; version 0 and entry -1 for a pin or a standby mode."""

    mode: Mode
    lease_version: int = 0
    table_entry: int = -1
    explored: bool = False


class LeaseError(ValueError):
    """A lease that no engine can follow. `field` names what is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field


def check_lease(lease: Lease) -> None:
    """Raise `LeaseError` unless the lease is well formed. Whether its modes exist is not looked at."""
    _require(lease.version > 0, "version", f"must be at least 1, is {lease.version}")
    _require(0 < lease.smoothing <= 1, "smoothing", f"must be in (0, 1], is {lease.smoothing}")
    _require(0 <= lease.hysteresis < 1, "hysteresis", f"must be in [0, 1), is {lease.hysteresis}")
    for field in ("min_dwell_steps", "exploration_dwell_steps"):
        value = getattr(lease, field)
        _require(0 <= value <= MAX_DWELL_STEPS, field, f"must be in [0, {MAX_DWELL_STEPS}], is {value}")
    _require(lease.life_steps > 0, "life_steps", f"must be at least 1, is {lease.life_steps}")
    _require(bool(lease.table) or lease.pin is not None, "table", "is empty and there is no pin")
    _check_table(lease.table)
    if lease.pin is not None and lease.pin.range is not None:
        _check_range(lease.modes, lease.pin.range)


def _check_table(table: tuple[TableEntry, ...]) -> None:
    _require(len(table) <= MAX_TABLE_ENTRIES, "table", f"has {len(table)} entries, at most {MAX_TABLE_ENTRIES}")
    edges = [entry.min_batch_size for entry in table]
    _require(edges == sorted(set(edges)), "table", f"must ascend by min_batch_size, is {edges}")
    _require(not edges or edges[0] <= 1, "table", f"must begin at 1, begins at {edges[0] if edges else None}")
    _require(not edges or edges[-1] <= MAX_BATCH_SIZE, "table", f"goes beyond {MAX_BATCH_SIZE}")
    for entry in table:
        _check_probabilities(entry)


def _check_range(modes: Iterable[Mode], allowed: StepRange) -> None:
    _require(allowed.min_steps <= allowed.max_steps, "pin.range", f"is empty: {allowed}")
    outside = sorted(mode for mode in modes if mode not in allowed)
    _require(not outside, "pin.range", f"is {allowed}, but the lease has {', '.join(map(str, outside))}")


def _check_probabilities(entry: TableEntry) -> None:
    where = f"table[{entry.min_batch_size}]"
    _require(len(entry.alternatives) <= MAX_ALTERNATIVES, where, f"has more than {MAX_ALTERNATIVES} alternatives")
    shares = [entry.probability, *(p for _, p in entry.alternatives)]
    _require(all(0 <= p <= 1 for p in shares), where, f"has probabilities outside [0, 1]: {shares}")
    _require(math.isclose(sum(shares), 1.0, abs_tol=1e-4), where, f"has probabilities that sum to {sum(shares)}")


def _require(condition: bool, field: str, problem: str) -> None:
    if not condition:
        raise LeaseError(field, problem)


def uniform(seed: int, counter: int) -> float:
    """A number in [0, 1) that depends on (seed, counter) alone: one round of SplitMix64.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    mask = 0xFFFF_FFFF_FFFF_FFFF
    z = (seed + (counter + 1) * 0x9E37_79B9_7F4A_7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58_476D_1CE4_E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D0_49BB_1331_11EB) & mask
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


NEVER = 1 << 62


class LeaseMachine:
    """Decides the mode of every decode step on one rank; None means the engine's own policy.

    The host's duties, in this order:

    1. `choose(batch_size)` exactly once for every decode launch, on every rank, with a batch size that is
       the same on every rank.
    2. `adopt`, `expire`, `drop_pin`, `release` and `fall_back` between launches, at the same launch on
       every rank; the host's clock decides when a life is over and the host says so with `expire`.
    3. After `choose`: `choice` says where it came from, for the record.

    Attributes:
        step: Decode launches so far: the decode step counter.
        mean: Running mean of the batch size, which reads the table.
        lease: Lease in force, or None.
        pin: Pin in force, or None.
        standby: What runs since the life of the last lease was over; None for the engine's own policy.
        choice: Where the mode of the last `choose` came from; None where it was the engine's own policy.
        switches: Changes of mode under leases and pins so far.
        last_version: Highest lease version ever adopted.
        fallen_back: Why this machine gave up for good; empty while it has not.
    """

    __slots__ = (
        "_band", "_changed_at", "_edges", "_expiry", "_high", "_idle", "_low", "_mode", "_review_at",
        "_weight", "choice", "fallen_back", "last_version", "lease", "mean", "pin", "standby", "step", "switches",
    )  # fmt: skip

    def __init__(self) -> None:
        self.step = 0
        self.lease: Lease | None = None
        self.pin: Pin | None = None
        self.standby: Mode | None = None
        self.switches = 0
        self.last_version = 0
        self.fallen_back = ""
        self._idle = True
        self._edges: tuple[int, ...] = ()
        self._weight = 1.0
        self.mean = 0.0
        self._expiry = self._review_at = NEVER
        self._forget()

    @property
    def version(self) -> int:
        """Lease that the last choice came from; 0 without one."""
        return self.choice.lease_version if self.choice else 0

    @property
    def entry(self) -> int:
        """Table entry that the last choice came from; -1 without one."""
        return self.choice.table_entry if self.choice else -1

    @property
    def explored(self) -> bool:
        """Whether the last choice was a draw other than the entry's first mode."""
        return self.choice is not None and self.choice.explored

    def choose(self, batch_size: int) -> Mode | None:
        """The mode of this decode launch, or None for the engine's own policy."""
        step = self.step = self.step + 1
        mean = self.mean = self.mean + self._weight * (batch_size - self.mean)
        # Where nothing is in force the bounds hold no mean, so the common case is looked at first.
        if self._low <= mean < self._high and step < self._review_at:
            return self._mode
        return None if self._idle else self._review(batch_size)

    def choose_again(self, batch_size: int, step: int, mean: float) -> Mode | None:
        """The choice of a `choose` that failed, made once more from the `step` and `mean` before it."""
        self.step, self.mean = step, mean
        return self.choose(batch_size)

    def hold(self, batch_size: int, step: int) -> Mode | None:
        """What to run at `step` where choosing keeps failing: the mode in force, or what the table begins with.

        Plain look-ups, for a rank that must not leave the others: they choose by the same lease or pin.
        """
        self.step = step
        if self.pin is not None:
            return self.pin.mode
        if self.lease is None or self._mode is not None:
            return None if self.lease is None else self._mode
        return self.lease.table[max(0, bisect_right(self._edges, batch_size) - 1)].mode

    def adopt(self, lease: Lease) -> bool:
        """Follow this lease from the next launch on; False if it is older than one seen before.

        The version in force again only extends its life. A pin comes and goes with the lease.
        """
        if self.fallen_back or lease.version < self.last_version:
            return False
        self.last_version = lease.version
        # The first launch that the lease no longer covers.
        self._expiry = self.step + lease.life_steps + 1
        if self.lease is not None and lease.version == self.lease.version and lease.pin == self.pin:
            return True
        # Before anything changes: a call that fails here can be made again.
        edges = tuple(entry.min_batch_size for entry in lease.table)
        self.pin = lease.pin
        self.lease, self.standby = (lease if lease.table else None), None
        # A new table is read afresh: with the hysteresis of the old band kept, simulation loses a percent in
        # phases whose batch wanders across an edge.
        self._edges, self._band = edges, -1
        self._weight = lease.smoothing
        self._settle()
        return True

    def expire(self, version: int) -> bool:
        """The life of this lease version is over; False if another one is in force."""
        if self.lease is None or self.lease.version != version:
            return False
        self._outlive(self.lease)
        return True

    def release(self) -> None:
        """Drop the lease, and what runs in place of one; a pin stays."""
        self.lease = self.standby = None
        self._settle()

    def _outlive(self, lease: Lease) -> None:
        """The life of the lease in force is over."""
        self.lease, self.standby = None, lease.then
        self._settle()

    def drop_pin(self, pin_id: str) -> bool:
        """The time of this pin is over; False if another one, or none, is in force."""
        if self.pin is None or self.pin.id != pin_id:
            return False
        self.pin = None
        self._settle()
        return True

    def fall_back(self, reason: str) -> None:
        """Follow the engine's own policy for good: the fuse is blown."""
        self.fallen_back = self.fallen_back or reason or "unknown"
        self.pin = None
        self.release()

    def _settle(self) -> None:
        """After a change of lease or pin: look again at the next launch."""
        self._idle = self.lease is None and self.pin is None and self.standby is None
        if self._idle:
            self._forget()
        self._low, self._high = math.inf, -math.inf

    def _forget(self) -> None:
        self._mode: Mode | None = None
        self.mean = 0.0
        self._band = -1
        self._low, self._high = math.inf, -math.inf
        self._changed_at = -NEVER
        self._review_at = NEVER
        self.choice: Choice | None = None

    def _review(self, batch_size: int) -> Mode | None:
        """The slow path: something other than the next step of the same band may be due."""
        if self.lease is not None and self.step >= self._expiry:
            self._outlive(self.lease)
        if self._mode is None:
            # A mean that nothing went into before. Also under a pin: the table may follow it.
            self.mean = float(batch_size)
        if self.pin is not None and (self.pin.range is None or self.lease is None):
            self._stay_at(self.pin.mode)
        elif self.standby is not None:
            self._stay_at(self.standby)
        elif self.lease is not None:
            self._find_band(self.lease.hysteresis)
            self._follow_entry(self.lease, self.lease.table[self._band])
        return self._mode

    def _stay_at(self, mode: Mode) -> None:
        """Run one mode at every batch size."""
        self._set_mode(Choice(mode))
        self._low, self._high = -math.inf, math.inf
        self._review_at = self._expiry if self.lease is not None else NEVER

    def _find_band(self, margin: float) -> None:
        """Move to the band of the running mean, unless it is within the margin of the present one."""
        if self._band < 0 or not (self._lower(margin) <= self.mean < self._upper(margin)):
            self._band = max(0, bisect_right(self._edges, self.mean) - 1)
        self._low, self._high = self._lower(margin), self._upper(margin)

    def _lower(self, margin: float) -> float:
        return -math.inf if self._band == 0 else self._edges[self._band] * (1 - margin)

    def _upper(self, margin: float) -> float:
        last = self._band + 1 == len(self._edges)
        return math.inf if last else self._edges[self._band + 1] * (1 + margin)

    def _follow_entry(self, lease: Lease, entry: TableEntry) -> None:
        """Run what the entry says, unless the present mode has not dwelt long enough."""
        dwell = lease.exploration_dwell_steps if entry.alternatives else 0
        block = self.step // dwell if dwell else 0
        wanted = entry.draw(uniform(lease.exploration_seed, block)) if dwell else entry.mode
        self._review_at = min(self._expiry, (block + 1) * dwell) if dwell else self._expiry
        free_at = self._changed_at + lease.min_dwell_steps
        if wanted != self._mode and self._mode is not None and self.step < free_at:
            self._review_at = min(self._review_at, free_at)
            return
        self._set_mode(Choice(wanted, lease.version, self._band, wanted != entry.mode))

    def _set_mode(self, choice: Choice) -> None:
        self.choice, mode = choice, choice.mode
        if mode != self._mode:
            if self._mode is not None:
                self.switches += 1
            self._mode = mode
            self._changed_at = self.step


def modes_of(steps: Iterable[int]) -> tuple[Mode, ...]:
    """The modes of these step counts, ascending; 0 is plain with a warm draft cache."""
    return tuple(speculate(k) for k in sorted(set(steps)))
