"""The start-up sweep against a made-up server: what it measures, and everything that ends it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.raw_rows import Request, launch, raw_row, rows_of
from support.swept_engine import STEP_S, SweptEngine
from trimtab.domain import StepFlag
from trimtab_sglang import sweep as sweep_module
from trimtab_sglang.facts import device_name
from trimtab_sglang.lease import PLAIN_WARM, Choice, Pin, modes_of, speculate
from trimtab_sglang.own_server import OwnServer, ServerError
from trimtab_sglang.ranks import Command, Order, Posted
from trimtab_sglang.rows import SWEEP
from trimtab_sglang.settings import SettingError, read_settings
from trimtab_sglang.sweep import Sweep
from trimtab_sglang.sweep_plan import KV_SHARE, LARGEST_BATCH, SPARE_STEPS, STEPS, plan, sizes_to_sweep, spread
from trimtabpb.v1 import control_pb2

END_WITHIN_S = 30.0
OPERATORS = Pin("p", speculate(1), "load test", "kim")


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(sweep_module, "READY_WITHIN_S", 0.3)


@contextmanager
def sweeping(engine: SweptEngine) -> Iterator[Sweep]:
    sweep = Sweep(engine, engine.facts, lambda: engine.connected)  # type: ignore[arg-type]
    with engine:
        sweep.start()
        yield sweep
        assert sweep.join(END_WITHIN_S)
        wait_for(lambda: not engine.mailbox.posted)
        time.sleep(5 * STEP_S)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "trimtab"]


@pytest.fixture(autouse=True)
def logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="trimtab")


# -- what it measures --------------------------------------------------------------------------------


def test_every_mode_is_held_at_every_captured_size(caplog: pytest.LogCaptureFixture) -> None:
    engine = SweptEngine(graph_sizes=(1, 2, 4))
    with sweeping(engine):
        pass
    by_size = engine.modes_by_size()
    for size in (1, 2, 4):
        for mode in modes_of((0, 1, 3)):
            assert by_size[size][mode] >= STEPS - 2
    assert said(caplog) == [
        "trimtab sweep begins: batch sizes [1, 2, 4], 3 modes, 20 s at most",
        "trimtab sweep is over, 9 of 9 cells: complete",
    ]
    assert engine.machine.lease is None
    assert {len(prompt) for prompt in engine.prompts} == {64}
    assert len({tuple(prompt) for prompt in engine.prompts}) == len(engine.prompts)
    assert engine.headers["Authorization"] == "Bearer secret"


def test_whatever_is_accepted_the_requests_run_together_for_long_enough() -> None:
    engine = SweptEngine(graph_sizes=(1, 4), candidate_steps=(0, 3), accepted=3)
    with sweeping(engine):
        pass
    by_size = engine.modes_by_size()
    assert all(by_size[size][speculate(3)] >= STEPS - 2 for size in (1, 4))
    assert len(engine.aborted) == 2 * (1 + 4), "nothing runs on"


def test_where_requests_cannot_be_taken_back_they_run_to_their_end(caplog: pytest.LogCaptureFixture) -> None:
    engine = SweptEngine(graph_sizes=(1, 2), candidate_steps=(0, 1), may_abort=False)
    with sweeping(engine):
        pass
    assert said(caplog)[-1].endswith("4 of 4 cells: complete")
    assert engine.modes_by_size()[2][PLAIN_WARM] >= STEPS + SPARE_STEPS


def test_it_waits_for_a_controller_and_a_server(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr(sweep_module, "READY_WITHIN_S", END_WITHIN_S)
    engine = SweptEngine(graph_sizes=(1,), candidate_steps=(0, 1))
    engine.connected = engine.healthy = False
    with sweeping(engine):
        time.sleep(0.1)
        engine.connected = True
        time.sleep(0.1)
        assert said(caplog) == []
        engine.healthy = True
    assert said(caplog)[-1].endswith("2 of 2 cells: complete")


@pytest.mark.parametrize("newer_comes", [False, True])
def test_the_controllers_newest_lease_waits_and_is_in_force_afterwards(newer_comes: bool) -> None:
    engine = SweptEngine()
    with sweeping(engine) as sweep:
        assert not sweep.keep(engine.lease(7, speculate(1))), "nothing runs yet"
        engine.mailbox.post(engine.lease(7, speculate(1)))
        wait_for(lambda: len(engine.steps) > 20)
        if newer_comes:
            assert sweep.keep(engine.lease(8, speculate(3)))
    assert {mode for _, mode in engine.steps} >= {PLAIN_WARM, speculate(1), speculate(3)}
    assert engine.machine.lease is not None
    assert engine.machine.lease.version == (8 if newer_comes else 7)


# -- what ends it ------------------------------------------------------------------------------------


def test_the_first_foreign_request_ends_it_and_dummy_requests_are_taken_back(caplog: pytest.LogCaptureFixture) -> None:
    engine = SweptEngine(graph_sizes=(4,))
    with sweeping(engine):
        wait_for(lambda: len(engine.steps) > 5)
        engine.arrive("chat-1")
    assert said(caplog)[-1].endswith(" of 3 cells: a request came in")
    assert all(rid.startswith("TRIMTAB_SWEEP_") for rid in engine.aborted)
    assert len(engine.aborted) == 4
    assert engine.machine.lease is None


def test_health_checks_are_no_foreign_requests(caplog: pytest.LogCaptureFixture) -> None:
    engine = SweptEngine(graph_sizes=(1,), candidate_steps=(0, 1))
    engine.arrive("HEALTH_CHECK_7")
    with sweeping(engine):
        pass
    assert said(caplog)[-1].endswith("2 of 2 cells: complete")


def test_time_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    engine = SweptEngine(seconds=0.2)
    with sweeping(engine):
        pass
    assert said(caplog)[-1].endswith(" of 9 cells: its time is over")


@pytest.mark.parametrize(
    ("posted", "why"),
    [
        (lambda e: e.lease(9, speculate(3), pin=OPERATORS), "the engine was pinned"),
        (lambda e: Posted(Command(Order.RELEASE)), "the controller let go"),
    ],
)
def test_a_pin_and_a_release_end_it_and_have_the_last_word(
    caplog: pytest.LogCaptureFixture, posted: Callable[[SweptEngine], Posted], why: str
) -> None:
    engine = SweptEngine()
    with sweeping(engine) as sweep:
        wait_for(lambda: len(engine.steps) > 20)
        command = posted(engine)
        assert not sweep.keep(command)
        engine.mailbox.post(command)
    assert said(caplog)[-1].endswith(why)
    assert engine.machine.pin == (OPERATORS if "pinned" in why else None)


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (lambda e: setattr(e, "connected", False), "the controller is gone"),
        (lambda e: e.fuse.blow("a test", ValueError("x")), "the plugin gave up"),
    ],
)
def test_without_a_controller_or_a_sound_plugin_it_ends(
    caplog: pytest.LogCaptureFixture, happens: Callable[[SweptEngine], object], why: str
) -> None:
    engine = SweptEngine()
    with sweeping(engine):
        wait_for(lambda: len(engine.steps) > 20)
        happens(engine)
    assert said(caplog)[-1].endswith(why)


# -- where it does nothing ---------------------------------------------------------------------------


def observing(engine: SweptEngine) -> None:
    engine.observe_reasons.append("TRIMTAB_MODE=observe")


def without_controller(engine: SweptEngine) -> None:
    engine.connected = False


def without_server(engine: SweptEngine) -> None:
    engine.healthy = False


def with_requests(engine: SweptEngine) -> None:
    engine.arrive("chat-1")


NOTHING: list[tuple[Callable[[SweptEngine], None], str]] = [
    (observing, "the plugin only observes: TRIMTAB_MODE=observe"),
    (without_controller, "no controller answered within 0 s"),
    (without_server, "no HTTP server answered at 127.0.0.1:{port} within 0 s"),
    (with_requests, "requests run already"),
]


@pytest.mark.parametrize(("prepare", "why"), NOTHING)
def test_where_it_cannot_run_it_says_so_and_sends_nothing(
    caplog: pytest.LogCaptureFixture, prepare: Callable[[SweptEngine], None], why: str
) -> None:
    engine = SweptEngine()
    prepare(engine)
    with sweeping(engine):
        pass
    assert said(caplog) == [f"trimtab does no sweep: {why.format(port=engine.facts.server['port'])}"]
    assert engine.prompts == []


def test_a_pinned_engine_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    engine = SweptEngine()
    sweep = Sweep(engine, engine.facts, lambda: True)  # type: ignore[arg-type]
    assert not sweep.keep(engine.lease(3, speculate(3), pin=OPERATORS))
    with engine:
        sweep.start()
        assert sweep.join(END_WITHIN_S)
    assert said(caplog) == ["trimtab does no sweep: the engine is pinned"]


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (SweptEngine(answer=401), "refused a dummy request (401): no room"),
        (SweptEngine(ours=False), "is not in front of this engine"),
    ],
    ids=["refusing server", "somebody else's server"],
)
def test_a_server_that_refuses_or_is_another_ones_ends_it(
    caplog: pytest.LogCaptureFixture, engine: SweptEngine, why: str
) -> None:
    with sweeping(engine):
        pass
    assert said(caplog)[-1].startswith("trimtab sweep is over, 0 of 9 cells: ")
    assert said(caplog)[-1].endswith(why)
    assert engine.machine.lease is None


@pytest.mark.parametrize(
    ("server", "problem"),
    [({}, "no HTTP server"), ({"port": 0}, "no HTTP server"), ({"port": 30000, "ssl_certfile": "c"}, "TLS only")],
)
def test_servers_that_cannot_be_talked_to_are_named(server: dict[str, Any], problem: str) -> None:
    with pytest.raises(ServerError, match=problem):
        OwnServer.of(server)


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "127.0.0.1:7"), ("::", "::1:7"), ("", "127.0.0.1:7"), ("10.1.2.3", "10.1.2.3:7")],
)
def test_a_server_on_all_addresses_is_asked_on_loopback(host: str, address: str) -> None:
    assert OwnServer.of({"host": host, "port": 7}).address == address


# -- the plan ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("captured", "running", "kv", "sizes"),
    [
        ((1, 2, 4, 8, 16, 24, 32, 40, 48), 48, 0, [1, 2, 4, 8, 16, 32, 48]),
        ((1, 2, 4, 8, 16), 4, 0, [1, 2, 4]),
        ((), 16, 0, [1, 2, 4, 8, 16]),
        ((), 0, 0, [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        ((1, 2, 4, 8), 8, 2000, [1, 2, 4]),
        ((512,), 1024, 0, []),
    ],
)
def test_sizes_about_double_up_to_what_may_run_and_fits(
    captured: Sequence[int], running: int, kv: int, sizes: list[int]
) -> None:
    assert sizes_to_sweep(captured, running, kv, modes_of((0, 3))) == sizes


@given(st.lists(st.integers(1, 1000), unique=True).map(sorted), st.integers(0, 2000), st.integers(0, 10**6))
def test_the_plan_has_every_size_and_mode_once_and_stays_within_bounds(
    captured: list[int], running: int, kv: int
) -> None:
    modes = modes_of((0, 1, 3))
    cells = plan(captured, running, kv, modes)
    assert len(set(cells)) == len(cells)
    assert {cell.mode for cell in cells} == (set(modes) if cells else set())
    assert all(cell.batch_size <= min(LARGEST_BATCH, running or LARGEST_BATCH) for cell in cells)
    if kv:
        assert all(cell.batch_size * 64 <= kv * KV_SHARE for cell in cells)


@given(st.lists(st.integers(1, 1000), unique=True).map(sorted))
def test_the_ends_come_first_and_nothing_is_lost(sizes: list[int]) -> None:
    order = spread(sizes)
    assert sorted(order) == sizes
    assert order[:2] == [*sizes[:1], *sizes[1:][-1:]]


def test_the_middles_of_what_is_left_come_next() -> None:
    assert spread([1, 2, 4, 8, 16, 32, 64, 128, 256]) == [1, 256, 16, 4, 64, 2, 8, 32, 128]


# -- the rows and the variables ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rids", "flagged"),
    [
        (["TRIMTAB_SWEEP_0_0", "TRIMTAB_SWEEP_0_1"], True),
        (["TRIMTAB_SWEEP_0_0", "chat-1"], True),
        (["chat-1", "TRIMTAB_SWEEP_0_1"], True),
        (["chat-1", "chat-2"], False),
        (["HEALTH_CHECK_1"], False),
    ],
)
def test_rows_with_dummy_requests_are_flagged_and_belong_to_no_lease(rids: list[str], flagged: bool) -> None:
    chosen = launch(choice=Choice(speculate(3), 7, 2))
    (row,) = rows_of(raw_row(chosen, [3] * len(rids), reqs=[Request(rid) for rid in rids]))
    assert bool(row.flags & SWEEP) == flagged
    assert (row.lease_version, row.table_entry) == ((0, -1) if flagged else (7, 2))
    assert row.mode == speculate(3)


def test_the_flag_is_the_protocols() -> None:
    assert SWEEP == int(StepFlag.SWEEP) == int(control_pb2.STEP_FLAG_SWEEP)


@pytest.mark.parametrize(
    ("environ", "sweep", "seconds"),
    [
        ({}, False, 20.0),
        ({"TRIMTAB_SWEEP": "0"}, False, 20.0),
        ({"TRIMTAB_SWEEP": " 1 ", "TRIMTAB_SWEEP_SECONDS": "7.5"}, True, 7.5),
    ],
)
def test_a_sweep_runs_only_if_asked_for(environ: dict[str, str], sweep: bool, seconds: float) -> None:
    settings = read_settings(environ)
    assert (settings.sweep, settings.sweep_seconds) == (sweep, seconds)


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"TRIMTAB_SWEEP": "yes"}, "TRIMTAB_SWEEP is 'yes'; it takes 0 or 1"),
        ({"TRIMTAB_SWEEP_SECONDS": "0"}, "TRIMTAB_SWEEP_SECONDS is '0'; it takes seconds, 1 to 600"),
        ({"TRIMTAB_SWEEP_SECONDS": "nan"}, "TRIMTAB_SWEEP_SECONDS is 'nan'; it takes seconds, 1 to 600"),
        ({"TRIMTAB_SWEEP_SECONDS": "long"}, "TRIMTAB_SWEEP_SECONDS is 'long'; it takes seconds, 1 to 600"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(environ: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_settings(environ)
    assert str(caught.value) == problem


class Cuda:
    """`torch.cuda`, as far as a name goes."""

    def __init__(self, available: bool, name: str | None = "NVIDIA H200") -> None:
        self._available = available
        self._name = name

    def is_available(self) -> bool:
        return self._available

    def get_device_name(self) -> str:
        if self._name is None:
            raise RuntimeError("CUDA driver error")
        return self._name


@pytest.mark.parametrize(
    ("device", "cuda", "name"),
    [
        ("cuda", Cuda(True), "NVIDIA H200"),
        ("", Cuda(True), "NVIDIA H200"),
        ("cuda", Cuda(True, None), "cuda"),
        ("cpu", Cuda(False), "cpu"),
        ("", Cuda(False), "cpu"),
        ("npu", Cuda(False), "npu"),
        ("", None, "cpu"),
    ],
)
def test_the_device_has_the_name_that_its_driver_gives_it(
    monkeypatch: pytest.MonkeyPatch, device: str, cuda: Cuda | None, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda) if cuda else SimpleNamespace())
    assert device_name(device) == name
