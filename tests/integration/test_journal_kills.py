"""`kill -9` of the real daemon while it writes: whatever was acknowledged is there, and what is lost shows."""

from __future__ import annotations

import random
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import msgspec
import pytest

from support.daemon_process import DaemonProcess
from support.scripted_engine import ScriptedEngine
from trimtab.domain import speculate
from trimtab.replay.journals.verify import verify
from trimtab.store.content import AdminContent, content_of, report_of
from trimtab.store.entries import Kind
from trimtab.store.reading import Journal
from trimtab.wire import mode_to_wire
from trimtabpb.v1 import admin_pb2

KILLS = 50
LIFE_S = (0.2, 1.0)
REPORT_EVERY_S = 0.05
ROWS = 5
LOST_AT_MOST_S = 1.0
EVERYBODY = admin_pb2.Selector(all=True)


class Chatterbox:
    """An engine that reports all the time, and remembers when it said what.

    Attributes:
        said: For each decode step, by its number: in which of the daemon's lives it was said, and when.
    """

    def __init__(self, engine_id: str) -> None:
        self.engine_id = engine_id
        self.said: dict[int, tuple[int, int]] = {}
        self._life = -1
        self._script = ScriptedEngine("", engine_id)
        self._over = threading.Event()
        self._thread = threading.Thread()

    def start(self, target: str) -> None:
        """Come to this daemon, the next one, and talk."""
        self._life += 1
        self._script.target = target
        self._script.start()
        self._over.clear()
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Say no more, and hang up."""
        self._over.set()
        self._thread.join()
        self._script.close()

    def _talk(self) -> None:
        while not self._over.is_set() and not self._script.ended:
            with suppress(AssertionError):
                self._script.follow(self._script.next_lease(REPORT_EVERY_S))
            rows = self._script.decode(ROWS)
            self._script.report(rows)
            now_ns = time.monotonic_ns()
            self.said.update({row.step: (self._life, now_ns) for row in rows})


@dataclass
class Orders:
    """Pins and releases, one after the other, until the daemon is gone.

    Attributes:
        acknowledged: Words of the orders that were answered, in that order.
        expected: The pin that must hold now, by its reason; None for none.
        maybe: The pin that may hold instead, since its order was under way.
    """

    acknowledged: list[str] = field(default_factory=list)
    expected: str | None = None
    maybe: str | None = None
    _number: int = 0

    def give(self, daemon: DaemonProcess) -> None:
        """Give orders until one is not answered."""
        with suppress(grpc.RpcError):
            while True:
                self._number += 1
                self._give(daemon, f"order-{self._number}")
                time.sleep(0.05)

    def _give(self, daemon: DaemonProcess, words: str) -> None:
        pins = self._number % 3 != 0
        self.maybe = words if pins else None
        if pins:
            pin = admin_pb2.PinRequest(selector=EVERYBODY, mode=mode_to_wire(speculate(1)), reason=words, owner=words)
            problem = daemon.admin.Pin(pin, timeout=5).journal_problem
        else:
            release = admin_pb2.UnpinRequest(selector=EVERYBODY, owner=words)
            problem = daemon.admin.Unpin(release, timeout=5).journal_problem
        assert problem == ""
        self.acknowledged.append(words)
        self.expected = self.maybe


@pytest.mark.timeout(400)
def test_fifty_kills_lose_no_order_and_at_most_a_second_of_rows(tmp_path: Path) -> None:
    chance = random.Random(7)
    engines = [Chatterbox("a"), Chatterbox("b")]
    orders = Orders()
    killed_ns = []
    with DaemonProcess("--metrics-listen", "off") as first:
        directory = first.directory
        first.stop()
        for life in range(KILLS):
            # An order brings everything to the disk at once: in every third life there are none.
            killed_ns.append(live_and_die(directory, engines, orders, chance.uniform(*LIFE_S), quiet=life % 3 == 2))
            check_orders(directory / "state", orders)
        with DaemonProcess("--metrics-listen", "off", directory=directory) as last:
            last.stop()
        check_rows(directory / "state", engines, killed_ns)
        check_journal(directory / "state")


def live_and_die(directory: Path, engines: list[Chatterbox], orders: Orders, life_s: float, quiet: bool) -> int:
    """One life of the daemon; when it ended."""
    with DaemonProcess("--metrics-listen", "off", directory=directory) as daemon:
        assert "journal_damaged" not in daemon.text()
        known = daemon.admin.ListEngines(admin_pb2.ListEnginesRequest())
        assert [pin.reason for pin in known.controller.pins] in ([], [orders.expected], [orders.maybe])
        if orders.expected == orders.maybe:
            assert [pin.reason for pin in known.controller.pins] == [words for words in [orders.expected] if words]
        for engine in known.engines:
            holds = engine.pin.reason if engine.HasField("pin") else None
            assert holds in (orders.expected, orders.maybe)
        for talker in engines:
            talker.start(daemon.target)
        operator = threading.Thread(target=orders.give, args=(daemon,))
        if not quiet:
            operator.start()
        time.sleep(life_s)
        daemon.process.send_signal(signal.SIGKILL)
        ended_ns = time.monotonic_ns()
        if not quiet:
            operator.join()
        for talker in engines:
            talker.stop()
    return ended_ns


def check_orders(state: Path, orders: Orders) -> None:
    """The journal opens, and every order that was answered is in it, in the order of the answers."""
    with Journal(state) as journal:
        given = [asked_by(content_of(entry, AdminContent)) for entry in journal.entries(kinds={Kind.ADMIN})]
    known = [words for words in given if words in set(orders.acknowledged)]
    assert known == orders.acknowledged
    # What was under way may be there, and nothing else.
    assert len(given) - len(known) <= KILLS


def asked_by(content: AdminContent) -> str:
    return msgspec.convert(content.request["owner"], str)


def check_rows(state: Path, engines: list[Chatterbox], killed_ns: list[int]) -> None:
    """Of what an engine said, only the last second before a kill may be missing."""
    with Journal(state) as journal:
        for engine in engines:
            kept = {
                row.step for entry in journal.entries(engine.engine_id, {Kind.REPORT}) for row in report_of(entry).rows
            }
            lost = [said for step, said in engine.said.items() if step not in kept]
            for life, said_ns in lost:
                assert killed_ns[life] - said_ns <= LOST_AT_MOST_S * 1e9
            assert len(lost) < len(engine.said) / 2


def check_journal(state: Path) -> None:
    """Every run that died leaves a gap, nothing else does, and all that is there verifies."""
    with Journal(state) as journal:
        runs, gaps = journal.runs(), journal.gaps()
        wrote = {entry.run for entry in journal.entries()}
    died = {run.number for run in runs if run.ended_wall_ns is None}
    assert len(died) == KILLS
    # One that died before it wrote anything shares the gap of the one before it.
    assert {gap.run for gap in gaps} == died & wrote
    assert all(gap.died for gap in gaps)
    result = verify(state)
    assert result.ok, result.difference
    assert result.unverified_share == 0.0
    assert all(verdict.decisions > KILLS for verdict in result.engines)
