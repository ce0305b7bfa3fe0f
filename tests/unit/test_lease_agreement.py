"""Every rank chooses the same, and the quick way through `choose` decides what the rule says."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab_sglang.lease import Choice, Lease, LeaseMachine, Mode, Pin, TableEntry, check_lease, modes_of, uniform
from trimtab_sglang.ranks import Command, Order, apply

MODES = modes_of([0, 1, 3, 5])


@dataclass
class SpelledOut:
    """The rule in the order in which it is told, looked at afresh at every step."""

    step: int = 0
    lease: Lease | None = None
    pin: Pin | None = None
    standby: Mode | None = None
    choice: Choice | None = None
    switches: int = 0
    last_version: int = 0
    covered: int = 0
    weight: float = 1.0
    mean: float = 0.0
    band: int | None = None
    mode: Mode | None = None
    changed_at: int = field(default=0)

    def choose(self, batch_size: int) -> Mode | None:
        self.step += 1
        if self.lease and self.step > self.covered:
            self.outlive(self.lease)
        if self.lease is None and self.pin is None and self.standby is None:
            return None
        self.mean = batch_size if self.mode is None else self.mean + self.weight * (batch_size - self.mean)
        if self.pin:
            self.run(Choice(self.pin.mode))
        elif self.standby:
            self.run(Choice(self.standby))
        elif self.lease:
            self.follow(self.lease)
        return self.mode

    def follow(self, lease: Lease) -> None:
        if self.band is None or not self.within(self.band, lease):
            self.band = max(0, sum(entry.min_batch_size <= self.mean for entry in lease.table) - 1)
        entry = lease.table[self.band]
        wanted = entry.mode
        if entry.alternatives and lease.exploration_dwell_steps:
            wanted = entry.draw(uniform(lease.exploration_seed, self.step // lease.exploration_dwell_steps))
        dwelt = self.mode is None or self.step - self.changed_at >= lease.min_dwell_steps
        if wanted == self.mode or dwelt:
            self.run(Choice(wanted, lease.version, self.band, wanted != entry.mode))

    def within(self, band: int, lease: Lease) -> bool:
        edges = [entry.min_batch_size for entry in lease.table]
        above = band == 0 or self.mean >= edges[band] * (1 - lease.hysteresis)
        return above and (band + 1 == len(edges) or self.mean < edges[band + 1] * (1 + lease.hysteresis))

    def run(self, choice: Choice) -> None:
        if choice.mode != self.mode:
            self.switches += self.mode is not None
            self.changed_at = self.step
        self.choice, self.mode = choice, choice.mode

    def adopt(self, lease: Lease) -> bool:
        if lease.version < self.last_version:
            return False
        self.last_version = lease.version
        self.covered = self.step + lease.life_steps
        if self.lease and lease.version == self.lease.version and lease.pin == self.pin:
            return True
        self.lease, self.pin, self.weight, self.band = lease if lease.table else None, lease.pin, lease.smoothing, None
        self.standby = None
        self.forget_if_free()
        return True

    def expire(self, version: int) -> bool:
        if self.lease is None or self.lease.version != version:
            return False
        self.outlive(self.lease)
        return True

    def outlive(self, lease: Lease) -> None:
        self.lease, self.standby = None, lease.then
        self.forget_if_free()

    def release(self) -> None:
        self.lease = self.standby = None
        self.forget_if_free()

    def drop_pin(self, pin_id: str) -> bool:
        hit = self.pin is not None and self.pin.id == pin_id
        if hit:
            self.pin = None
            self.forget_if_free()
        return hit

    def forget_if_free(self) -> None:
        if self.lease is None and self.pin is None and self.standby is None:
            self.mode = self.choice = self.band = None


pins = st.sampled_from([None, None, None, Pin("a", MODES[2]), Pin("b", MODES[0])])
# Long stretches at one batch size, for what is due by the step counter, and short ones that wander over the edges.
stretches = st.lists(st.tuples(st.integers(1, 30), st.sampled_from([1, 1, 2, 7, 25])), min_size=1, max_size=4)


@st.composite
def entries(draw: st.DrawFn, edge: int) -> TableEntry:
    mode, other, third = draw(st.permutations(MODES))[:3]
    shares = draw(st.sampled_from([(1.0,), (0.5, 0.5), (0.75, 0.125, 0.125), (0.0, 1.0)]))
    others = tuple(zip((other, third), shares[1:], strict=False))
    return TableEntry(edge, mode, shares[0], others)


@st.composite
def leases(draw: st.DrawFn, version: int) -> Lease:
    pin = draw(pins)
    edges = draw(st.sets(st.integers(2, 24), max_size=4)) if pin is None or draw(st.booleans()) else None
    lease = Lease(
        version=version,
        table=() if edges is None else tuple(draw(entries(edge)) for edge in sorted({1, *edges})),
        smoothing=draw(st.sampled_from([0.05, 0.25, 1.0])),
        hysteresis=draw(st.sampled_from([0.0, 0.1, 0.5])),
        min_dwell_steps=draw(st.sampled_from([0, 0, 1, 4, 15])),
        exploration_seed=draw(st.integers(0, 3)),
        exploration_dwell_steps=draw(st.sampled_from([0, 1, 3, 10])),
        life_steps=draw(st.sampled_from([1, 12, 1_000_000, 1_000_000])),
        pin=pin,
        then=draw(st.sampled_from([None, None, MODES[0], MODES[1]])),
    )
    check_lease(lease)
    return lease


@st.composite
def courses(draw: st.DrawFn) -> list[tuple[Command, list[int]]]:
    """Commands, mostly new leases, each with the batch sizes of the launches behind it."""
    course: list[tuple[Command, list[int]]] = []
    version = 1
    for _ in range(draw(st.integers(2, 8))):
        match draw(st.sampled_from(["new", "new", "new", "same", "old", "expire", "drop_pin", "release"])):
            case "new":
                version += 1
                command = Command(Order.ADOPT, lease=draw(leases(version)))
            case "same":
                last = next((c.lease for c, _ in reversed(course) if c.lease), None)
                command = Command(Order.ADOPT, lease=last or draw(leases(version)))
            case "old":
                command = Command(Order.ADOPT, lease=draw(leases(max(1, version - 1))))
            case "expire":
                command = Command(Order.EXPIRE, version=version - draw(st.integers(0, 1)))
            case "drop_pin":
                command = Command(Order.DROP_PIN, pin_id=draw(st.sampled_from(["a", "b"])))
            case _:
                command = Command(Order.RELEASE)
        course.append((command, [size for size, n in draw(stretches) for _ in range(n)]))
    return course


def obey(command: Command, rule: SpelledOut) -> None:
    match command.order:
        case Order.ADOPT:
            assert command.lease is not None
            rule.adopt(command.lease)
        case Order.EXPIRE:
            rule.expire(command.version)
        case Order.DROP_PIN:
            rule.drop_pin(command.pin_id)
        case Order.RELEASE:
            rule.release()


@settings(max_examples=300, derandomize=True)
@given(courses())
def test_the_machine_decides_what_the_rule_says(course: list[tuple[Command, list[int]]]) -> None:
    machine, rule = LeaseMachine(), SpelledOut()
    for command, sizes in course:
        apply(command, machine)
        obey(command, rule)
        for size in sizes:
            assert machine.choose(size) == rule.choose(size)
            assert machine.choice == rule.choice
    assert (machine.step, machine.switches, machine.pin, machine.lease, machine.standby, machine.last_version) == (
        rule.step, rule.switches, rule.pin, rule.lease, rule.standby, rule.last_version,
    )  # fmt: skip


@settings(max_examples=100, derandomize=True)
@given(courses())
def test_two_ranks_given_the_same_commands_choose_the_same(course: list[tuple[Command, list[int]]]) -> None:
    speaking, other = LeaseMachine(), LeaseMachine()
    for command, sizes in course:
        apply(command, speaking)
        apply(pickle.loads(pickle.dumps(command)), other)
        for size in sizes:
            assert speaking.choose(size) == other.choose(size)
            assert speaking.choice == other.choice


@settings(max_examples=100, derandomize=True)
@given(courses())
def test_a_choice_describes_the_mode_that_was_chosen(course: list[tuple[Command, list[int]]]) -> None:
    machine = LeaseMachine()
    tables = {}
    for command, sizes in course:
        apply(command, machine)
        if machine.lease is not None:
            tables[machine.lease.version] = machine.lease.table
        for size in sizes:
            mode, choice = machine.choose(size), machine.choice
            assert mode == (choice.mode if choice else None)
            if choice is not None and choice.table_entry >= 0:
                entry = tables[choice.lease_version][choice.table_entry]
                assert choice.explored == (mode != entry.mode)
                assert entry.probability_of(choice.mode) > 0 or choice.mode == entry.mode
