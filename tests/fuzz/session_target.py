"""Any program of an engine's and an operator's words for the controller's session: what it sends is always sound.

Words go through the wire's translation first, as in the daemon, so that only what is let in reaches the session.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from fuzz.program import Program
from trimtab.domain import Mode, Pin, check_lease, modes_of
from trimtab.errors import NotOfferedError, WireError
from trimtab.policies.registry import policy_factory
from trimtab.session.engine_session import EngineSession, SessionSettings
from trimtab.session.events import (
    Connected,
    Disconnected,
    Event,
    Pinned,
    PolicySet,
    Reported,
    SendLease,
    ShuttingDown,
    Ticked,
    Unpinned,
)
from trimtab.wire import lease_message, mode_to_wire, read_ack, read_hello, read_report
from trimtabpb.v1 import control_pb2 as pb

INSTRUMENT = ("trimtab.session", "trimtab.wire.upstream", "trimtab.wire.rows", "trimtab.wire.downstream")
MODES = modes_of([0, 1, 3, 5])
OFFERS = (MODES, MODES[1:], MODES[:1], modes_of([7]), ())
FACTORIES = (
    ("fixed", policy_factory("fixed", {"steps": "3"})),
    ("table", policy_factory("table", {})),
    ("sglang-ema", policy_factory("sglang-ema", {})),
)
MAX_OPERATIONS = 60
NS_PER_MS = 1_000_000


class Talk:
    """One session and what was sent by it."""

    def __init__(self, program: Program) -> None:
        name, factory = program.pick(FACTORIES)
        self.session = EngineSession(name, factory, SessionSettings())
        self.now_ns = 0
        self.seq = self.nonce = self.version = 0

    def step(self, event: Event) -> None:
        """Tell the session, and look at what it wants to be done."""
        for effect in self.session.step(event, self.now_ns):
            if isinstance(effect, SendLease):
                self.check(effect)

    def check(self, sent: SendLease) -> None:
        """A lease that an engine can follow, numbered upwards."""
        check_lease(sent.lease)
        assert self.session.connected
        assert self.session.info is not None
        assert self.session.info.acts
        assert sent.nonce > self.nonce
        assert sent.lease.version >= self.version
        self.nonce, self.version = sent.nonce, sent.lease.version
        assert lease_message(sent).ByteSize() < 100_000


def one_input(data: bytes) -> None:
    """Run the bytes as a program."""
    program = Program(data)
    talk = Talk(program)
    for _ in range(MAX_OPERATIONS):
        if program.over:
            break
        talk.now_ns += program.pick((0, 1, 125, 1000, 2500, 60_000)) * NS_PER_MS
        event = next_event(program, talk)
        if event is not None:
            talk.step(event)


def next_event(program: Program, talk: Talk) -> Event | None:
    """What is said next; None if it is not let in."""
    session = talk.session
    try:
        match program.byte() % 10:
            case 0 | 1:
                talk.seq = 0
                return Connected(read_hello(hello(program))[0])
            case 2 | 3 | 4:
                return Reported(read_report(report(program, talk))[0]) if session.connected else None
            case 5:
                return read_ack(ack(program, talk)) if session.connected else None
            case 6:
                return operators_word(program, session)
            case 7:
                return Disconnected("lost") if not program.chance(20) else ShuttingDown()
            case _:
                return Ticked()
    except (WireError, NotOfferedError):
        return None


def operators_word(program: Program, session: EngineSession) -> Event | None:
    """An order, checked as the daemon does before it reaches the session."""
    match program.byte() % 4:
        case 0 | 1:
            wanted = program.pick((None, *MODES, Mode(MODES[1].kind, 9)))
            if wanted is None:
                wanted = session.cheapest_plain()
            session.check_mode(wanted)
            return Pinned(Pin(program.pick(("p1", "p2")), wanted), program.pick((None, 1.0, 60.0)))
        case 2:
            return Unpinned()
        case _:
            name, factory = program.pick(FACTORIES)
            session.check_policy(name, factory)
            return PolicySet(name, factory)


def hello(program: Program) -> pb.Hello:
    """Who the engine is, sound more often than not."""
    offers = program.pick(OFFERS)
    message = pb.Hello(
        protocol_version=program.pick((1, 1, 1, 2, 0)), engine_id=program.pick(("e", "e", "", "e/1")),
        boot_id=program.pick(("b1", "b2", "b3")), modes=[mode_to_wire(mode) for mode in offers],
        graph_batch_sizes=program.pick(((1, 2, 4, 8), (), (8, 1), (0,))),
        max_running_requests=program.pick((8, 0, 1 << 21)),
        acts=not program.chance(8), last_lease_version=program.pick((0, 0, 5, 1 << 62, 1 << 63)),
        resets=program.byte() % 4, in_force=in_force(program),
    )  # fmt: skip
    message.speculation.weight_version = program.pick(("v1", "v2"))
    message.speculation.initial_steps = program.pick((3, 0, 99))
    if program.chance(4):
        message.pin.CopyFrom(pb.Pin(id=program.pick(("p1", "")), mode=mode_to_wire(program.pick(MODES))))
        if program.chance(2):
            message.pin.remaining.seconds = program.pick((5, 0, -1, 1 << 40))
    return message


def in_force(program: Program) -> pb.InForce:
    """What runs, as the engine says."""
    return pb.InForce(
        source=program.byte() % 6, mode=mode_to_wire(program.pick(MODES)), lease_version=program.byte(),  # type: ignore[arg-type]
        pin_id=program.pick(("", "p1")), fuse_reason=program.pick(("", "boom")), after_expiry=program.chance(4),
    )  # fmt: skip


def report(program: Program, talk: Talk) -> pb.Report:
    """A report with a few rows, sound more often than not."""
    talk.seq += program.pick((1, 1, 1, 0, 5))
    message = pb.Report(
        seq=talk.seq, now_ns=talk.now_ns, in_force=in_force(program), running_requests=program.byte() % 9
    )
    message.resets, message.weight_version = program.byte() % 4, program.pick(("", "v2"))
    if program.chance(4):
        message.last_step_age_ns = program.number(1 << 40)
    rows, n = message.rows, program.byte() % 4
    for i in range(n):
        chosen, size = program.pick(MODES), 1 + program.byte() % 8
        kind = pb.Mode.KIND_SPECULATE if chosen.steps else pb.Mode.KIND_PLAIN_WARM
        rows.launch_id.append(i)
        rows.step.append(i)
        rows.result_ns.append(talk.now_ns)
        rows.mode_kind.append(kind)
        rows.mode_steps.append(chosen.steps)
        rows.batch_size.append(size)
        rows.fresh_requests.append(size if not program.chance(16) else program.byte())
        rows.emitted_tokens.append(program.byte())
        rows.step_ns.append(program.pick((8, 20, -1, 1 << 40)) * NS_PER_MS)
    return message


def ack(program: Program, talk: Talk) -> pb.Ack:
    """An answer to some lease, perhaps to the last one."""
    return pb.Ack(
        nonce=program.pick((talk.nonce, talk.nonce, program.byte(), 0)), version=talk.version,
        accepted=not program.chance(3), refusal=program.byte() % 8, detail=program.pick(("", "because")),  # type: ignore[arg-type]
    )  # fmt: skip


def seeds() -> Iterable[bytes]:
    """Programs of different lengths, drawn once and for all."""
    drawn = random.Random(2)
    return [drawn.randbytes(length) for length in (1, 20, 60, 200, 600) for _ in range(4)]
