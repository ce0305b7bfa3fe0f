"""The small parts of the daemon, without a daemon: outbox, watcher, pace, fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.scripted_engine import MODES, decode_row
from trimtab.domain import EngineInfo, EngineKey, Pin, Report, StepRow, speculate
from trimtab.errors import WireError
from trimtab.policies.contract import Policy, PolicyContext
from trimtab.policies.fixed import FixedPolicy
from trimtab.policies.registry import PolicyFactory, policy_factory
from trimtab.server import control
from trimtab.server.fleet import AlreadyConnectedError, Fleet, FullError, StoppingError
from trimtab.server.outbox import Outbox
from trimtab.server.pace import BURST_UNITS, BYTES_PER_UNIT, MAX_CALLERS, UNITS_PER_S, Pace, Paces
from trimtab.server.watcher import Watcher
from trimtab.session.engine_session import SessionSettings
from trimtab.session.events import Pinned, PolicySet, Reported
from trimtab.wire import MAX_MESSAGE_BYTES
from trimtabpb.v1 import admin_pb2
from trimtabpb.v1 import control_pb2 as pb


def lease(version: int) -> pb.ControllerMessage:
    return pb.ControllerMessage(lease=pb.Lease(version=version))


WELCOME = pb.ControllerMessage(welcome=pb.Welcome(controller_id="c"))
RELEASE = pb.ControllerMessage(release=pb.Release(reason="stop"))

OUTBOXES: dict[str, tuple[list[pb.ControllerMessage], list[pb.ControllerMessage]]] = {
    "in order": ([WELCOME, lease(1)], [WELCOME, lease(1)]),
    "a newer lease replaces an unsent older one": ([WELCOME, lease(1), lease(2), lease(3)], [WELCOME, lease(3)]),
    "a lease and a Release are both sent": ([lease(1), RELEASE], [lease(1), RELEASE]),
    "a lease after a Release comes after it": ([lease(1), RELEASE, lease(2)], [RELEASE, lease(2)]),
}


@pytest.mark.parametrize(("put", "got"), OUTBOXES.values(), ids=OUTBOXES)
def test_an_outbox_hands_out(put: list[pb.ControllerMessage], got: list[pb.ControllerMessage]) -> None:
    async def drained() -> list[pb.ControllerMessage]:
        outbox = Outbox()
        for message in put:
            outbox.put(message)
        outbox.close()
        outbox.put(lease(99))
        return [message async for message in _messages(outbox)]

    assert asyncio.run(drained()) == got


async def _messages(outbox: Outbox) -> Any:
    while (message := await outbox.get()) is not None:
        yield message


def test_a_watcher_hands_out_each_engine_once_however_often_it_changed() -> None:
    async def taken() -> list[list[EngineKey]]:
        watcher = Watcher()
        for engine_id in "aba":
            watcher.mark(EngineKey(engine_id))
        first = await watcher.take()
        watcher.mark(EngineKey("b"))
        watcher.close()
        return [first, await watcher.take(), await watcher.take()]

    assert asyncio.run(taken()) == [[EngineKey("a"), EngineKey("b")], [EngineKey("b")], []]


def test_an_engine_within_its_pace_never_waits() -> None:
    now_s = 0.0
    pace = Pace(lambda: now_s)
    for _ in range(1000):
        now_s += 0.05
        assert pace.debt_s(rows=100) == 0


def test_an_engine_that_floods_waits_as_long_as_its_excess_takes() -> None:
    pace = Pace(lambda: 0.0)
    for _ in range(int(BURST_UNITS)):
        assert pace.debt_s() == 0

    assert pace.debt_s() == pytest.approx(1 / UNITS_PER_S)
    assert pace.debt_s(rows=4096) == pytest.approx((1 + 1 + 40.96) / UNITS_PER_S)


def test_bytes_count_as_well_as_messages_and_rows() -> None:
    pace = Pace(lambda: 0.0)
    assert pace.debt_s(size=int(BURST_UNITS - 1) * BYTES_PER_UNIT) == 0
    assert pace.debt_s(size=MAX_MESSAGE_BYTES) == pytest.approx((1 + MAX_MESSAGE_BYTES / BYTES_PER_UNIT) / UNITS_PER_S)


def test_how_far_a_caller_is_behind_shrinks_as_time_goes_by() -> None:
    now_s = 0.0
    pace = Pace(lambda: now_s)
    assert pace.behind_s == 0
    pace.debt_s(rows=int((BURST_UNITS + UNITS_PER_S) * 100) - 100)
    assert pace.behind_s == pytest.approx(1.0)
    now_s = 0.75
    assert pace.behind_s == pytest.approx(0.25)
    now_s = 2.0
    assert pace.behind_s == 0


def test_every_caller_has_a_pace_and_those_that_were_quiet_longest_are_forgotten() -> None:
    paces = Paces(lambda: 0.0)
    first = paces.of("cert:first")
    first.debt_s(rows=100_000)
    assert paces.of("cert:first") is first
    for number in range(MAX_CALLERS):
        paces.of(f"cert:{number}")
    assert paces.of("cert:first") is not first


# -- fleet ---------------------------------------------------------------------------------------


class Clock:
    """A clock that a test sets; in nanoseconds."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns


