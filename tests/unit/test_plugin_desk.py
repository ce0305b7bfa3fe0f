"""How the plugin answers a lease: taken and posted, or refused and why; and what it does with a harmful one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from support.hooked_engine import CANDIDATES, one_mode_lease
from trimtab.session.events import SendLease
from trimtab.wire import lease_message
from trimtab_sglang import messages
from trimtab_sglang.desk import FIRST_HOLD_NS, LONGEST_HOLD_NS, LeaseDesk
from trimtab_sglang.fuse import Fuse
from trimtab_sglang.guard import Harm
from trimtab_sglang.lease import NEVER, PLAIN_WARM, Lease, LeaseMachine, Mode, Pin, TableEntry, modes_of, speculate
from trimtab_sglang.ranks import Order, Posted, apply
from trimtab_sglang.settings import OnExpiry
from trimtabpb.v1 import control_pb2 as pb

S = 1_000_000_000
HARM = Harm(0.62, 2 * S)
PIN = Pin("p1", PLAIN_WARM)


@dataclass
class Host:
    """A plugin that keeps what is posted, and applies it at once."""

    machine: LeaseMachine = field(default_factory=LeaseMachine)
    acts: bool = True
    observe_reasons: list[str] = field(default_factory=list)
    posted: list[Posted] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fuse = Fuse(self.machine.fall_back)

    def post(self, posted: Posted) -> None:
        self.posted.append(posted)
        apply(posted.command, self.machine)


class Desk:
    """A desk, its host, and a controller that numbers its messages."""

    def __init__(self, on_expiry: OnExpiry | None = None) -> None:
        self.host = Host()
        self.desk = LeaseDesk(self.host, modes_of(CANDIDATES), on_expiry)
        self.nonce = 0

    def take(self, lease: Lease, now_ns: int = 0, ttl_s: float = 2.0, pin_s: float | None = None) -> pb.Ack:
        self.nonce += 1
        return self.desk.take(lease_message(SendLease(lease, self.nonce, ttl_s, pin_s)).lease, now_ns)

    def refusal(self, lease: Lease, now_ns: int = 0) -> str:
        ack = self.take(lease, now_ns)
        assert not ack.accepted
        return f"{pb.Refusal.Name(ack.refusal)}: {ack.detail}"

    def in_force(self) -> tuple[int, Pin | None]:
        """Version of the lease in force (0 without one), and the pin."""
        machine = self.host.machine
        return machine.lease.version if machine.lease else 0, machine.pin

    @property
    def orders(self) -> list[Order]:
        return [posted.command.order for posted in self.host.posted]


def test_a_lease_that_is_taken_is_posted_with_the_deadlines_of_its_life_and_of_its_pin() -> None:
    desk = Desk()
    ack = desk.take(one_mode_lease(speculate(7), 4, pin=PIN), now_ns=S, ttl_s=2, pin_s=60)
    assert (ack.nonce, ack.version, ack.accepted, ack.detail) == (1, 4, True, "")
    (posted,) = desk.host.posted
    assert (posted.lease_deadline_ns, posted.pin_deadline_ns) == (3 * S, 61 * S)
    assert (desk.host.machine.last_version, desk.host.machine.pin) == (4, PIN)
    desk.take(one_mode_lease(speculate(7), 5, pin=PIN))
    assert desk.host.posted[-1].pin_deadline_ns == NEVER


@pytest.mark.parametrize(
    ("on_expiry", "life_s", "then"),
    [
        (OnExpiry(), 2, None),
        (OnExpiry(last_s=60), 62, None),
        (OnExpiry(PLAIN_WARM), 2, PLAIN_WARM),
        (OnExpiry(speculate(3)), 2, speculate(3)),
        (OnExpiry(speculate(4)), 2, None),
    ],
    ids=str,
)
def test_the_operators_wish_for_the_time_after_goes_with_every_lease(
    on_expiry: OnExpiry, life_s: int, then: Mode | None
) -> None:
    desk = Desk(on_expiry)
    desk.take(one_mode_lease(speculate(7)))
    (posted,) = desk.host.posted
    assert posted.lease_deadline_ns == life_s * S
    assert posted.command.lease is not None
    assert posted.command.lease.then == then
    assert str(desk.desk.on_expiry) == ("stock" if on_expiry.mode and then is None else str(on_expiry))


def test_a_version_older_than_one_applied_before_is_refused() -> None:
    desk = Desk()
    desk.take(one_mode_lease(speculate(7), 5))
    assert desk.refusal(one_mode_lease(speculate(7), 4)) == "REFUSAL_OUTDATED: version 5 was applied before"


def test_what_comes_a_second_time_gets_its_answer_again_and_nothing_happens() -> None:
    desk = Desk()
    message = lease_message(SendLease(one_mode_lease(speculate(7), 5), 1, 2.0)).lease
    first = desk.desk.take(message, 0)
    desk.desk.release("enough")
    assert desk.desk.take(message, S) == first
    assert desk.in_force() == (0, None)
    refused = lease_message(SendLease(one_mode_lease(speculate(2), 6), 2, 2.0)).lease
    assert desk.desk.take(refused, S) == desk.desk.take(refused, S)


def test_what_was_overtaken_is_refused_until_a_new_stream_begins() -> None:
    desk = Desk()
    late = lease_message(SendLease(one_mode_lease(speculate(3), 6), 1, 2.0)).lease
    desk.nonce = 1
    desk.take(one_mode_lease(speculate(3), 6))
    desk.desk.release("enough")
    assert desk.desk.take(late, 0).detail == "nonce 2 came before"
    assert desk.in_force() == (0, None)
    desk.desk.begin()
    assert desk.desk.take(late, 0).accepted


def table(*modes: Mode) -> pb.Lease:
    """A lease that nothing is wrong with, with one entry for each mode."""
    entries = tuple(TableEntry(i, mode) for i, mode in enumerate(modes, start=1))
    return lease_message(SendLease(Lease(9, entries), 1, 2.0)).lease


def changed(**fields: Any) -> pb.Lease:
    message = table(speculate(3), speculate(1))
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def with_ttl(seconds: int, nanos: int = 0) -> pb.Lease:
    message = table(speculate(3))
    message.ttl.seconds, message.ttl.nanos = seconds, nanos
    return message


def with_pin(**fields: Any) -> pb.Lease:
    message = table(speculate(3))
    message.pin.CopyFrom(pb.Pin(id="p", mode=messages.mode_to_wire(PLAIN_WARM)))
    for name, value in fields.items():
        if name == "remaining_s":
            message.pin.remaining.seconds = value
        else:
            setattr(message.pin, name, value)
    return message


def with_alternatives(number: int) -> pb.Lease:
    message = table(speculate(3))
    for _ in range(number):
        message.table[0].alternatives.add(mode=messages.mode_to_wire(speculate(1)), probability=0.0)
    return message


def holes() -> pb.Lease:
    message = table(speculate(3), speculate(1))
    del message.table[0]
    return message


LIES: dict[str, tuple[pb.Lease, str]] = {
    "a time to live of zero": (with_ttl(0), "ttl must be 0.1 to 600.0 s, is 0.0"),
    "of a century": (with_ttl(3_155_760_000), "ttl must be 0.1 to 600.0 s"),
    "a negative one": (with_ttl(-5, -1), "ttl must be 0.1 to 600.0 s"),
    "steps that are no candidate": (table(speculate(2)), "mode speculate(2) was not built"),
    "steps beyond anything": (table(speculate(4_000_000_000)), "mode speculate(4000000000) was not built"),
    "an unknown kind of mode": (
        pb.Lease(version=9, nonce=1, ttl={"seconds": 2}, table=[pb.TableEntry(mode=pb.Mode(kind=99))]),  # type: ignore[arg-type]
        "table[0] has the unknown mode kind 99",
    ),
    "plain with steps": (
        pb.Lease(
            version=9,
            nonce=1,
            ttl={"seconds": 2},  # type: ignore[arg-type]
            table=[pb.TableEntry(mode=pb.Mode(kind=pb.Mode.KIND_PLAIN_WARM, steps=3))],
        ),
        "table[0] plain_warm cannot have 3 steps",
    ),
    "no table": (pb.Lease(version=9, nonce=1, ttl={"seconds": 2}), "smoothing must be in (0, 1], is 0.0"),  # type: ignore[arg-type]
    "a table with a hole at the bottom": (holes(), "table must begin at 1, begins at 2"),
    "a table out of order": (table(), ""),
    "a table of thousands": (table(*[speculate(3)] * 5000), "table has 5000 entries, at most 64"),
    "alternatives by the hundred": (with_alternatives(500), "table[1] has 500 alternatives, at most 16"),
    "no version": (changed(version=0), "version must be at least 1, is 0"),
    "smoothing that is no number": (changed(smoothing=float("nan")), "smoothing is nan"),
    "hysteresis without an end": (changed(hysteresis=float("inf")), "hysteresis is inf"),
    "a dwell of weeks": (changed(min_dwell_steps=2_000_000_000), "min_dwell_steps must be in [0, 1000000]"),
    "a pin without an id": (with_pin(id=""), "pin.id must have 1 to 256 characters"),
    "a pin that was over before": (with_pin(remaining_s=-1), "pin.remaining must be 0 to 31622400 s, is -1.0"),
    "a pin for a century": (with_pin(remaining_s=3_155_760_000), "pin.remaining must be 0 to 31622400 s"),
}
# Descending entries cannot be written down with `table`.
LIES["a table out of order"][0].CopyFrom(table(speculate(3), speculate(1)))
LIES["a table out of order"][0].table[0].min_batch_size = 7
LIES["a table out of order"] = (LIES["a table out of order"][0], "table must ascend by min_batch_size, is [7, 2]")


@pytest.mark.parametrize(("message", "detail"), LIES.values(), ids=LIES)
def test_a_lying_lease_is_refused_and_nothing_is_posted(message: pb.Lease, detail: str) -> None:
    desk = Desk()
    ack = desk.desk.take(message, 0)
    assert not ack.accepted
    assert ack.refusal in (pb.REFUSAL_INVALID, pb.REFUSAL_NO_STATE)
    assert ack.detail.startswith(detail)
    assert desk.host.posted == []


def test_an_error_of_ours_over_a_message_is_a_refusal_and_no_fuse(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    monkeypatch.setattr(messages, "lease_from_wire", lambda *_, **__: 1 / 0)
    assert desk.refusal(one_mode_lease(speculate(3))) == "REFUSAL_INVALID: ZeroDivisionError: division by zero"
    assert not desk.host.fuse.blown


# -- harm ----------------------------------------------------------------------------------------


def test_a_harmful_lease_is_dropped_and_drafting_ones_are_refused_for_a_while() -> None:
    desk = Desk()
    desk.take(one_mode_lease(speculate(7), 4))
    ack = desk.desk.drop(HARM, 10 * S)
    assert ack is not None
    assert (ack.nonce, ack.version, ack.accepted, ack.refusal) == (1, 4, False, pb.REFUSAL_HARMFUL)
    detail = "0.62 of the tokens of plain decoding over 2.0 s; drafting leases are refused for 5 s"
    assert ack.detail == detail
    assert desk.orders == [Order.ADOPT, Order.RELEASE]
    assert desk.host.machine.lease is None

    assert desk.refusal(one_mode_lease(speculate(1), 5), 14 * S) == f"REFUSAL_HARMFUL: {detail}"
    assert desk.take(one_mode_lease(speculate(1), 5), 15 * S).accepted


def test_while_drafting_is_refused_plain_and_pins_are_not() -> None:
    desk = Desk()
    desk.take(one_mode_lease(speculate(7), 4))
    desk.desk.drop(HARM, 0)
    assert desk.take(one_mode_lease(PLAIN_WARM, 5), S).accepted
    assert desk.in_force() == (5, None)
    pin = Pin("p1", speculate(3))
    assert desk.take(one_mode_lease(speculate(7), 6, pin=pin), S).accepted
    assert desk.in_force() == (0, pin)


def test_a_table_with_a_drafting_alternative_drafts() -> None:
    desk = Desk()
    desk.take(one_mode_lease(speculate(7), 4))
    desk.desk.drop(HARM, 0)
    probing = Lease(5, (TableEntry(1, PLAIN_WARM, 0.9, ((speculate(1), 0.1),)),), exploration_dwell_steps=4)
    assert desk.refusal(probing).startswith("REFUSAL_HARMFUL")


def test_the_pause_doubles_with_every_harmful_lease_up_to_five_minutes() -> None:
    desk, now_ns, pauses = Desk(), 0, []
    for version in range(1, 10):
        assert desk.take(one_mode_lease(speculate(7), version), now_ns).accepted
        assert desk.desk.drop(HARM, now_ns) is not None
        held_ns = FIRST_HOLD_NS
        while desk.take(one_mode_lease(speculate(7), version + 1), now_ns + held_ns - 1).accepted:
            raise AssertionError("taken too early")
        while not desk.take(one_mode_lease(speculate(7), version + 1), now_ns + held_ns).accepted:
            held_ns = min(2 * held_ns, LONGEST_HOLD_NS)
        pauses.append(held_ns // S)
        now_ns += held_ns
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_after_a_long_time_without_harm_the_pause_is_short_again() -> None:
    desk, said = Desk(), []
    for version, now_ns in ((1, 0), (2, 6 * S), (3, 17 * S + LONGEST_HOLD_NS)):
        assert desk.take(one_mode_lease(speculate(7), version), now_ns).accepted
        ack = desk.desk.drop(HARM, now_ns)
        assert ack is not None
        said.append(ack.detail.rpartition(" for ")[2])
    assert said == ["5 s", "10 s", "5 s"]


def test_a_controller_that_has_gone_plain_since_is_left_alone() -> None:
    desk = Desk()
    desk.take(one_mode_lease(speculate(7), 4))
    desk.take(one_mode_lease(PLAIN_WARM, 5))
    assert desk.desk.drop(HARM, 0) is None
    assert desk.host.machine.lease is not None
    assert desk.take(one_mode_lease(speculate(7), 6)).accepted


def test_harm_without_a_lease_is_nobodys() -> None:
    desk = Desk()
    assert desk.desk.drop(HARM, 0) is None
    desk.take(one_mode_lease(speculate(7), 4))
    desk.desk.release("enough")
    assert desk.desk.drop(HARM, 0) is None
