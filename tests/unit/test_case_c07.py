"""Case c07, line by line: four ranks with the real plugin, one session, and whatever could drive them apart.

The file's calls and events are carried out in their order; what it expects is asserted where it says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.hooked_engine import CANDIDATES, one_mode_lease
from support.ranked_engine import RankedEngine
from support.session_talk import Talk, one_mode
from trimtab.domain import InForce, Source, modes_of, speculate
from trimtab.session.agreement import ALARM
from trimtab.session.events import Effect, Reported, SendLease
from trimtab.wire import lease_message, read_report
from trimtab_sglang import messages, together
from trimtab_sglang.lease import NEVER, PLAIN_WARM, Pin
from trimtabpb.v1 import control_pb2 as pb

FILE = Path(__file__).parents[1] / "data" / "cases" / "c07_rank_agreement.jsonl"
LINES = [json.loads(line) for line in FILE.read_text().splitlines()]
# So that the pin's end at 500 s falls between the broadcast that is held back and the forged digest.
STEP_NS = 1_600_000_000
MS = 1_000_000
REPORT_EVERY = 5


class Course:
    """The engine and its session as the lines go by."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.engine = RankedEngine(setup["ranks"])
        self.step = 0
        self.version = 0
        self.ran: list[list[int]] = []
        self.batch_sizes = [24] * setup["ranks"]
        self.talk = Talk()
        self.talk.wanted = one_mode(speculate(setup["k"]))
        self.talk.connect(modes=modes_of(CANDIDATES))
        self._seq = 0
        self._decide(setup["k"])

    def go_to(self, step: int) -> None:
        """Decode until this many steps have run."""
        while self.step < step:
            self.step += 1
            self.engine.now_ns = self.step * STEP_NS
            self.ran.append(self.engine.step(self.batch_sizes))
            if self.step % REPORT_EVERY == 0:
                self._report()

    def receive(self, line: dict[str, Any]) -> None:
        """A decision comes in on rank 0 alone."""
        self.go_to(line["step"] - 1)
        self._decide(line["k"])
        self.go_to(line["step"])

    def hold_back(self, line: dict[str, Any]) -> None:
        """A decision comes in, and the broadcast that carries it is late."""
        self.go_to(line["from_step"] - 1)
        self._decide(line["k"])
        self.engine.held = True

    def let_go(self, line: dict[str, Any]) -> None:
        """The broadcast arrives."""
        self.go_to(line["to_step"])
        self.engine.held = False

    def skew(self, line: dict[str, Any]) -> None:
        """One rank's clock is off while a pin ends."""
        self.engine.skew_ns[line["rank"]] = line["ms"] * MS
        self.version += 1
        lease = one_mode_lease(PLAIN_WARM, self.version, pin=Pin("p", speculate(5)))
        self.engine.post(lease, NEVER, line["pin_ttl_expires_at_ms"] * MS)
        self.go_to(line["pin_ttl_expires_at_ms"] * MS // STEP_NS + 5)

    def forge(self, line: dict[str, Any]) -> None:
        """Two ranks report another batch size."""
        self.go_to(line["step"] - 1)
        self.batch_sizes = line["bs"]
        self.go_to(line["step"])
        # The policy goes on wanting other things; what becomes of that is the session's to decide.
        self.talk.decide(one_mode(speculate(3)))

    def _decide(self, k: int) -> None:
        self.version += 1
        self.engine.post(one_mode_lease(speculate(k), self.version))
        self.talk.decide(one_mode(speculate(k)))

    def _report(self) -> None:
        """What the link says, and what the session answers, back to the engine."""
        team, machine = self.engine.speaker.team, self.engine.speaker.machine
        assert team is not None
        self._seq += 1
        message = pb.Report(seq=self._seq, now_ns=self.engine.now_ns)
        message.ranks.extend(messages.rank_step(step) for step in team.steps())
        report, refused = read_report(message)
        assert not refused
        mode = speculate(self.ran[-1][0])
        in_force = InForce(Source.PIN if machine.pin else Source.LEASE, mode, machine.last_version)
        for effect in self.talk.at(self.engine.now_ns / MS, Reported(replace(report, in_force=in_force))):
            self._obey(effect)

    def _obey(self, effect: Effect) -> None:
        if isinstance(effect, SendLease) and effect.lease.pin is not None:
            self.version += 1
            sent = lease_message(effect).lease
            sent.version = self.version
            lease, _, _ = messages.lease_from_wire(sent, 1_000_000)
            self.engine.post(lease)


@pytest.fixture(scope="module")
def course() -> Iterator[Course]:
    """The case, run to its end; expectations along the way are asserted as it runs."""
    with pytest.MonkeyPatch.context() as patch:
        # Nobody listens: ranks that part would wait in vain.
        patch.setattr(together, "LAST_WORDS_S", 0.0)
        yield run_case()


def run_case() -> Course:
    """Every line in its order."""
    setup = next(line for line in LINES if line["kind"] == "setup")
    course = Course(setup)
    assert [mode.steps for mode in modes_of(setup["k_states"])] == [0, 1, 3, 5]
    events: dict[str, Callable[[dict[str, Any]], None]] = {
        "receive": course.receive,
        "broadcast_held_back": course.hold_back,
        "clock_skew": course.skew,
        "obs_ranks": course.forge,
    }
    held: dict[str, Any] | None = None
    for line in LINES:
        if line["kind"] == "clock_skew" and held is not None:
            course.let_go(held)
            assert course.engine.step(course.batch_sizes) == [held["k"]] * setup["ranks"], "all at once, when it comes"
            course.step += 1
            course.ran.append([held["k"]] * setup["ranks"])
            held = None
        if line["kind"] in events:
            events[line["kind"]](line)
            held = line if line["kind"] == "broadcast_held_back" else held
        elif line["kind"] == "expect_ranks" and "step" in line:
            course.go_to(line["step"])
            check_ranks(course, line)
    course.go_to(course.step + 100)
    return course


def check_ranks(course: Course, line: dict[str, Any]) -> None:
    """What every rank runs at a step."""
    at_step = course.ran[line["step"] - 1]
    assert len(set(at_step)) == 1, line
    if "k" in line:
        assert at_step[0] == line["k"], line


def test_every_line_that_expects_something_is_looked_at() -> None:
    kinds = {line["kind"] for line in LINES}
    assert kinds == {
        "meta", "setup", "receive", "expect_ranks", "broadcast_held_back", "clock_skew", "obs_ranks", "expect",
    }  # fmt: skip
    assert {(line["m"], line.get("name")) for line in LINES if line["kind"] == "expect"} == {
        ("alarm", "rank_divergence"),
        ("k_change_while_diverged", None),
    }


def test_no_two_ranks_ever_ran_different_steps(course: Course) -> None:
    assert [ran for ran in course.ran if len(set(ran)) > 1] == []


def test_nobody_moved_before_the_broadcast_came(course: Course) -> None:
    held = next(line for line in LINES if line["kind"] == "broadcast_held_back")
    assert {ran[0] for ran in course.ran[held["from_step"] - 1 : held["to_step"]]} == {5}
    assert course.ran[held["to_step"]][0] == held["k"]


def test_the_pin_ended_on_all_ranks_at_once_by_the_clock_of_one(course: Course) -> None:
    skew = next(line for line in LINES if line["kind"] == "clock_skew")
    at = skew["pin_ttl_expires_at_ms"] * MS // STEP_NS
    around = [ran[0] for ran in course.ran[at - 1 : at + 5]]
    assert around[0] == 5
    assert around[-1] == 0


def test_the_forged_digest_raised_the_alarm_and_no_mode_changed_after_it(course: Course) -> None:
    forged = next(line for line in LINES if line["kind"] == "obs_ranks")
    alarms = [note for note in course.talk.notes if note.event == ALARM]
    assert len(alarms) == 1
    assert "rank 2 ran" in str(alarms[0].fields["what"])
    assert "for a batch of 25" in str(alarms[0].fields["what"])
    assert ALARM in course.talk.session.alarms
    assert {ran[0] for ran in course.ran[forged["step"] - 1 :]} == {0}
    assert course.engine.speaker.machine.pin is not None
