"""The whole policy on small made-up engines: what it decides, what it says, and what it leaves alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from support.small_cases import load_with_runs, small_case
from support.step_rows import MadeUpEngine, depth_counts, step_row
from trimtab.domain import (
    PLAIN_COLD,
    PLAIN_NATIVE,
    PLAIN_WARM,
    DepthCounts,
    EngineInfo,
    EngineKey,
    Mode,
    Report,
    StepRow,
    modes_of,
    speculate,
)
from trimtab.policies.contract import Decision, PolicyContext
from trimtab.policies.goodput import GoodputParameters, GoodputPolicy
from trimtab.policies.profile import CostProfile, ProfilePoint, profile_of
from trimtab.policies.registry import policy_factory
from trimtab.replay.simulation.drivers import Course, SessionDriver, play
from trimtab.session.engine_session import EngineSession
from trimtab.session.events import Connected, Reported

MODES = modes_of([0, 1, 3, 5])
MS = {0: 10.0, 1: 11.0, 3: 13.0, 5: 15.0}
PROFILE = profile_of([ProfilePoint(64, {speculate(k): ms for k, ms in MS.items()})])


def policy(
    modes: Sequence[Mode] = MODES,
    bands: tuple[int, ...] = (1, 9),
    profile: CostProfile | None = PROFILE,
    incumbent: Mode | None = None,
    kv_capacity_tokens: int = 0,
    parameters: GoodputParameters | None = None,
) -> GoodputPolicy:
    context = PolicyContext(
        tuple(modes),
        bands,
        incumbent=incumbent,
        initial_steps=3,
        profile=profile,
        kv_capacity_tokens=kv_capacity_tokens,
    )
    return GoodputPolicy(context, parameters)


def steps_at(mode: Mode, chance: float, n: int = 25, batch_size: int = 8, ms: float | None = None) -> list[StepRow]:
    """Rows of one report in this mode, with the expected number of drafts accepted at every position."""
    many = 10_000
    runs = [min(8, int(math.log(1 - (i + 0.5) / many) / math.log(chance))) for i in range(many)]
    counts = depth_counts(runs, mode.steps)
    scale = batch_size / many
    offered = tuple(round(scale * o) for o in counts.offered)
    accepted = tuple(min(o, round(scale * a)) for o, a in zip(offered, counts.accepted, strict=True))
    accepted = tuple(min(a, *offered[i + 1 : i + 2], a) for i, a in enumerate(accepted))
    step_ns = round((ms or MS[mode.steps]) * 1e6)
    return [
        step_row(mode, batch_size, step_ns=step_ns, depths=DepthCounts(offered, accepted), step=i + 1) for i in range(n)
    ]


def settle(subject: GoodputPolicy, chance: float, reports: int = 12, batch_size: int = 8) -> Decision:
    """The decision after some reports of an engine that follows the table and has this acceptance everywhere."""
    for _ in range(reports):
        decision = subject.choose()
        mode = next(b.mode for b in reversed(decision.bands) if b.min_batch_size <= batch_size)
        subject.learn(steps_at(mode, chance, batch_size=batch_size))
    return subject.choose()


def test_before_any_row_it_keeps_what_runs() -> None:
    assert {b.mode for b in policy(incumbent=speculate(5)).choose().bands} == {speculate(5)}
    assert {b.mode for b in policy().choose().bands} == {speculate(3)}


@pytest.mark.parametrize(("chance", "best"), [(0.05, 0), (0.25, 1), (0.9, 5)])
def test_it_takes_the_mode_with_the_most_tokens_a_second(chance: float, best: int) -> None:
    assert {b.mode.steps for b in settle(policy(), chance, batch_size=64).bands} == {best}


def test_the_candidates_are_predicted_with_their_intervals() -> None:
    band = settle(policy(), 0.9, batch_size=64).bands[1]
    by_steps = {candidate.mode.steps: candidate for candidate in band.candidates}
    assert set(by_steps) == set(MS)
    for steps, candidate in by_steps.items():
        tps = 64 * (1 + sum(0.9**i for i in range(1, steps + 1))) / MS[steps] * 1e3
        assert candidate.step_ms == pytest.approx(MS[steps], rel=0.02)
        assert candidate.goodput_tps == pytest.approx(tps, rel=0.06)
        assert candidate.goodput_low_tps is not None
        assert candidate.goodput_high_tps is not None
        assert candidate.goodput_low_tps < tps < candidate.goodput_high_tps * 1.02


def play_constant(runs: Sequence[int], ms: dict[int, float], steps: int) -> Course:
    """A course on a constant load whose requests have these runs, without a profile."""
    case = small_case([load_with_runs(runs)] * steps, ms, start=3, switch_ms=0.3)
    return play(case, SessionDriver(case, "goodput", policy_factory("goodput")))


def test_what_could_not_win_with_every_draft_accepted_is_never_probed() -> None:
    hopeless = {0: 10.0, 1: 30.0, 3: 60.0}
    case = small_case([load_with_runs([0, 1, 2, 8])] * 1_500, hopeless, start=0)
    profile = profile_of([ProfilePoint(64, {speculate(k): ms for k, ms in hopeless.items()})])

    def factory(context: PolicyContext) -> GoodputPolicy:
        return GoodputPolicy(
            PolicyContext(context.modes, context.bands, incumbent=PLAIN_WARM, profile=profile), GoodputParameters()
        )

    course = play(case, SessionDriver(case, "goodput", factory))
    assert set(course.modes) == {PLAIN_WARM}


def test_out_of_plain_it_probes_ever_more_rarely() -> None:
    course = play_constant([0, 0, 0, 0, 0, 0, 0, 1], {0: 10.0, 1: 14.0, 3: 20.0}, steps=4_000)
    drafted = [i for i, mode in enumerate(course.modes) if mode.steps and i >= 300]
    early, late = sum(i < 1_300 for i in drafted), sum(i >= 3_000 for i in drafted)
    assert 0 < late < early / 2
    assert len(drafted) < 0.1 * len(course.modes)


def test_the_randomised_share_has_its_propensity_in_the_lease_and_can_be_switched_off() -> None:
    band = settle(policy(parameters=GoodputParameters(random_share=0.02)), 0.6, batch_size=64).bands[1]
    assert band.probability == pytest.approx(0.98)
    ((other, share),) = band.alternatives
    assert share == pytest.approx(0.02)
    assert abs(MODES.index(other) - MODES.index(band.mode)) == 1
    without = settle(policy(parameters=GoodputParameters(random_share=0.0)), 0.6, reports=40, batch_size=64)
    assert all(b.reason == "exploit" and not b.alternatives for b in without.bands)


def test_where_switches_are_dear_nothing_is_drawn_at_random() -> None:
    subject = policy()
    rows = steps_at(speculate(3), 0.6, batch_size=64)
    switch = step_row(speculate(5), 64, step_ns=315_000_000, depths=rows[0].fresh)
    back = steps_at(speculate(5), 0.6, batch_size=64)[0]
    for _ in range(4):
        subject.learn([*rows, switch, back, back])
    assert not any(b.alternatives for b in subject.choose().bands)


@pytest.mark.parametrize(
    ("parameters", "allowed"),
    [
        (GoodputParameters(step_ms_p95=12.5), {0, 1}),
        (GoodputParameters(token_ms=6.0), {3, 5}),
        (GoodputParameters(), {0, 1, 3, 5}),
    ],
    ids=["step time", "time per token", "none"],
)
def test_latency_limits_hold_in_every_band_and_for_probes(parameters: GoodputParameters, allowed: set[int]) -> None:
    subject = policy(parameters=parameters)
    assert {band.mode.steps for band in subject.choose().bands} <= allowed
    for chance in (0.9, 0.6, 0.9):
        for _ in range(10):
            decision = settle(subject, chance, reports=1, batch_size=64)
            for band in decision.bands:
                assert {band.mode.steps, *(mode.steps for mode, _ in band.alternatives)} <= allowed


def test_the_guard_goes_plain_where_drafts_do_not_come_out_as_tokens_and_says_so() -> None:
    subject = policy()
    settle(subject, 0.9, batch_size=8)
    for _ in range(12):
        mode = subject.choose().bands[0].mode
        cut_short = [
            step_row(mode, 8, step_ns=row.step_ns, depths=row.fresh, emitted_tokens=8) for row in steps_at(mode, 0.9)
        ]
        subject.learn(cut_short)
    decision = subject.choose()
    assert {(b.mode, b.reason) for b in decision.bands} == {(PLAIN_WARM, "guard")}


def test_when_the_kv_cache_is_nearly_full_it_drafts_little() -> None:
    subject = policy(kv_capacity_tokens=10_000)
    assert settle(subject, 0.9).bands[0].mode == speculate(5)
    full = [
        step_row(speculate(5), 8, step_ns=row.step_ns, depths=row.fresh, kv_used_tokens=9_500)
        for row in steps_at(speculate(5), 0.9)
    ]
    subject.learn(full)
    assert subject.choose().bands[0].mode == speculate(1)


def test_cold_plain_is_never_taken_and_the_cheapest_other_plain_is() -> None:
    native = {PLAIN_WARM: 13.0, PLAIN_NATIVE: 10.0, PLAIN_COLD: 9.0, speculate(1): 20.0, speculate(3): 40.0}
    profile = profile_of([ProfilePoint(64, native)])
    subject = policy(tuple(native), profile=profile)
    subject.learn(steps_at(speculate(3), 0.05, ms=40.0))
    assert {b.mode for b in subject.choose().bands} == {PLAIN_NATIVE}


def test_prefill_between_the_steps_leaves_less_to_gain() -> None:
    subject = policy()
    rows = steps_at(speculate(3), 0.5)
    with_prefill = [
        row if i % 2 else step_row(row.mode, 8, step_ns=None, depths=row.fresh, prefill_tokens=900, wall_gap_ns=10**9)
        for i, row in enumerate(rows)
    ]
    for _ in range(20):
        subject.learn(with_prefill)
    gains = subject._value().against(0, 2).gain
    plain = policy()
    plain.learn(rows)
    assert abs(gains[0]) < 0.3 * abs(plain._value().against(0, 2).gain[0])


def test_it_forgets_acceptance_but_not_cost() -> None:
    subject = policy(profile=None)
    before = settle(subject, 0.9).bands[0].candidates
    subject.forget()
    after = subject.choose().bands[0].candidates
    assert [c.step_ms for c in after] == pytest.approx([c.step_ms for c in before])
    assert after[-1].accepted_drafts != before[-1].accepted_drafts


# -- c09: a drafter that falls behind over hours --------------------------------------------------


def hour_of_drafts(engine_s: int, drafts: int, accept_len: float, seq: int) -> Report:
    """Counters between two scrapes as rows: four drafts a step, the same chance at every position."""
    low, high = 0.0, 1.0
    for _ in range(50):
        chance = (low + high) / 2
        low, high = (chance, high) if sum(chance**i for i in range(1, 5)) < accept_len - 1 else (low, chance)
    reach = [round(drafts * low**depth) for depth in range(5)]
    row = step_row(
        speculate(4),
        drafts,
        depths=DepthCounts(tuple(reach[:4]), tuple(reach[1:])),
        result_ns=engine_s * 10**9,
        step=engine_s,
    )
    return Report(seq, engine_s * 10**9, (row,))


@pytest.mark.parametrize(
    ("accept_lens", "raised"),
    [([3.07, 2.93, 2.80], [False, False, True]), ([3.07, 3.09, 3.07], [False, False, False])],
    ids=["engine A", "engine B"],
)
def test_c09_the_drift_alarm_is_raised_for_the_engine_that_falls_and_not_for_the_other(
    accept_lens: list[float], raised: list[bool]
) -> None:
    session = EngineSession("goodput", policy_factory("goodput"))
    info = EngineInfo(EngineKey("A"), "a1", modes_of([0, 4]), max_running_requests=256, initial_steps=4)
    session.step(Connected(info), 0)
    seen = []
    for i, (at_s, drafts) in enumerate([(10, 1_000), (3_600, 100_000), (7_200, 100_000)]):
        session.step(Reported(hour_of_drafts(at_s, drafts, accept_lens[i], i + 1)), at_s * 10**9)
        assert session.decision is not None
        seen.append("acceptance_drift" in session.decision.alarms)
    assert seen == raised


def test_a_made_up_engine_is_steered_without_a_profile() -> None:
    subject, engine = policy(modes_of([0, 1, 3, 5, 7]), (1, 5, 17, 33), profile=None), MadeUpEngine(4)
    for _ in range(60):
        decision = subject.choose()
        subject.learn(
            engine.report(
                lambda size, d=decision: next(  # type: ignore[misc]
                    b.mode for b in reversed(d.bands) if b.min_batch_size <= size
                )
            )
        )
    assert all(b.candidates[0].step_ms is not None for b in subject.choose().bands)