def fleet(factory: PolicyFactory | None = None, max_engines: int = 8, clock: Clock | None = None) -> Fleet:
    clock = clock or Clock()
    return Fleet("fixed", factory or policy_factory("fixed"), SessionSettings(), clock, clock, max_engines)


def info(engine_id: str, dp_rank: int = 0) -> EngineInfo:
    return EngineInfo(EngineKey(engine_id, dp_rank), "b1", MODES, (1, 2, 4))


def hello(engine_id: str) -> pb.Hello:
    return pb.Hello(engine_id=engine_id, boot_id="b1")


def test_a_seat_outlives_its_stream() -> None:
    engines = fleet()
    seat = engines.join(info("a"), hello("a"), Outbox())
    session = seat.session
    engines.leave(seat, "gone")
    again = engines.join(info("a"), hello("a"), Outbox())

    assert again is seat
    assert again.session is session
    assert engines.view(seat).state == admin_pb2.Engine.STATE_CONNECTED


def test_a_restarted_engine_begins_afresh_and_a_reconnected_one_goes_on() -> None:
    engines = fleet()
    seat = engines.join(info("a"), hello("a"), Outbox())
    # The first process ran for long; the clock of the second begins again.
    engines.apply(seat, Reported(Report(1, 900_000_000, (decode_row(90, speculate(1)),))))
    engines.leave(seat, "connection lost")
    engines.join(info("a"), hello("a"), Outbox())
    assert engines.view(seat).measured.rows == 1

    engines.leave(seat, "restart")
    engines.join(replace(info("a"), boot_id="b2"), hello("a"), Outbox())
    assert engines.view(seat).measured.rows == 0
    engines.apply(seat, Reported(Report(1, 10_000_000, (decode_row(1, speculate(1)),))))
    assert engines.view(seat).measured.rows == 1


def test_two_ranks_of_one_engine_have_seats_of_their_own_and_different_seeds() -> None:
    engines = fleet()
    seats = [engines.join(info("a", rank), hello("a"), Outbox()) for rank in (0, 1)]

    assert [str(seat.key) for seat in engines.seats()] == ["a", "a/1"]
    assert seats[0].session.settings.seed != seats[1].session.settings.seed


def test_nobody_sits_down_on_a_taken_seat_or_in_a_fleet_that_stops() -> None:
    engines = fleet()
    engines.join(info("a"), hello("a"), Outbox())
    with pytest.raises(AlreadyConnectedError):
        engines.join(info("a"), hello("a"), Outbox())
    engines.stop("test")
    with pytest.raises(StoppingError):
        engines.join(info("b"), hello("b"), Outbox())


