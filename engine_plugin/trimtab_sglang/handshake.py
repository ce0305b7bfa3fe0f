"""Do all ranks run this very plugin? Asked once at start-up, before any rank does what a single one could not undo.

Every rank puts a record into the store that its process group was made with; the rank that speaks compares them and
puts its verdict there for all. A rank that says nothing has no plugin, or another one: then nobody acts.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from trimtab_sglang.shared_words import SharedWords

# Ranks come here within a moment of each other: loading the weights ends with a barrier.
WAIT_S = 20.0
# The others wait longer than the rank that speaks, so that all come to the same verdict.
VERDICT_WAIT_S = WAIT_S + 20.0
POLL_S = 0.02
PREFIX = "trimtab/1"
AGREED = "agreed"


class Store(Protocol):
    """A key-value store that all ranks reach: torch's, of the default process group."""

    def set(self, key: str, value: str, /) -> None:
        """Put a value there."""

    def get(self, key: str, /) -> bytes:
        """The value; waits until there is one."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all of these keys have a value."""


@dataclass(frozen=True, slots=True)
class World:
    """The ranks that take part in one another's collectives, and this process's place among them."""

    rank: int
    size: int
    store: Store


@dataclass(frozen=True, slots=True)
class Record:
    """What a rank says of itself.

    Attributes:
        digest: Hash of its plugin's code.
        host: The machine that it runs on.
        problem: Why it cannot act, for people; empty if it can.
        words: File of the shared words, from the rank that speaks.
    """

    digest: str
    host: str
    problem: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The words that all ranks share, or why they cannot act together."""

    words: SharedWords | None
    problem: str = ""


def shake_hands(
    world: World,
    digest: str,
    problem: str = "",
    host: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Find out whether all ranks of `world` can act together. Waits for them, `VERDICT_WAIT_S` at most; never raises.

    Args:
        world: The ranks.
        digest: Hash of this rank's plugin.
        problem: Why this rank cannot act; empty if it can.
        host: This machine's name for itself.
        sleep: Lets time pass.
        monotonic: Clock, in s.
    """
    own = Record(digest, host or host_id(), problem)
    meeting = _Meeting(world, sleep, monotonic)
    try:
        return meeting.lead(own) if world.rank == 0 else meeting.follow(own)
    except Exception as error:  # noqa: BLE001 - the store is SGLang's, and what it raises is a matter of the version
        return Outcome(None, f"the ranks could not compare their plugins: {type(error).__name__}: {error}")


class _Meeting:
    def __init__(self, world: World, sleep: Callable[[float], None], monotonic: Callable[[], float]) -> None:
        self._world = world
        self._sleep = sleep
        self._monotonic = monotonic

    def lead(self, own: Record) -> Outcome:
        """The side of the rank that speaks."""
        words, path = SharedWords.create(self._world.size)
        try:
            self._say(Record(own.digest, own.host, own.problem, str(path)))
            others = range(1, self._world.size)
            self._await([_key(rank) for rank in others], WAIT_S)
            problems = [self._problem_of(rank, own) for rank in others]
        finally:
            path.unlink(missing_ok=True)
        verdict = "; ".join(filter(None, [own.problem, *problems]))
        self._world.store.set(f"{PREFIX}/verdict", verdict or AGREED)
        return Outcome(None if verdict else words, verdict)

    def follow(self, own: Record) -> Outcome:
        """The side of every other rank."""
        leader = self._record(0) if self._await([_key(0)], WAIT_S) else None
        words, problem = _join(own, leader, self._world.size)
        self._say(Record(own.digest, own.host, problem))
        if leader is None:
            return Outcome(None, "rank 0 has no plugin that acts")
        if not self._await([f"{PREFIX}/verdict"], VERDICT_WAIT_S):
            return Outcome(None, f"rank 0 came to no verdict within {VERDICT_WAIT_S:.0f} s")
        verdict = self._world.store.get(f"{PREFIX}/verdict").decode()
        return Outcome(words) if verdict == AGREED else Outcome(None, verdict)

    def _problem_of(self, rank: int, own: Record) -> str:
        record = self._record(rank) if self._world.store.check([_key(rank)]) else None
        if record is None:
            return f"rank {rank} has no plugin that acts, or another one: it said nothing within {WAIT_S:.0f} s"
        if record.digest != own.digest:
            return f"rank {rank} has another version of the plugin: {record.digest}, rank 0 has {own.digest}"
        if record.host != own.host:
            return f"rank {rank} runs on another host, where it could not raise an alarm without a collective"
        return f"rank {rank}: {record.problem}" if record.problem else ""

    def _say(self, record: Record) -> None:
        self._world.store.set(_key(self._world.rank), json.dumps(asdict(record)))

    def _record(self, rank: int) -> Record | None:
        """A rank's record; None if it is not one of this form."""
        try:
            return Record(**json.loads(self._world.store.get(_key(rank))))
        except (TypeError, ValueError):
            return None

    def _await(self, keys: Sequence[str], seconds: float) -> bool:
        """Whether all keys are there, at the latest after so long."""
        deadline = self._monotonic() + seconds
        while not self._world.store.check(list(keys)):
            if self._monotonic() > deadline:
                return False
            self._sleep(POLL_S)
        return True


def _join(own: Record, leader: Record | None, ranks: int) -> tuple[SharedWords | None, str]:
    """The words of the rank that speaks, and this rank's problem if it has one."""
    if own.problem or leader is None or (leader.digest, leader.host) != (own.digest, own.host):
        return None, own.problem
    try:
        return SharedWords.open(Path(leader.words), ranks), ""
    except (OSError, ValueError) as error:
        return None, f"it cannot share memory with rank 0: {error}"


def _key(rank: int) -> str:
    return f"{PREFIX}/rank/{rank}"


def host_id() -> str:
    """This machine, by a name that no other running machine has."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def torch_world() -> World | None:
    """The ranks of torch's default process group; None for a process that is alone."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    size = distributed.get_world_size()
    if size < 2:
        return None
    from torch.distributed.distributed_c10d import _get_default_store

    return World(distributed.get_rank(), size, _get_default_store())
