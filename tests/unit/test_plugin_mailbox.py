"""Commands on their way to every rank, and the deadlines that the speaking rank alone looks at."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from support.hooked_engine import one_mode_lease
from trimtab_sglang.lease import NEVER, PLAIN_WARM, Lease, LeaseMachine, Pin, speculate
from trimtab_sglang.ranks import MAX_QUEUED, Command, Mailbox, Order, Posted, apply, take_commands

S = 1_000_000_000
PIN = Pin("p1", PLAIN_WARM)


def adopt(version: int = 1, lease_deadline_ns: int = NEVER, pin_deadline_ns: int = NEVER, **fields: Any) -> Posted:
    lease = one_mode_lease(speculate(3), version, **fields)
    return Posted(Command(Order.ADOPT, lease=lease), lease_deadline_ns, pin_deadline_ns)


def due(mailbox: Mailbox, now_ns: int) -> list[tuple[str, int | str]]:
    """What is due, each command as its name and what it is about."""
    return [(c.order.value, c.lease.version if c.lease else c.version or c.pin_id) for c in mailbox.collect(now_ns)]


def mailbox(*posted: Posted) -> Mailbox:
    made = Mailbox()
    for one in posted:
        made.post(one)
    return made


def test_commands_come_out_once_and_in_their_order() -> None:
    posted = mailbox(adopt(1), Posted(Command(Order.RELEASE)), adopt(2))
    assert due(posted, 0) == [("adopt", 1), ("release", ""), ("adopt", 2)]
    assert due(posted, 0) == []


def test_the_first_look_is_always_worth_it_and_later_ones_only_at_a_deadline() -> None:
    posted = mailbox()
    assert posted.next_deadline_ns == 0
    posted.collect(S)
    assert posted.next_deadline_ns == NEVER
    posted.post(adopt(1, 2 * S, 5 * S, pin=PIN))
    posted.collect(S)
    assert posted.next_deadline_ns == 2 * S
    posted.collect(2 * S)
    assert posted.next_deadline_ns == 5 * S


def test_where_no_step_ends_the_link_has_the_mailbox_looked_at_once_a_deadline_is_over() -> None:
    posted = mailbox(adopt(1, 2 * S))
    posted.collect(S)
    posted.look_again(2 * S - 1)
    assert posted.next_deadline_ns == 2 * S
    posted.look_again(2 * S)
    assert posted.next_deadline_ns == 0
    assert due(posted, 2 * S) == [("expire", 1)]
    assert posted.next_deadline_ns == NEVER


def test_if_nobody_collects_the_oldest_fall_out() -> None:
    posted = mailbox(*(adopt(version) for version in range(1, 101)))
    assert [version for _, version in due(posted, 0)] == list(range(101 - MAX_QUEUED, 101))


def test_the_end_of_a_life_becomes_a_command_once() -> None:
    posted = mailbox(adopt(3, 2 * S))
    assert due(posted, S) == [("adopt", 3)]
    assert due(posted, 2 * S - 1) == []
    assert due(posted, 2 * S) == [("expire", 3)]
    assert due(posted, 9 * S) == []


def test_the_end_of_a_pin_becomes_a_command_once() -> None:
    posted = mailbox(adopt(3, 2 * S, 3 * S, pin=PIN))
    posted.collect(S)
    assert due(posted, 3 * S) == [("expire", 3), ("drop_pin", "p1")]
    assert due(posted, 9 * S) == []


def test_a_lease_that_waited_too_long_ends_as_it_comes() -> None:
    assert due(mailbox(adopt(3, S, S, pin=PIN)), 5 * S) == [("adopt", 3), ("expire", 3), ("drop_pin", "p1")]


def test_a_renewal_moves_the_deadline() -> None:
    posted = mailbox(adopt(3, 2 * S))
    posted.collect(S)
    posted.post(adopt(3, 3 * S))
    assert due(posted, 2 * S) == [("adopt", 3)]
    assert due(posted, 3 * S) == [("expire", 3)]


def test_a_new_lease_takes_the_deadline_of_the_old_one_with_it() -> None:
    posted = mailbox(adopt(3, 2 * S))
    posted.collect(S)
    posted.post(adopt(4, 5 * S))
    assert due(posted, 4 * S) == [("adopt", 4)]
    assert due(posted, 5 * S) == [("expire", 4)]


def test_a_release_clears_the_deadline_of_the_lease_and_leaves_that_of_the_pin() -> None:
    posted = mailbox(adopt(3, 2 * S, 4 * S, pin=PIN), Posted(Command(Order.RELEASE)))
    posted.collect(S)
    assert due(posted, 3 * S) == []
    assert due(posted, 4 * S) == [("drop_pin", "p1")]


def test_a_lease_without_a_pin_clears_the_deadline_of_the_pin() -> None:
    posted = mailbox(adopt(3, 2 * S, 4 * S, pin=PIN), adopt(4))
    posted.collect(S)
    assert posted.next_deadline_ns == NEVER
    assert posted.pin_remaining_s(S) is None


@pytest.mark.parametrize(("now_ns", "left_s"), [(0, 4.0), (3 * S, 1.0), (4 * S, 0.0), (9 * S, 0.0)])
def test_the_time_that_a_pin_has_left(now_ns: int, left_s: float) -> None:
    posted = mailbox(adopt(3, NEVER, 4 * S, pin=PIN))
    assert posted.pin_remaining_s(0) is None
    posted.collect(0)
    assert posted.pin_remaining_s(now_ns) == left_s


# -- in the requests of an iteration -------------------------------------------------------------


def test_commands_are_taken_out_of_the_requests_in_their_order() -> None:
    first, second = Command(Order.RELEASE), Command(Order.EXPIRE, version=1)
    assert take_commands(["a", first, "b", second]) == (["a", "b"], [first, second])
    assert take_commands([]) == ([], [])


COMMANDS = [
    Command(Order.ADOPT, lease=one_mode_lease(speculate(3), 2, pin=PIN, reason="ucb: exploit")),
    Command(Order.EXPIRE, version=2),
    Command(Order.DROP_PIN, pin_id="p1"),
    Command(Order.RELEASE, reason="controller stops"),
    Command(Order.FALL_BACK, reason="KeyError: 3"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.order.value)
def test_a_command_survives_the_broadcast(command: Command) -> None:
    assert pickle.loads(pickle.dumps(command)) == command


def applied(*commands: Command) -> LeaseMachine:
    machine = LeaseMachine()
    for command in commands:
        apply(command, machine)
    return machine


def test_commands_do_to_a_machine_what_they_say() -> None:
    adopted, expire, drop_pin, release, fall_back = COMMANDS
    lease = adopted.lease

    def state(machine: LeaseMachine) -> tuple[Lease | None, Pin | None, str]:
        return machine.lease, machine.pin, machine.fallen_back

    assert state(applied(adopted)) == (lease, PIN, "")
    assert state(applied(adopted, expire)) == (None, PIN, "")
    assert state(applied(adopted, drop_pin)) == (lease, None, "")
    assert state(applied(adopted, release)) == (None, PIN, "")
    assert state(applied(adopted, fall_back)) == (None, None, "KeyError: 3")
    assert state(applied(adopted, fall_back, adopted)) == (None, None, "KeyError: 3")
