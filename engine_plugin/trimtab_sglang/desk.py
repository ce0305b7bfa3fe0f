"""Where leases are answered: taken and posted to the scheduler thread, or refused and why.

Pure but for what it posts: time is an argument, and whoever calls sees to it that only one thread does at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from trimtab_sglang import messages
from trimtab_sglang.fuse import Fuse
from trimtab_sglang.guard import Harm
from trimtab_sglang.lease import NEVER, Lease, LeaseError, LeaseMachine, Mode
from trimtab_sglang.ranks import Command, Order, Posted
from trimtab_sglang.settings import OnExpiry
from trimtabpb.v1 import control_pb2 as pb

# Faster than any engine steps: the clock of the speaking rank ends a lease long before.
MAX_STEPS_PER_S = 20_000
NS_PER_S = 1_000_000_000
# How long drafting leases are refused after a harmful one: twice as long each time, until none came for long.
FIRST_HOLD_NS, LONGEST_HOLD_NS = 5 * NS_PER_S, 300 * NS_PER_S

Refused = tuple[pb.Refusal.ValueType, str]


class DeskHost(Protocol):
    """What the desk needs of the plugin around it."""

    machine: LeaseMachine
    fuse: Fuse
    observe_reasons: list[str]

    @property
    def acts(self) -> bool:
        """Whether leases are followed here."""

    def post(self, posted: Posted) -> None:
        """Hand a command to the scheduler thread."""


class LeaseDesk:
    """Answers the leases of one controller after the other.

    Args:
        host: The plugin.
        modes: Modes that were built.
        on_expiry: What the engine's operator wants when the life of the last lease is over.
    """

    def __init__(self, host: DeskHost, modes: Sequence[Mode], on_expiry: OnExpiry | None = None) -> None:
        self._host = host
        self._modes = frozenset(modes)
        self._on_expiry = on_expiry or OnExpiry()
        self._nonce = 0
        self._answer = pb.Ack()
        self._newest: Lease | None = None
        self._hold_ns = FIRST_HOLD_NS
        self._held_until_ns = 0
        self._harm = ""

    @property
    def on_expiry(self) -> OnExpiry:
        """What happens when the life of the last lease is over; a mode that was not built is none."""
        return self._on_expiry if self._on_expiry.mode in (None, *self._modes) else OnExpiry()

    def begin(self) -> None:
        """A new stream: its controller counts nonces from the start."""
        self._nonce, self._answer = 0, pb.Ack()

    def take(self, message: pb.Lease, now_ns: int) -> pb.Ack:
        """Check a lease and post it to the scheduler thread; the answer to it.

        What comes a second time gets its answer again, and nothing else happens.
        """
        if message.nonce and (message.nonce, message.version) == (self._nonce, self._answer.version):
            return self._answer
        ack = pb.Ack(nonce=message.nonce, version=message.version)
        try:
            refused = self._why_refused(message, now_ns)
        except Exception as error:  # noqa: BLE001 - no message may blow the fuse
            refused = pb.REFUSAL_INVALID, f"{type(error).__name__}: {error}"
        if refused is None:
            ack.accepted = True
        else:
            ack.refusal, ack.detail = refused[0], refused[1][:256]
        if message.nonce >= self._nonce:
            self._nonce, self._answer = message.nonce, ack
        return ack

    def release(self, reason: str) -> None:
        """The controller lets go: back to the engine's own policy at once."""
        self._newest = None
        # Where the plugin only observes, nobody may be there to take a command out of the requests again.
        if self._host.acts:
            self._host.post(Posted(Command(Order.RELEASE, reason=reason)))

    def drop(self, harm: Harm, now_ns: int) -> pb.Ack | None:
        """Drop the lease that did harm, and refuse drafting ones for a while; the refusal to send, if it was at fault.

        A lease that came since and only decodes plainly stays: its controller has mended it.
        """
        lease = self._newest
        if lease is None or not _drafts(lease) or not self._host.acts:
            return None
        since_ns = now_ns - self._held_until_ns
        if self._held_until_ns and since_ns > LONGEST_HOLD_NS:
            self._hold_ns = FIRST_HOLD_NS
        self._held_until_ns = now_ns + self._hold_ns
        self._harm = f"{harm}; drafting leases are refused for {self._hold_ns // NS_PER_S} s"
        self._hold_ns = min(2 * self._hold_ns, LONGEST_HOLD_NS)
        self.release(f"harmful: {harm}")
        self._answer = pb.Ack(nonce=self._nonce, version=lease.version, refusal=pb.REFUSAL_HARMFUL, detail=self._harm)
        return self._answer

    def _why_refused(self, message: pb.Lease, now_ns: int) -> Refused | None:
        host = self._host
        if host.fuse.blown:
            return pb.REFUSAL_FUSE, host.fuse.reason
        if not host.acts:
            return pb.REFUSAL_OBSERVING, "; ".join(host.observe_reasons)
        if message.version < host.machine.last_version:
            return pb.REFUSAL_OUTDATED, f"version {host.machine.last_version} was applied before"
        if 0 < message.nonce <= self._nonce:
            return pb.REFUSAL_OUTDATED, f"nonce {self._nonce} came before"
        try:
            lease, life_s, remaining_s = self._read(message)
        except messages.NoStateError as error:
            return pb.REFUSAL_NO_STATE, str(error)
        except LeaseError as error:
            return pb.REFUSAL_INVALID, str(error)
        if now_ns < self._held_until_ns and _drafts(lease):
            if lease.pin is None:
                return pb.REFUSAL_HARMFUL, self._harm
            # An operator's order is never refused; the table behind it is.
            lease = replace(lease, table=())
        self._newest = lease
        host.post(
            Posted(
                Command(Order.ADOPT, lease=lease),
                lease_deadline_ns=now_ns + round(life_s * NS_PER_S),
                pin_deadline_ns=NEVER if remaining_s is None else now_ns + round(remaining_s * NS_PER_S),
            )
        )
        return None

    def _read(self, message: pb.Lease) -> tuple[Lease, float, float | None]:
        """The lease as this engine takes it, its life and its pin's remaining time (None: until released), in s."""
        lease, ttl_s, remaining_s = messages.lease_from_wire(message, life_steps=1)
        missing = sorted(lease.modes - self._modes)
        if missing:
            built = ", ".join(map(str, sorted(self._modes)))
            raise messages.NoStateError("mode", f"{missing[0]} was not built; there are: {built}")
        life_s = ttl_s + self._on_expiry.last_s
        lease = replace(lease, life_steps=max(1, round(life_s * MAX_STEPS_PER_S)), then=self.on_expiry.mode)
        return lease, life_s, remaining_s


def _drafts(lease: Lease) -> bool:
    """Whether the table of this lease can run anything but plain."""
    return any(mode.steps for entry in lease.table for mode in (entry.mode, *(m for m, _ in entry.alternatives)))
