"""How a decision reaches every rank at the same iteration: through the scheduler's own request broadcast.

The link thread of the speaking rank puts commands into a mailbox. A hook on the request receiver appends
them to the requests of an iteration, SGLang broadcasts those to every rank, and a hook on request
processing takes them out again and applies them. Time never decides on a rank: the speaking rank alone
looks at the clock, and an end of life is a command like any other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trimtab_sglang.lease import NEVER, Lease, LeaseMachine

MAX_QUEUED = 16


class Order(StrEnum):
    """What a command asks of every rank's lease machine."""

    ADOPT = "adopt"
    EXPIRE = "expire"
    DROP_PIN = "drop_pin"
    RELEASE = "release"
    FALL_BACK = "fall_back"


@dataclass(frozen=True, slots=True)
class Command:
    """One object in the request broadcast. Plain data, so that any rank with this plugin can unpickle it."""

    order: Order
    lease: Lease | None = None
    version: int = 0
    pin_id: str = ""
    reason: str = ""


def apply(command: Command, machine: LeaseMachine) -> None:
    """Carry out a command on this rank's machine."""
    match command.order:
        case Order.ADOPT:
            assert command.lease is not None
            machine.adopt(command.lease)
        case Order.EXPIRE:
            machine.expire(command.version)
        case Order.DROP_PIN:
            machine.drop_pin(command.pin_id)
        case Order.RELEASE:
            machine.release()
        case Order.FALL_BACK:
            machine.fall_back(command.reason)


@dataclass(frozen=True, slots=True)
class Posted:
    """A command with the deadlines that it sets, on the speaking rank's monotonic clock."""

    command: Command
    lease_deadline_ns: int = NEVER
    pin_deadline_ns: int = NEVER


class Mailbox:
    """Commands on their way from the link thread to the scheduler thread of the speaking rank.

    `post` and `look_again` belong to the link thread, everything else to the scheduler thread; neither locks or
    waits. If the scheduler does not come round, older commands fall out: a later lease stands for all before it.

    Attributes:
        posted: Commands not yet collected.
        next_deadline_ns: When `collect` has something to say although nothing was posted. It starts at 0,
            so that the first look at the mailbox is always worth it.
    """

    __slots__ = ("_lease_deadline_ns", "_pin_deadline_ns", "_pin_id", "_version", "next_deadline_ns", "posted")

    def __init__(self) -> None:
        self.posted: deque[Posted] = deque(maxlen=MAX_QUEUED)
        self.next_deadline_ns = 0
        self._version = 0
        self._pin_id = ""
        self._lease_deadline_ns = self._pin_deadline_ns = NEVER

    def post(self, posted: Posted) -> None:
        """Hand over a command."""
        self.posted.append(posted)

    def look_again(self, now_ns: int) -> None:
        """Where no step ends, nobody looks at the clock: the link thread does, and has the mailbox looked at."""
        if now_ns >= self.next_deadline_ns:
            self.next_deadline_ns = 0

    def collect(self, now_ns: int) -> list[Command]:
        """The commands that are due at `now_ns`."""
        due = []
        while self.posted:
            due.append(self._take(self.posted.popleft()))
        due += self._overdue(now_ns)
        self.next_deadline_ns = min(self._lease_deadline_ns, self._pin_deadline_ns)
        return due

    def pin_remaining_s(self, now_ns: int) -> float | None:
        """Seconds until the pin's own deadline; None without one."""
        deadline_ns = self._pin_deadline_ns
        return None if deadline_ns == NEVER else max(0.0, (deadline_ns - now_ns) / 1e9)

    def _take(self, posted: Posted) -> Command:
        command = posted.command
        if command.order is Order.ADOPT and command.lease is not None:
            pin = command.lease.pin
            self._version, self._lease_deadline_ns = command.lease.version, posted.lease_deadline_ns
            self._pin_id, self._pin_deadline_ns = pin.id if pin else "", posted.pin_deadline_ns
        elif command.order in (Order.RELEASE, Order.FALL_BACK):
            self._lease_deadline_ns = NEVER
        return command

    def _overdue(self, now_ns: int) -> list[Command]:
        due = []
        if now_ns >= self._lease_deadline_ns:
            self._lease_deadline_ns = NEVER
            due.append(Command(Order.EXPIRE, version=self._version))
        if now_ns >= self._pin_deadline_ns:
            self._pin_deadline_ns = NEVER
            due.append(Command(Order.DROP_PIN, pin_id=self._pin_id))
        return due


def take_commands(requests: list[Any]) -> tuple[list[Any], list[Command]]:
    """SGLang's requests without our commands, and the commands in their order."""
    return [r for r in requests if type(r) is not Command], [r for r in requests if type(r) is Command]
