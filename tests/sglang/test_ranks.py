"""Two ranks, one choice, on a real engine: while leases, pins and failures come and go.

Every rank writes down the steps of each decode launch by itself; the logs must be the same, and what the engine
generates must be what a single rank generates plainly.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import ranked
from controller_process import ControllerProcess, short_folder
from engine_server import EngineFactory, EngineServer, EngineSettings
from prompts import ALL_TOKENS, prompts
from ranked import RestlessController, answered_as, same_on_all_ranks
from step_log import Launch
from trimtabpb.v1 import admin_pb2
from trimtabpb.v1 import control_pb2 as pb
from waiting import wait_until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

PROMPTS = [tuple(prompt) for prompt in prompts(12, ALL_TOKENS, seed=6)]
TOKENS = 120
CONCURRENT = 4
SHORT, LONG = 500, 2000
FUSE, PIN, STOCK = pb.InForce.SOURCE_FUSE, pb.InForce.SOURCE_PIN, pb.InForce.SOURCE_STOCK
LEASE_LIFE_S = 0.6

Expected = Mapping[tuple[int, ...], tuple[int, ...]]


@pytest.fixture(scope="session")
def plain_noisy(plain_engine: EngineServer) -> Expected:
    """What one rank generates without speculation."""
    return answers_of(plain_engine)


@pytest.fixture(scope="session")
def plain_qwen3(new_engine: EngineFactory) -> Expected:
    """The same of the model for data-parallel attention."""
    with new_engine(EngineSettings("qwen3", "none", environment={"TRIMTAB_MODE": "off"})) as engine:
        return answers_of(engine)


def answers_of(engine: EngineServer) -> Expected:
    answers = engine.generate_all(PROMPTS, TOKENS)
    return dict(zip(PROMPTS, (answer.tokens for answer in answers), strict=True))


def unrest(
    settings: Callable[[str, str], EngineSettings],
    new_engine: EngineFactory,
    folder: Path,
    expected: Expected,
    launches: int,
) -> list[list[Launch]]:
    """Leases and pins every 50 ms, an expiry, a dead controller, at last a failure on the second rank."""
    # Far behind the controller's absence: how many launches that takes is up to the machine.
    fails_at = round(0.9 * launches)
    with RestlessController(folder) as controller:
        engine = new_engine(settings(controller.target, f"choosing:1:{fails_at}"))
        with expected_to_give_up(engine):
            assert controller.script.next_hello().acts
            with answered_as(expected, engine, TOKENS, CONCURRENT):
                controller.drive(engine, round(0.2 * launches), LEASE_LIFE_S)
                time.sleep(LEASE_LIFE_S + 0.3)
                assert controller.in_force().source == STOCK, "the last lease has ended"
                controller.drive(engine, round(0.35 * launches), LEASE_LIFE_S)
                controller.die_and_come_back(gone_s=2 * LEASE_LIFE_S)
                assert controller.in_force().source == STOCK, "nobody renewed it"
                controller.drive(engine, launches)
                assert controller.refused, "the failure on the second rank is known"
                assert controller.in_force().source == FUSE
            # One request at a time: under data-parallel attention one rank has nothing to do.
            with answered_as(expected, engine, TOKENS, concurrent=1):
                wait_until("enough launches", lambda: len(engine.launches()[0]) >= launches, ranked.WAIT_S)
            assert "rank 1: RankGaveUpError: choosing the mode" in controller.in_force().fuse_reason
            same_on_all_ranks(engine, launches)
            return engine.launches()


@contextmanager
def expected_to_give_up(engine: EngineServer) -> Iterator[None]:
    """The engine from its start to its end: in its log the plugin gives up, and SGLang has nothing to complain of."""
    engine.launch()
    try:
        engine.wait_ready()
        yield
        assert "trimtab gave up" in engine.log_path.read_text()
        assert "Scheduler hit an exception" not in engine.log_path.read_text()
    finally:
        engine.stop()


def check_unrest(logs: list[list[Launch]]) -> None:
    """The steps went through everything there is."""
    first = logs[0]
    assert {launch.steps for launch in first} == {0, 1, 3, 5}
    assert sum(a.steps != b.steps for a, b in itertools.pairwise(first)) > len(first) / 10


@pytest.fixture
def folder() -> Iterator[Path]:
    """Of one controller: the journal and the log of another would speak of other engines."""
    with short_folder() as made:
        yield made


@pytest.mark.parametrize(
    "launches", [SHORT, pytest.param(LONG, marks=pytest.mark.long)], ids=["short", "two thousand steps"]
)
def test_tensor_parallel_ranks_run_the_same_steps_whatever_happens(
    launches: int, new_engine: EngineFactory, folder: Path, plain_noisy: Expected
) -> None:
    check_unrest(unrest(ranked.tensor_parallel, new_engine, folder, plain_noisy, launches))


@pytest.mark.parametrize(
    "launches", [SHORT, pytest.param(LONG, marks=pytest.mark.long)], ids=["short", "two thousand steps"]
)
def test_ranks_of_data_parallel_attention_run_the_same_steps_with_batches_of_their_own(
    launches: int, new_engine: EngineFactory, folder: Path, plain_qwen3: Expected
) -> None:
    logs = unrest(ranked.dp_attention, new_engine, folder, plain_qwen3, launches)
    check_unrest(logs)
    batches = [tuple(launch.requests for launch in at) for at in zip(*logs, strict=True)]
    assert any(0 in sizes for sizes in batches), "a rank was idle"
    assert any(len(set(sizes)) > 1 and 0 not in sizes for sizes in batches), "batches were unequal"


# -- ranks that do not go together ---------------------------------------------------------------

TOPOLOGIES = {"tensor parallel": ranked.tensor_parallel, "data-parallel attention": ranked.dp_attention}
STRANGERS = {
    "missing:1": "rank 1 has no plugin that acts, or another one: it said nothing within 20 s",
    "other-version:1": "rank 1 has another version of the plugin: another-version, rank 0 has",
}


@pytest.mark.long
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("fault", STRANGERS)
def test_beside_a_rank_without_this_very_plugin_it_observes(
    topology: str, fault: str, new_engine: EngineFactory, folder: Path, request: pytest.FixtureRequest
) -> None:
    expected: Expected = request.getfixturevalue("plain_noisy" if topology == "tensor parallel" else "plain_qwen3")
    controller = RestlessController(folder)
    settings = TOPOLOGIES[topology](controller.target, fault)
    with controller, new_engine(settings) as engine:
        hello = controller.script.next_hello()
        assert (hello.acts, hello.topology.ranks) == (False, 1)
        (reason,) = hello.observe_reasons
        assert reason.startswith(STRANGERS[fault])
        assert "trimtab observes beside SGLang" in engine.log_path.read_text()
        with answered_as(expected, engine, TOKENS, CONCURRENT):
            wait_until("launches", lambda: len(engine.launches()[0]) > 150, ranked.WAIT_S)
        same_on_all_ranks(engine, 150)
        reports = (controller.script.next_report() for _ in range(200))
        assert any(report.rows.step for report in reports), "it reports what ran"


# -- ranks that part -----------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_rank_that_chooses_by_its_own_clock_brings_the_engine_down_and_the_alarm_comes_first(
    topology: str, new_engine: EngineFactory, folder: Path
) -> None:
    """The control: without agreement this engine dies or hangs, so the other tests say something."""
    with ControllerProcess(folder) as controller:
        engine = new_engine(TOPOLOGIES[topology](controller.address, "own-clock:1:60"))
        engine.launch()
        try:
            engine.wait_ready()
            controller.wait_connected(engine.engine_id)
            answers = [engine.submit(prompt, TOKENS) for prompt in PROMPTS]
            wait_until("the alarm", lambda: "rank_divergence" in controller.log_path.read_text(), ranked.WAIT_S)
            assert "rank_divergence" in controller.engine(engine.engine_id).policy.alarms
            wait_until("the engine stands still", lambda: stands_still(engine, 5.0), ranked.WAIT_S)
        finally:
            engine.stop()
        assert any(answer.exception(timeout=30) or len(answer.result().tokens) < TOKENS for answer in answers)


def stands_still(engine: EngineServer, seconds: float) -> bool:
    """Whether no rank launches anything for so long: the engine is dead, or hangs."""
    before = [len(launches) for launches in engine.launches()]
    time.sleep(seconds)
    return [len(launches) for launches in engine.launches()] == before


@pytest.mark.long
def test_a_forged_digest_raises_the_alarm_and_pins_the_mode_in_force(new_engine: EngineFactory, folder: Path) -> None:
    controller = ControllerProcess(folder)
    settings = ranked.tensor_parallel(controller.address, "forged:1:100")
    with controller, new_engine(settings) as engine:
        controller.wait_connected(engine.engine_id)
        engine.generate_all(PROMPTS, TOKENS)
        seen = wait_until("the engine is pinned", lambda: pinned(engine, controller), 10)
        held = seen.in_force.mode
        assert list(seen.policy.alarms) == ["rank_divergence"]
        assert (seen.pin.owner, seen.pin.mode) == ("trimtab", held)
        engine.generate_all(PROMPTS[:4], TOKENS)
        launches = same_on_all_ranks(engine, 150)
        assert {launch.steps for launch in launches[-40:]} == {held.steps}
        assert "disagree at step" in controller.run("show", engine.engine_id)


def pinned(engine: EngineServer, controller: ControllerProcess) -> admin_pb2.Engine | None:
    """The engine, once it runs a pin."""
    seen = controller.engine(engine.engine_id)
    return seen if seen.in_force.source == PIN else None


# -- replicas ------------------------------------------------------------------------------------


@pytest.mark.long
def test_replicas_of_a_server_are_engines_with_one_name(new_engine: EngineFactory, folder: Path) -> None:
    with ControllerProcess(folder) as controller:
        environment = {"TRIMTAB_CONTROLLER": controller.address, "TRIMTAB_MODE": "act", **ranked.ONE_CORE_EACH}
        settings = EngineSettings("noisy", arguments={"dp-size": "2"}, environment=environment)
        with new_engine(settings) as engine:
            both = [engine.engine_id, f"{engine.engine_id}/1"]
            for engine_id in both:
                assert controller.wait_connected(engine_id).hello.acts
            lines = controller.run("engines").splitlines()
            assert [line.split()[0] for line in lines[1:]] == both
            controller.run("pin", engine.engine_id, "--plain")
            controller.run("unpin", both[1])
            engine.generate_all(PROMPTS, TOKENS)
            first, second = (controller.engine(engine_id) for engine_id in both)
            assert (first.in_force.source, first.in_force.mode.steps) == (PIN, 0)
            assert second.in_force.source != PIN
            assert first.measured.rows > 0
            assert second.measured.rows > 0
