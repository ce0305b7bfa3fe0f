"""Case c12 line by line: a real daemon and the plugin's lease machine, pinned, abandoned, restarted and let go.

Times of the case are scaled down; where a real clock decides (a stall) they are not. The engine accepts two drafts of
every request, so that its own rule stays at the three steps that it starts with, as the case says.
"""

from __future__ import annotations

import json
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from support.daemon_process import DaemonProcess
from support.engine_process import EngineProcess
from support.hooked_engine import DrawnWorld, EmbeddedEngine, fresh_copy
from trimtab.policies.contract import is_informative
from trimtab.wire import columns_to_rows, mode_to_wire
from trimtab_sglang.lease import PLAIN_WARM, speculate
from trimtab_sglang.messages import append_row
from trimtab_sglang.settings import PluginSettings
from trimtabpb.v1 import admin_pb2
from trimtabpb.v1 import control_pb2 as pb

CASE = Path(__file__).resolve().parents[1] / "data" / "cases" / "c12_pins_and_lost_controller.jsonl"
LINES = [json.loads(line) for line in CASE.read_text().splitlines()][1:]
STATES = (0, 1, 3, 5)
SCALE = 0.1
STEP_S = 0.02
ENGINE = admin_pb2.Selector(engine_ids=["engine-1"])
POLICY = '[policy]\nname = "fixed"\nparameters = { steps = 3 }\n'

pytestmark = pytest.mark.timeout(180)


class TwoAccepted(DrawnWorld):
    """Every request gets two drafts accepted, if it has that many."""

    def decode(self, batch: Any, steps: int) -> list[int]:
        self.steps_run.append(steps)
        return [min(2, steps)] * len(batch.reqs)


class Play:
    """The case's stage: one engine, one daemon, and the case's clock."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.daemon = DaemonProcess("--config", str(config))
        self.daemon.started()
        self.engine = self._start_engine()
        self.decode_until(lambda: self.engine.plugin.machine.lease)
        self.began = time.monotonic()
        self.step_s: list[float] = []

    def close(self) -> None:
        self.engine.__exit__()
        self.daemon.__exit__()

    def _start_engine(self) -> EmbeddedEngine:
        settings = PluginSettings(controller=self.daemon.target, engine_id="engine-1")
        engine = EmbeddedEngine(settings, TwoAccepted(), linked=True, candidates=STATES)
        engine.admit(2)
        return engine

    # -- time ------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Time on the case's clock."""
        return (time.monotonic() - self.began) / SCALE

    def decode(self) -> None:
        began = time.monotonic()
        self.engine.decode()
        took = time.monotonic() - began
        self.step_s.append(took)
        time.sleep(max(0.0, STEP_S - took))

    def decode_until(self, condition: Callable[[], object], within_s: float = 10.0) -> int:
        """Steps until the condition holds."""
        self.step_s = []
        deadline, steps = time.monotonic() + within_s, 0
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s} s"
            self.decode()
            steps += 1
        return steps

    def run_to(self, t: float) -> None:
        self.decode_until(lambda: self.now >= t, within_s=60)

    # -- lines -----------------------------------------------------------------------------------

    def call(self, line: dict[str, Any]) -> None:
        wanted, args = line["expect"], line["args"]
        if line["rpc"] == "Pin":
            self._pin(args, wanted)
        elif line["rpc"] == "GetEngine":
            self._look(wanted)
        else:
            self.daemon.admin.Unpin(admin_pb2.UnpinRequest(selector=ENGINE))
            if "k" in wanted:
                self.decode_until(lambda: self.engine.plugin.machine.pin is None, within_s=0.5)
                self._runs(wanted["k"])
                assert self.engine.plugin.machine.lease is not None

    def _pin(self, args: dict[str, Any], wanted: dict[str, Any]) -> None:
        plain = args["mode"] == "plain"
        duration = Duration(nanos=0, seconds=round(args["ttl_s"] * SCALE)) if "ttl_s" in args else None
        order = admin_pb2.PinRequest(selector=ENGINE, duration=duration, owner="admin", any_plain=plain)
        if not plain:
            order = admin_pb2.PinRequest(
                selector=ENGINE, duration=duration, owner="admin", mode=mode_to_wire(speculate(args["k"]))
            )
        if not wanted["ok"]:
            with pytest.raises(grpc.RpcError) as caught:
                self.daemon.admin.Pin(order)
            assert caught.value.code().name == wanted["code"]
            self._runs(wanted["k"])
            assert self._view().pin.mode == mode_to_wire(PLAIN_WARM)
            return
        self.daemon.admin.Pin(order)
        steps = self.decode_until(lambda: self.engine.steps_run[-1] == wanted["k"] and self.engine.plugin.machine.pin)
        assert steps <= wanted.get("k_within_steps", 5)

    def _look(self, wanted: dict[str, Any]) -> None:
        view = self._view()
        assert view.pin.mode == mode_to_wire(PLAIN_WARM)
        assert view.pin.owner == wanted["pinned_by"]
        age_s = time.time() - view.pinned_at.ToNanoseconds() / 1e9
        assert age_s / SCALE == pytest.approx(self.now - wanted["since"], abs=1)
        self._runs(wanted["k"])

    def event(self, line: dict[str, Any]) -> None:
        if line["ev"] == "controller_killed":
            self.daemon.stop(signal.SIGKILL)
        elif line["ev"] == "controller_started":
            self.before_return = self.engine.steps_run[-1]
            self.returned_at = len(self.engine.steps_run)
            self.daemon = DaemonProcess("--config", str(self.config), directory=self.daemon.directory)
        elif line["ev"] == "engine_restarted":
            self.engine.__exit__()
            self.engine = self._start_engine()

    def expect_engine(self, line: dict[str, Any]) -> None:
        machine = self.engine.plugin.machine
        if "step_ms_added_max" in line:
            assert statistics.median(self.step_s) * 1e3 < line["step_ms_added_max"]
            self._runs(line["k"])
        if "pin" in line and line["pin"] is None:
            assert machine.pin is None
            assert machine.lease is None
            self._runs(3)
        elif "pin" in line:
            assert machine.pin is not None
            assert machine.pin.mode == speculate(int(line["pin"].removeprefix("spec:")))
        if line.get("stream") == "reconnected":
            self.daemon.started()
            self.decode_until(lambda: machine.lease, within_s=3)
            assert set(self.engine.steps_run[self.returned_at :]) == {self.before_return}

    def _runs(self, steps: int) -> None:
        self.decode()
        assert self.engine.steps_run[-1] == steps

    def _view(self) -> admin_pb2.Engine:
        return self.daemon.admin.GetEngine(admin_pb2.GetEngineRequest(engine_id="engine-1")).engine


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    config = tmp_path / "trimtab.toml"
    config.write_text(POLICY)
    made = Play(config)
    yield made
    made.close()