def test_a_full_fleet_forgets_the_engine_that_has_been_away_longest_but_no_pinned_one() -> None:
    clock = Clock()
    engines = fleet(max_engines=3, clock=clock)
    for engine_id in ("pinned", "old", "young"):
        clock.now_ns += 1
        seat = engines.join(info(engine_id), hello(engine_id), Outbox())
        if engine_id == "pinned":
            engines.apply(seat, Pinned(Pin("p", speculate(1))))
        engines.leave(seat, "gone")
    engines.join(info("new"), hello("new"), Outbox())
    assert [str(seat.key) for seat in engines.seats()] == ["new", "pinned", "young"]

    engines.join(info("newer"), hello("newer"), Outbox())
    with pytest.raises(FullError, match="3 engines are connected or pinned"):
        engines.join(info("newest"), hello("newest"), Outbox())


def test_what_waits_for_an_engine_that_does_not_read_stays_small() -> None:
    clock = Clock()
    engines = fleet(clock=clock)
    outbox = Outbox()
    seat = engines.join(info("a"), hello("a"), outbox)
    for second in range(600):
        clock.now_ns += 1_000_000_000
        engines.apply(seat, Pinned(Pin(f"p{second}", speculate(1 + 2 * (second % 2)))))
        engines.tick()
    outbox.close()

    async def waiting() -> list[pb.ControllerMessage]:
        return [message async for message in _messages(outbox)]

    (left,) = asyncio.run(waiting())
    assert left.lease.pin.id == "p599"
    assert seat.leases >= 600


class BrokenPolicy(FixedPolicy):
    """Fails on every row."""

    def learn(self, rows: Sequence[StepRow]) -> None:
        raise ZeroDivisionError("a bug")


def test_a_policy_that_fails_harms_no_other_engine_and_can_be_replaced() -> None:
    def factory(context: PolicyContext) -> Policy:
        return BrokenPolicy(context)

    engines = fleet(factory)
    seat = engines.join(info("a"), hello("a"), Outbox())
    report = Reported(Report(1, 5, (decode_row(1, speculate(1)),)))

    assert not engines.apply(seat, report)
    assert engines.view(seat).refused == {"controller_error": 1}
    engines.tick()
    assert engines.apply(seat, PolicySet("fixed", policy_factory("fixed", {"steps": 1})))
    assert engines.apply(seat, Reported(Report(2, 6)))


def test_reports_decisions_and_leases_are_counted() -> None:
    engines = fleet()
    seat = engines.join(info("a"), hello("a"), Outbox())
    for seq in (1, 2, 3):
        engines.apply(seat, Reported(Report(seq, 5)))

    assert (seat.reports, seat.session.decisions, seat.leases) == (3, 4, 1)


def test_an_engine_whose_steps_stand_still_with_requests_running_is_stalled() -> None:
    clock = Clock()
    engines = fleet(clock=clock)
    seat = engines.join(info("a"), hello("a"), Outbox())
    engines.apply(seat, Reported(Report(1, 5, last_step_age_ns=2_000_000_000, running_requests=3)))
    assert engines.view(seat).state == admin_pb2.Engine.STATE_CONNECTED

    clock.now_ns += 9_000_000_000
    assert engines.view(seat).state == admin_pb2.Engine.STATE_STALLED
    engines.apply(seat, Reported(Report(2, 6, last_step_age_ns=11_000_000_000, running_requests=0)))
    assert engines.view(seat).state == admin_pb2.Engine.STATE_CONNECTED


# -- the first message ---------------------------------------------------------------------------


class Silence:
    """A stream on which nothing comes."""

    def __aiter__(self) -> Silence:
        return self

    async def __anext__(self) -> pb.EngineMessage:
        await asyncio.sleep(60)
        raise StopAsyncIteration


class Nothing(Silence):
    """A stream that ends at once."""

    async def __anext__(self) -> pb.EngineMessage:
        raise StopAsyncIteration


@pytest.mark.parametrize(
    ("stream", "words"),
    [(Silence(), "did not come within 0.01 s"), (Nothing(), "did not come before the stream ended")],
)
def test_a_stream_without_a_hello_is_not_waited_for(
    stream: Silence, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "HELLO_WITHIN_S", 0.01)
    with pytest.raises(WireError, match=words):
        asyncio.run(control.first_hello(stream))
