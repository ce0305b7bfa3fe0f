"""Policies on a trace: the session's rows are what an engine would have reported, and steps flow through the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from support.replay_traces import MS, Recorder, engine, flat_profile, prepared, write
from trimtab.domain import DepthCounts, Mode, StepFlag, StepRow, speculate
from trimtab.errors import PolicyError
from trimtab.policies.contract import BandDecision, Decision, PolicyContext
from trimtab.replay.counterfactual.ledger import Ledger
from trimtab.replay.counterfactual.replay import ReplaySettings, course_through_session, replay
from trimtab.replay.simulation.trial import NamedPolicy, parse_policy
from trimtab.replay.traces.recording import read_trace


class Listening:
    """Holds one mode, changes to another after so many reports, and remembers every row and what it was told."""

    name: ClassVar[str] = "listening"
    summary: ClassVar[str] = "for tests"

    def __init__(self, context: PolicyContext, modes: Sequence[Mode], every: int) -> None:
        self.context = context
        self.reports: list[tuple[StepRow, ...]] = []
        self._modes, self._every = modes, every

    @property
    def rows(self) -> list[StepRow]:
        return [row for report in self.reports for row in report]

    def learn(self, rows: Sequence[StepRow]) -> None:
        self.reports.append(tuple(rows))

    def choose(self) -> Decision:
        mode = self._modes[len(self.reports) // self._every % len(self._modes)]
        return Decision((BandDecision(1, mode, "fixed"),), min_dwell_steps=0)

    def probability_of(self, batch_size: int, mode: Mode) -> float:
        return 1.0

    def forget(self) -> None:
        return

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        return


def listen(
    path: Path, steps: Sequence[int], every: int = 1, settings: ReplaySettings | None = None
) -> tuple[list[Listening], Ledger]:
    """What a policy hears that runs these drafts in turn."""
    made: list[Listening] = []

    def factory(context: PolicyContext) -> Listening:
        made.append(Listening(context, [speculate(k) for k in steps], every))
        return made[-1]

    settings = settings or ReplaySettings(profile=flat_profile(), switch_ms=0.0)
    with prepared(path, settings) as world:
        policy = NamedPolicy("listening", "listening", factory)
        course = course_through_session(world.environment, world.engines, policy, settings)
        # Whether the policy can work with the engine was tried before.
        made.clear()
        for stretch in world.environment.stretches():
            course.play(stretch)
        course.finish()
    return made, course.ledger


def steady(tmp_path: Path, n: int = 200, **fields: Any) -> Path:
    recorder = Recorder()
    for _ in range(n):
        recorder.step(3, [0, 3], **fields)
    return write(tmp_path / "t.parquet", (engine(), recorder.rows))


def test_a_policy_that_does_what_ran_hears_what_was_reported(tmp_path: Path) -> None:
    recorder = Recorder()
    for i in range(200):
        recorder.step(
            3, [i % 5, 3], step_ms=10 + i % 3, context_tokens_sum=900 + i, context_tokens_max=500, kv_used_tokens=2_000,
            running_requests=2, waiting_requests=1, retracted_requests=0, grammar_requests=0, padded_batch_size=2,
        )  # fmt: skip
    path = write(tmp_path / "t.parquet", (engine(), recorder.rows))
    (policy,), ledger = listen(path, [3])
    names = (
        "step", "mode", "batch_size", "padded_batch_size", "emitted_tokens", "fresh_requests", "fresh", "step_ns",
        "result_ns", "wall_gap_ns", "context_tokens_sum", "context_tokens_max", "kv_used_tokens", "running_requests",
        "waiting_requests", "retracted_requests", "grammar_requests", "flags",
    )  # fmt: skip
    assert len(policy.rows) > 180
    for heard, said in zip(policy.rows, recorder.rows, strict=False):
        assert [getattr(heard, name) for name in names] == [getattr(said, name) for name in names]
        assert heard.lease_version == 1
    assert ledger.tokens.sum(axis=1).tolist() == [sum(row.emitted_tokens for row in recorder.rows), 0, 0]
    assert ledger.work_ms.sum() == pytest.approx(sum(row.step_ns or 0 for row in recorder.rows) / 1e6)


def test_fewer_drafts_mean_more_steps_and_the_counts_cut_off(tmp_path: Path) -> None:
    (policy,), ledger = listen(steady(tmp_path), [1])
    row = policy.rows[10]
    assert (row.mode, row.fresh, row.emitted_tokens) == (speculate(1), DepthCounts((2,), (1,)), 3)
    assert row.step_ns == round(MS[1] * 1e6)
    assert ledger.steps.sum() == pytest.approx(200 * 5 / 3)
    assert len(policy.rows) == pytest.approx(200 * 5 / 3, abs=30)


def test_more_drafts_show_what_requests_that_went_on_would_have_shown(tmp_path: Path) -> None:
    (policy,), ledger = listen(steady(tmp_path, 2_000), [7])
    offered, accepted = (
        [sum(column) for column in zip(*counts, strict=True)]
        for counts in ([row.fresh.offered for row in policy.rows], [row.fresh.accepted for row in policy.rows])
    )
    assert offered[:4] == [2 * len(policy.rows), *[len(policy.rows)] * 3]
    assert accepted[:3] == [len(policy.rows)] * 3
    assert 0 < accepted[3] <= offered[3]
    # A step spans more than one row.
    assert len(policy.rows) < ledger.steps.sum() + 1 < 2_000


def test_steps_and_their_time_add_up_to_the_time_of_the_rows(tmp_path: Path) -> None:
    (policy,), ledger = listen(steady(tmp_path, 500), [1, 7, 0])
    assert ledger.tokens.sum() == pytest.approx(500 * 5)
    heard_ms = sum(row.step_ns or 0 for row in policy.rows) / 1e6
    assert heard_ms <= ledger.work_ms.sum() + 1e-6
    assert heard_ms == pytest.approx(ledger.work_ms.sum(), abs=2 * 250 + 40)


def test_a_change_of_mode_pays_its_price_and_says_so(tmp_path: Path) -> None:
    settings = ReplaySettings(profile=flat_profile(), switch_ms=5.0)
    (policy,), ledger = listen(steady(tmp_path, 500), [3, 1], settings=settings)
    switched = [row for row in policy.rows if row.flags & StepFlag.SWITCHED]
    assert switched[0].step_ns == round((MS[1] + 5.0) * 1e6)
    assert 0 <= ledger.switches.sum() - len(switched) <= 1
    assert ledger.switch_ms.sum() == pytest.approx(5.0 * ledger.switches.sum())


def test_prefill_before_a_step_hides_its_time_and_passes_as_time(tmp_path: Path) -> None:
    recorder = Recorder()
    for i in range(100):
        recorder.step(3, [0, 3], gap_ms=50.0 if i == 20 else 0.0, prefill_tokens=700 if i == 20 else 0)
    path = write(tmp_path / "t.parquet", (engine(), recorder.rows))
    (policy,), _ = listen(path, [3])
    row = policy.rows[20]
    assert (row.step_ns, row.prefill_tokens) == (None, 700)
    assert row.flags & StepFlag.GAP
    assert row.wall_gap_ns == round((MS[3] + 50.0) * 1e6)
    assert row.result_ns - policy.rows[19].result_ns == row.wall_gap_ns


def test_reports_come_at_the_interval_of_replayed_time(tmp_path: Path) -> None:
    settings = ReplaySettings(profile=flat_profile(), switch_ms=0.0, interval_ms=120.0)
    (policy,), _ = listen(steady(tmp_path), [3], settings=settings)
    assert {len(report) for report in policy.reports[2:-1]} == {120 // 12}


def test_each_run_of_an_engine_has_a_session_of_its_own(tmp_path: Path) -> None:
    runs = []
    for _ in range(2):
        recorder = Recorder()
        for _ in range(60):
            recorder.step(3, [0, 3])
        runs.append(recorder.rows)
    path = write(tmp_path / "t.parquet", (engine(), runs[0]), (engine(run=1, start=1), runs[1]))
    policies, ledger = listen(path, [3])
    assert [policy.context.incumbent for policy in policies] == [speculate(3), speculate(1)]
    assert [policy.rows[0].step for policy in policies] == [1, 1]
    # The second began with one draft.
    assert ledger.switches.sum() == 1


def test_the_policy_is_told_the_engine_of_the_trace(tmp_path: Path) -> None:
    (policy,), _ = listen(steady(tmp_path, 50), [3])
    assert policy.context.modes == tuple(speculate(k) for k in sorted(MS))
    assert policy.context.graph_batch_sizes == (1, 2, 4, 8, 16, 32, 64)
    assert policy.context.profile is None


def test_stale_requests_stay_stale_and_get_nothing_accepted(tmp_path: Path) -> None:
    path = steady(tmp_path, 60, batch_size=3, stale_requests=1, stale=DepthCounts((1, 0, 0), (0, 0, 0)))
    (policy,), _ = listen(path, [1])
    row = policy.rows[5]
    assert (row.fresh_requests, row.fresh) == (2, DepthCounts((2,), (1,)))
    assert (row.stale_requests, row.stale) == (1, DepthCounts((1,), (0,)))


def test_sglangs_rule_runs_at_every_step_without_a_lease(tmp_path: Path) -> None:
    with read_trace(steady(tmp_path, 400)) as trace:
        _, ema = replay(trace, [parse_policy("sglang-ema")], ReplaySettings(profile=flat_profile())).verdicts
    # 1.5 of 3 drafts are accepted on average: the rule stays at 3.
    assert ema.steps_by_mode == {"speculate(3)": 1.0}
    assert ema.switches == 0


def test_a_policy_that_cannot_work_with_an_engine_names_it(tmp_path: Path) -> None:
    with read_trace(steady(tmp_path, 50)) as trace, pytest.raises(PolicyError, match="llama-a: steps 5 is not among"):
        replay(trace, [parse_policy("fixed:5")], ReplaySettings(profile=flat_profile()))
