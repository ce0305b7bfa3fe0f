"""Any program of leases, losses and launches for the plugin's side: desk, mailbox and the lease machines of two ranks.

Both ranks get the same commands and must choose the same; what they run was built; a life that is over is over.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from fuzz.program import Program
from trimtab_sglang.desk import LeaseDesk
from trimtab_sglang.fuse import Fuse
from trimtab_sglang.guard import Harm
from trimtab_sglang.lease import PLAIN_WARM, LeaseMachine, Mode, modes_of, speculate
from trimtab_sglang.ranks import MAX_QUEUED, Command, Mailbox, Order, Posted, apply
from trimtab_sglang.settings import OnExpiry
from trimtabpb.v1 import control_pb2 as pb

INSTRUMENT = ("trimtab_sglang.desk", "trimtab_sglang.lease", "trimtab_sglang.ranks", "trimtab_sglang.messages")
BUILT = modes_of([0, 1, 3, 5])
NS_PER_MS = 1_000_000
MAX_OPERATIONS = 200
FLOATS = (0.0, 1.0, 0.25, 0.5, 1.0001, -1.0, math.nan, math.inf, 1e-30)
ON_EXPIRY = (OnExpiry(), OnExpiry(PLAIN_WARM), OnExpiry(speculate(3)), OnExpiry(speculate(4)), OnExpiry(last_s=3.0))


class Engine:
    """The plugin's side, without a scheduler around it."""

    def __init__(self, on_expiry: OnExpiry) -> None:
        self.machine, self.other = LeaseMachine(), LeaseMachine()
        self.fuse = Fuse(lambda reason: None)
        self.observe_reasons: list[str] = []
        self.mailbox = Mailbox()
        self.now_ns = 1
        self.desk = LeaseDesk(self, BUILT, on_expiry)

    @property
    def acts(self) -> bool:
        """It always does."""
        return not self.fuse.blown

    def post(self, posted: Posted) -> None:
        """Into the mailbox."""
        self.mailbox.post(posted)
        assert len(self.mailbox.posted) <= MAX_QUEUED

    def collect(self) -> None:
        """What every rank gets with the requests of an iteration."""
        for command in self.mailbox.collect(self.now_ns):
            apply(command, self.machine)
            apply(command, self.other)
        assert not self.mailbox.posted
        assert self.mailbox.next_deadline_ns > self.now_ns

    def launch(self, batch_size: int) -> None:
        """A decode step on both ranks."""
        mode, other = self.machine.choose(batch_size), self.other.choose(batch_size)
        assert mode == other
        assert mode is None or mode in BUILT
        machine = self.machine
        assert (mode is None) == (machine.lease is None and machine.pin is None and machine.standby is None)
        assert machine.pin is None or mode == machine.pin.mode
        assert machine.choice is None or machine.choice.mode == mode
        assert not machine.fallen_back or mode is None


def one_input(data: bytes) -> None:
    """Run the bytes as a program."""
    program = Program(data)
    engine = Engine(program.pick(ON_EXPIRY))
    nonce = 0
    for _ in range(MAX_OPERATIONS):
        if program.over:
            break
        match program.byte() % 12:
            case 0 | 1 | 2 | 3:
                nonce += 1
                check_answer(engine, lease(program, nonce))
            case 4 | 5:
                engine.collect()
            case 6 | 7 | 8:
                for _ in range(program.number(15)):
                    engine.launch(program.pick((0, 1, 2, 7, 8, 33, 65_536)))
            case 9:
                engine.now_ns += program.pick((1, 50, 700, 2500, 700_000)) * NS_PER_MS
            case 10:
                other_operation(program, engine)
            case _:
                engine.desk.begin()
                nonce = 0


def other_operation(program: Program, engine: Engine) -> None:
    """What happens less often."""
    match program.byte() % 5:
        case 0:
            engine.desk.release("enough")
        case 1:
            ack = engine.desk.drop(Harm(0.5, 1), engine.now_ns)
            assert ack is None or (ack.refusal == pb.REFUSAL_HARMFUL and not ack.accepted)
        case 2:
            engine.post(Posted(Command(Order.EXPIRE, version=program.byte())))
        case 3:
            engine.post(Posted(Command(Order.DROP_PIN, pin_id=program.pick(("a", "b", "")))))
        case _:
            if program.chance(16):
                engine.post(Posted(Command(Order.FALL_BACK, reason="boom")))


def check_answer(engine: Engine, message: pb.Lease) -> None:
    """What is accepted can be followed; what is refused says why."""
    ack = engine.desk.take(message, engine.now_ns)
    assert (ack.nonce, ack.version) == (message.nonce, message.version)
    assert ack.accepted != bool(ack.detail)
    assert len(ack.detail) <= 256
    assert not ack.accepted or ack.refusal == pb.REFUSAL_UNSPECIFIED


def lease(program: Program, nonce: int) -> pb.Lease:
    """A lease, sound more often than not."""
    message = pb.Lease(
        version=program.pick((1, 2, 3, nonce, nonce + 1, 0, 1 << 63)),
        nonce=nonce if not program.chance(16) else program.byte(),
        smoothing=program.pick((1.0, 0.25, *FLOATS)), hysteresis=program.pick((0.0, 0.1, *FLOATS)),
        min_dwell_steps=program.pick((0, 0, 3, 40, 1 << 31)),
    )  # fmt: skip
    message.ttl.nanos = program.pick((500 * NS_PER_MS, 500 * NS_PER_MS, 0, -1, 5))
    message.ttl.seconds = program.pick((1, 2, 0, 599, 601, 1 << 40))
    message.exploration.dwell_steps = program.pick((0, 1, 16, 1 << 31))
    edge = 1
    for _ in range(program.pick((1, 1, 2, 5, 0, 70))):
        entry = message.table.add(min_batch_size=edge, mode=mode(program), probability=1.0)
        if program.chance(4):
            entry.probability = program.pick((0.5, 0.75, *FLOATS))
            entry.alternatives.add(mode=mode(program), probability=program.pick((0.5, 0.25, *FLOATS)))
        edge += program.pick((1, 8, 30, 0, 70_000))
    if program.chance(3):
        message.pin.CopyFrom(pb.Pin(id=program.pick(("a", "b", "")), mode=mode(program)))
        if program.chance(2):
            message.pin.remaining.seconds = program.pick((1, 5, 0, -1, 1 << 40))
    return message


def mode(program: Program) -> pb.Mode:
    """A mode that was built, more often than not."""
    if program.chance(12):
        return pb.Mode(kind=program.byte() % 6, steps=program.number((1 << 32) - 1))  # type: ignore[arg-type]
    chosen: Mode = program.pick(BUILT)
    kind = pb.Mode.KIND_SPECULATE if chosen.steps else pb.Mode.KIND_PLAIN_WARM
    return pb.Mode(kind=kind, steps=chosen.steps)


def seeds() -> Iterable[bytes]:
    """Programs of different lengths, drawn once and for all."""
    drawn = random.Random(1)
    return [drawn.randbytes(length) for length in (1, 20, 60, 200, 600) for _ in range(4)]
