"""Whatever the schedule of modes, every token is that of an engine without speculation.

A schedule is one lease that draws another mode every few steps. The tests run on the SGLang of the engine environment;
SGLANG_VENV names another. The default one gets 100 schedules, the others 20.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from asks import Ask, differences, ordinary, special
from engine_server import ENGINE_VENV, OVERLAP, Answer, EngineFactory, EngineServer, EngineSettings
from steering import Steering
from support.scripted_controller import ScriptedController
from trimtab.domain import PLAIN_NATIVE, StepRow
from trimtabpb.v1 import control_pb2 as pb

pytestmark = [pytest.mark.sglang, pytest.mark.long, pytest.mark.timeout(1200)]

# On a slow machine drafting may do harm; whether the plugin's guard sees it is tested elsewhere.
UNGUARDED = {"SGLANG_CPU_TRIMTAB_UNGUARDED": "1"}
# SGLang lets requests in as if they would write no more than this.
CROWDED = {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "8"}
STRICT = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"}
DWELLS = (1, 2, 3, 5, 8, 13)
# Requests of a schedule, and those that are taken back.
REQUESTS, ABORTED = 10, 2
DEFAULT_SGLANG = "0.5.23"
RETRACTED = "Retract requests"


@dataclass(frozen=True)
class Kind:
    """One kind of server.

    Attributes:
        schedules: How many run on it, with the default SGLang and with another.
        arguments: Of the server.
        overlap: Whether results come one step after their launch.
        special: Ask for grammars, stop conditions and log probabilities as well.
        longest_prompt: Tokens of the longest prompt.
        retracts: Whether requests are retracted for want of memory.
    """

    speculation: str
    schedules: tuple[int, int]
    arguments: dict[str, str] = field(default_factory=dict)
    overlap: bool = True
    special: bool = False
    longest_prompt: int = 20
    retracts: bool = False


KINDS = {
    "adaptive": Kind("adaptive", (30, 4)),
    "grammar, stop strings, log probabilities": Kind("adaptive", (20, 4), special=True),
    "fixed steps, pages of 16, prefill in chunks": Kind(
        "fixed", (15, 3), {"page-size": "16", "chunked-prefill-size": "64"}, longest_prompt=180
    ),
    "short of memory": Kind(
        "adaptive", (15, 3), {"max-total-tokens": "480", "schedule-conservativeness": "0.01"}, retracts=True
    ),
    "trees": Kind("fixed", (10, 3), {"speculative-eagle-topk": "3", "speculative-num-draft-tokens": "8"}, special=True),
    "no overlap": Kind("fixed", (10, 3), overlap=False, special=True),
}


class Reference:
    """What an engine without speculation answers, asked once for each request."""

    def __init__(self, engine: EngineServer) -> None:
        self.special = special(engine, 7)
        self._engine = engine
        self._answers: dict[str, Answer] = {}

    def answers(self, asks: Sequence[Ask]) -> list[Answer]:
        """The right answers."""
        missing = {repr(ask): ask for ask in asks if repr(ask) not in self._answers}
        sent = {key: ask.submit(self._engine) for key, ask in missing.items()}
        self._answers |= {key: answer.result() for key, answer in sent.items()}
        return [self._answers[repr(ask)] for ask in asks]


@pytest.fixture(scope="module")
def reference(new_engine: EngineFactory) -> Iterator[Reference]:
    with new_engine(EngineSettings("noisy", "none", tokenizer=True)) as engine:
        yield Reference(engine)


@pytest.mark.parametrize("name", KINDS)
def test_every_schedule_gives_the_tokens_of_an_engine_without_speculation(
    reference: Reference, new_engine: EngineFactory, name: str
) -> None:
    kind = KINDS[name]
    asks = ordinary(24, 5, kind.longest_prompt) + (reference.special * 2 if kind.special else [])
    with ScriptedController() as controller:
        environment = {"TRIMTAB_CONTROLLER": controller.target, **UNGUARDED, **STRICT}
        environment |= (OVERLAP if kind.overlap else {}) | (CROWDED if kind.retracts else {})
        settings = EngineSettings("noisy", kind.speculation, kind.arguments, environment, tokenizer=True)
        with new_engine(settings) as engine:
            steering = Steering(controller).meet()
            schedules = kind.schedules[sglang_version() != DEFAULT_SGLANG]
            for number in range(schedules):
                assert wrong(engine, steering, reference, asks, number) == []
            _check(steering.rows(), controller.reports[-1], schedules)
            assert kind.retracts is (RETRACTED in engine.log_path.read_text())
            engine.flush_cache()


def wrong(engine: EngineServer, steering: Steering, reference: Reference, asks: list[Ask], number: int) -> list[str]:
    """Run one schedule; what came out wrong."""
    source = random.Random(number)
    steering.shuffle(steering.modes, number, source.choice(DWELLS))
    chosen = source.sample(asks, REQUESTS)
    expected = reference.answers(chosen)
    rids = [f"taken-back-{number}-{i}" for i in range(ABORTED)]
    taken_back = [engine.submit(chosen[0].prompt, 400, rid=rid) for rid in rids]
    answers = [ask.submit(engine) for ask in chosen]
    for rid in rids:
        answers[source.randrange(REQUESTS)].result()
        engine.abort(rid)
    found = differences(chosen, expected, [answer.result() for answer in answers])
    for request in taken_back:
        request.result()
    return [f"schedule {number}: {difference}" for difference in found]


def _check(rows: list[StepRow], report: pb.Report, schedules: int) -> None:
    """The schedules did what they are for."""
    ran = Counter(row.mode for row in rows)
    assert len(ran) >= 2
    assert ran[PLAIN_NATIVE] > 5 * schedules
    assert any(row.caught_up_tokens for row in rows)
    assert report.in_force.source != pb.InForce.SOURCE_FUSE
    assert not set(report.dropped) - {"late_request"}


def sglang_version() -> str:
    """The SGLang of the engine environment."""
    (info,) = (ENGINE_VENV / "lib").glob("python3.*/site-packages/sglang-*.dist-info")
    return info.name.removeprefix("sglang-").removesuffix(".dist-info")
