"""The recorded run and fixed modes, whole columns at a time, are what the session makes of them step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.long_trace import write_trace
from support.replay_traces import MS, Prepared, Recorder, engine, flat_profile, prepared, write
from trimtab.domain import StepFlag
from trimtab.replay.counterfactual.ledger import Ledger
from trimtab.replay.counterfactual.replay import ReplaySettings, course_through_session, replay
from trimtab.replay.counterfactual.result import ReplayResult
from trimtab.replay.simulation.trial import parse_policy
from trimtab.replay.traces.recording import read_trace

SETTINGS = ReplaySettings(profile=flat_profile())


@pytest.fixture(scope="module")
def long_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "ten_thousand.parquet"
    write_trace(path, 10_000)
    return path


def through_session(world: Prepared, policy: str, settings: ReplaySettings) -> Ledger:
    course = course_through_session(world.environment, world.engines, parse_policy(policy), settings)
    for stretch in world.environment.stretches():
        course.play(stretch)
    course.finish()
    return course.ledger


@pytest.mark.parametrize("steps", [0, 1, 3, 7])
def test_a_fixed_mode_equals_the_session_on_ten_thousand_steps(long_path: Path, steps: int) -> None:
    settings = ReplaySettings(switch_ms=2.0)
    with prepared(long_path, settings) as world:
        ledger = through_session(world, f"fixed:{steps}", settings)
        result = replay(world.trace, [parse_policy(f"fixed:{steps}")], settings)
    _, vectorised = result.verdicts
    seconds = float((ledger.work_ms + ledger.switch_ms).sum()) / 1e3 + float(result.prefill_s.sum())
    assert vectorised.seconds == pytest.approx(seconds, rel=1e-9)
    assert vectorised.tokens == pytest.approx(float(ledger.tokens.sum()), rel=1e-9)
    assert vectorised.steps == pytest.approx(float(ledger.steps.sum()), rel=1e-9)
    assert vectorised.switches == int(ledger.switches.sum()) == (0 if steps == 7 else 1)
    doubts = ledger.doubts().vector()
    fixed = next(course for course in result.courses if course.name == f"fixed:{steps}")
    assert fixed.seconds == pytest.approx((ledger.work_ms + ledger.switch_ms) / 1e3 + result.prefill_s, rel=1e-9)
    assert np.isfinite(doubts).all()


def played(path: Path, *policies: str, settings: ReplaySettings = SETTINGS) -> ReplayResult:
    with read_trace(path) as trace:
        return replay(trace, [parse_policy(policy) for policy in policies], settings)


def test_the_recorded_run_is_always_there_and_is_what_ran(tmp_path: Path) -> None:
    recorder = Recorder()
    for i in range(100):
        recorder.step(3, [i % 4, 3], step_ms=10 + i % 3)
    verdict = played(write(tmp_path / "t.parquet", (engine(), recorder.rows)), "fixed:1").verdicts[0]
    assert verdict.policy == "as recorded"
    assert verdict.tokens == sum(row.emitted_tokens for row in recorder.rows)
    assert verdict.seconds == pytest.approx(sum(row.step_ns or 0 for row in recorder.rows) / 1e9)
    assert (verdict.observed_share, verdict.steps, verdict.switches) == (1.0, 100.0, 0)


def test_the_mode_that_ran_throughout_is_the_recorded_run(tmp_path: Path) -> None:
    recorder = Recorder()
    for i in range(100):
        recorder.step(3, [i % 4, 3], step_ms=10 + i % 3)
    recorded, fixed = played(write(tmp_path / "t.parquet", (engine(), recorder.rows)), "fixed:3").verdicts
    assert fixed.tokens_per_s == pytest.approx(recorded.tokens_per_s, rel=1e-12)
    assert (fixed.observed_share, fixed.steps, fixed.switches) == (1.0, 100.0, 0)
    assert (fixed.low, fixed.high) == pytest.approx((recorded.low, recorded.high))


def test_another_mode_takes_its_own_steps_at_its_own_cost(tmp_path: Path) -> None:
    recorder = Recorder()
    for _ in range(100):
        recorder.step(3, [0, 3], step_ms=13.0)
    _, fixed = played(write(tmp_path / "t.parquet", (engine(), recorder.rows)), "fixed:1").verdicts
    # 5 tokens a row of 13 ms; with one draft 3 tokens a step of 13 * 9 / 12 ms.
    assert fixed.steps == pytest.approx(100 * 5 / 3)
    assert fixed.seconds == pytest.approx(100 * 5 / 3 * 13 * MS[1] / MS[3] / 1e3)
    assert (fixed.truncated_share, fixed.switches) == (1.0, 1)


def test_prefill_is_paid_by_everybody_and_a_pause_by_nobody(tmp_path: Path) -> None:
    recorder = Recorder()
    for i in range(200):
        gap_ms = 40.0 if i % 50 == 10 else 500.0 if i % 50 == 30 else 0.0
        recorder.step(3, [0, 3], gap_ms=gap_ms, prefill_tokens=900 if i % 50 == 10 else 0)
    result = played(write(tmp_path / "t.parquet", (engine(), recorder.rows)), "fixed:1")
    recorded, fixed = result.verdicts
    # What a step takes whose time is not known is what others around it take.
    assert recorded.seconds == pytest.approx((200 * MS[3] + 4 * 40.0) / 1e3)
    assert fixed.seconds == pytest.approx((200 * 5 / 3 * MS[1] + 4 * 40.0) / 1e3)
    assert recorded.left_out_s == fixed.left_out_s == pytest.approx(4 * 0.5)


def test_a_warm_up_is_charged_to_nobody(tmp_path: Path) -> None:
    recorder = Recorder()
    for i in range(100):
        warm_up = i == 20
        flags = StepFlag.GRAPH | (StepFlag.WARM_UP if warm_up else StepFlag.NONE)
        recorder.step(3, [0, 3], step_ms=2_000.0 if warm_up else None, flags=flags)
    recorded, fixed = played(write(tmp_path / "t.parquet", (engine(), recorder.rows)), "fixed:1").verdicts
    assert recorded.seconds == pytest.approx(100 * MS[3] / 1e3)
    assert fixed.seconds == pytest.approx(100 * 5 / 3 * MS[1] / 1e3)
    assert recorded.left_out_s == pytest.approx(2.0 - MS[3] / 1e3)


def test_runs_of_several_engines_are_summed_up_and_told_apart(tmp_path: Path) -> None:
    fast, slow = Recorder(), Recorder({k: 2 * ms for k, ms in MS.items()})
    for recorder in (fast, slow):
        for _ in range(100):
            recorder.step(3, [0, 3])
    path = write(tmp_path / "t.parquet", (engine("a"), fast.rows), (engine("b"), slow.rows), (engine("b", 1), []))
    result = played(path, "fixed:1")
    for verdict in result.verdicts:
        a, b, nothing = verdict.engines
        assert (a.engine, b.engine, nothing.run) == ("a", "b", 1)
        assert b.seconds == pytest.approx(2 * a.seconds)
        assert verdict.seconds == pytest.approx(a.seconds + b.seconds)
        assert verdict.tokens == a.tokens + b.tokens == 1_000
        assert nothing.tokens == 0
    # Each engine began with 3 drafts.
    assert result.verdicts[1].switches == 2


def test_the_best_fixed_mode_and_the_time_lost_against_the_best_of_each_part(tmp_path: Path) -> None:
    recorder = Recorder()
    for i in range(200):
        recorder.step(3, [0, 0] if i < 100 else [7, 7])
    result = played(write(tmp_path / "t.parquet", (engine(), recorder.rows)), "fixed:0", "fixed:3")
    plain, three = result.verdicts[1:]
    # Two tokens a step: 8 ms plain or 12 ms; eight tokens a step: four plain steps of 8 ms or one of 12.
    assert plain.seconds == pytest.approx((100 * 8 + 400 * 8) / 1e3)
    assert three.regret_s == pytest.approx(100 * 4 / 1e3, rel=0.25)
    assert plain.best_fixed in ("speculate(3)", "speculate(7)")
    assert plain.against_best_fixed.value < 0.7


def test_the_same_replay_gives_the_same_result_again(long_path: Path) -> None:
    once, again = (played(long_path, "goodput", "fixed:5", settings=ReplaySettings()).verdicts for _ in range(2))
    assert once == again