def test_pins_a_lost_controller_and_a_restarted_engine(play: Play) -> None:
    for line in LINES:
        if line.get("t", 0) > 171:
            break
        play.run_to(line["t"])
        getattr(play, line["kind"])(line)


def test_a_scheduler_that_is_stuck_is_seen_by_the_age_of_its_last_step(play: Play) -> None:
    def state() -> admin_pb2.Engine.State.ValueType:
        return play._view().state

    play.decode_until(lambda: play._view().measured.rows > 5)
    assert state() == admin_pb2.Engine.STATE_CONNECTED
    stuck_until = time.monotonic() + 15
    while state() != admin_pb2.Engine.STATE_STALLED:
        assert time.monotonic() < stuck_until
        time.sleep(0.2)
    play.decode_until(lambda: state() == admin_pb2.Engine.STATE_CONNECTED, within_s=3)


def test_warm_up_requests_and_health_checks_teach_nothing() -> None:
    (warm_up,) = [line for line in LINES if line.get("ev") == "warmup_requests"]
    (health,) = [line for line in LINES if line.get("ev") == "health_generate"]
    shape = fresh_copy()
    engine = EmbeddedEngine(world=TwoAccepted(), candidates=STATES)
    for rid in [f"w{i}" for i in range(warm_up["n"])] + [f"HEALTH_CHECK_{i}" for i in range(health["n"])]:
        engine.running = [shape.Req(rid, 1)]
        engine.decode(warm_up["tokens_each"])
    columns = pb.StepRows()
    for row in engine.rows():
        append_row(columns, row)
    rows, refused = columns_to_rows(columns)
    assert len(rows) == warm_up["n"] + health["n"]
    assert not refused
    assert sum(map(is_informative, rows)) == 0


def test_an_engine_with_an_open_stream_ends_within_five_seconds_and_leaves_nothing_behind(play: Play) -> None:
    with EngineProcess(play.daemon.target, TRIMTAB_ENGINE_ID="engine-2") as engine:
        play.decode_until(lambda: "engine-2" in engines(play.daemon), within_s=20)
        _, seconds = engine.end(signal.SIGTERM)
        assert seconds <= 5
        children = Path(f"/proc/{engine.process.pid}/task/{engine.process.pid}/children")
        assert not children.exists() or not children.read_text()


def test_a_fork_after_the_channel_is_open_neither_hangs_nor_shares_it(play: Play) -> None:
    with EngineProcess(play.daemon.target, TRIMTAB_ENGINE_ID="engine-2") as engine:
        play.decode_until(lambda: "engine-2" in engines(play.daemon), within_s=20)
        assert engine.do("fork-exit") == "child ended with 0"
        assert engines(play.daemon)["engine-2"].state == admin_pb2.Engine.STATE_CONNECTED


def engines(daemon: DaemonProcess) -> dict[str, admin_pb2.Engine]:
    found = daemon.admin.ListEngines(admin_pb2.ListEnginesRequest()).engines
    return {engine.engine_id: engine for engine in found}
