"""What every registered policy promises, whatever it decides."""

from __future__ import annotations

import json
from functools import partial

import pytest

from support.step_rows import MadeUpEngine, step_row
from trimtab.domain import (
    PLAIN_COLD,
    PLAIN_NATIVE,
    PLAIN_WARM,
    DepthCounts,
    Lease,
    Mode,
    StepFlag,
    StepRow,
    check_lease,
    modes_of,
)
from trimtab.errors import PolicyError
from trimtab.policies.bands import band_edges
from trimtab.policies.contract import Decision, Policy, PolicyContext
from trimtab.policies.registry import POLICIES, policy_factory

GRAPH_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
STEPS = modes_of([0, 1, 3, 5, 7])
CONTEXTS = {
    "sglang's candidates": PolicyContext(STEPS, band_edges(GRAPH_BATCH_SIZES), GRAPH_BATCH_SIZES, initial_steps=3),
    "every kind of plain": PolicyContext(
        (*STEPS, PLAIN_COLD, PLAIN_NATIVE), band_edges(GRAPH_BATCH_SIZES), GRAPH_BATCH_SIZES, initial_steps=7, seed=5
    ),
    "one mode, one band": PolicyContext(modes_of([3]), (1,), initial_steps=3),
    "no plain, no graphs": PolicyContext(modes_of([3, 5]), (1, 8), incumbent=modes_of([5])[0], initial_steps=3),
    "block verification": PolicyContext(STEPS, (1, 9), initial_steps=3, block_verification=True),
}

each_policy = pytest.mark.parametrize("name", sorted(POLICIES))
each_context = pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS.keys())


def create(name: str, context: PolicyContext) -> Policy:
    return policy_factory(name)(context)


def run(policy: Policy, seed: int = 1, reports: int = 12) -> list[Decision]:
    """Decisions while load and acceptance change and the engine follows the table."""
    engine = MadeUpEngine(seed)
    decisions = [policy.choose()]
    for _ in range(reports):
        policy.learn(engine.report(partial(mode_at, decisions[-1])))
        decisions.append(policy.choose())
    return decisions


def mode_at(decision: Decision, batch_size: int) -> Mode:
    return next(e.mode for e in reversed(decision.table) if e.min_batch_size <= batch_size)


@each_policy
@each_context
def test_the_table_begins_at_one_ascends_and_makes_a_lease_that_engines_accept(
    name: str, context: PolicyContext
) -> None:
    for decision in run(create(name, context)):
        edges = [band.min_batch_size for band in decision.bands]
        assert edges[0] == 1
        assert edges == sorted(set(edges))
        check_lease(
            Lease(
                1,
                decision.table,
                decision.smoothing,
                decision.hysteresis,
                decision.min_dwell_steps,
                decision.exploration_seed,
                decision.exploration_dwell_steps,
            )
        )


@each_policy
@each_context
def test_probabilities_sum_to_one_and_speak_of_offered_modes_only(name: str, context: PolicyContext) -> None:
    policy = create(name, context)
    for decision in run(policy):
        for band in decision.bands:
            chances = {band.mode: band.probability, **dict(band.alternatives)}
            assert set(chances) <= set(context.modes)
            assert sum(chances.values()) == pytest.approx(1.0)
            if len(chances) > 1:
                assert decision.exploration_dwell_steps > 0


@each_policy
@each_context
def test_probability_of_agrees_with_the_last_decision(name: str, context: PolicyContext) -> None:
    policy = create(name, context)
    decision = run(policy)[-1]
    for band in decision.bands:
        for mode in context.modes:
            assert policy.probability_of(band.min_batch_size, mode) == band.entry.probability_of(mode)
        assert sum(policy.probability_of(band.min_batch_size, m) for m in context.modes) == pytest.approx(1.0)


@each_policy
@each_context
def test_every_choice_comes_with_its_candidates_and_a_reason(name: str, context: PolicyContext) -> None:
    for decision in run(create(name, context)):
        for band in decision.bands:
            assert band.reason in {"exploit", "explore", "probe", "fixed", "guard", "fallback"}
            assert band.mode in [candidate.mode for candidate in band.candidates]
            for candidate in band.candidates:
                low, mid, high = candidate.goodput_low_tps, candidate.goodput_tps, candidate.goodput_high_tps
                if low is not None and mid is not None and high is not None:
                    assert 0 <= low <= mid <= high


@each_policy
@each_context
def test_the_same_seed_and_input_give_the_same_choices(name: str, context: PolicyContext) -> None:
    assert run(create(name, context)) == run(create(name, context))


@each_policy
@each_context
def test_asking_again_without_news_gives_the_same_answer(name: str, context: PolicyContext) -> None:
    policy = create(name, context)
    assert run(policy)[-1].table == policy.choose().table


@each_policy
@each_context
def test_a_policy_restored_from_json_goes_on_as_if_nothing_had_happened(name: str, context: PolicyContext) -> None:
    first = create(name, context)
    run(first)
    second = create(name, context)
    second.restore(json.loads(json.dumps(first.snapshot())))
    assert second.snapshot() == first.snapshot()
    assert run(second, seed=2) == run(first, seed=2)


@each_policy
@each_context
@pytest.mark.parametrize(
    "bad",
    [
        step_row(flags=StepFlag.WARM_UP),
        step_row(batch_size=0),
        step_row(PLAIN_WARM, flags=StepFlag.GAP, step_ns=None),
        step_row(PLAIN_WARM, flags=StepFlag.GAP, step_ns=20_000_000),
        step_row(PLAIN_WARM, step_ns=None),
        step_row(PLAIN_WARM, step_ns=0),
        step_row(step_ns=None, fresh_requests=0, stale_requests=4),
        step_row(step_ns=None, depths=DepthCounts((4, 3), (3, 4))),
    ],
    ids=[
        "warm-up",
        "empty batch",
        "gap",
        "gap with a time",
        "no time",
        "zero time",
        "stale drafters and no time",
        "more accepted than offered and no time",
    ],
)
def test_a_row_without_information_changes_nothing(name: str, context: PolicyContext, bad: StepRow) -> None:
    policy = create(name, context)
    decision = run(policy)[-1]
    before = policy.snapshot()
    policy.learn([])
    policy.learn([bad] * 50)
    assert policy.snapshot() == before
    assert policy.choose().table == decision.table


@each_policy
@each_context
def test_after_a_restart_of_the_engine_it_can_forget_and_go_on(name: str, context: PolicyContext) -> None:
    policy = create(name, context)
    run(policy)
    policy.forget()
    run(policy, seed=2)
    again = create(name, context)
    again.restore(json.loads(json.dumps(policy.snapshot())))
    assert again.choose() == policy.choose()


@each_policy
@each_context
def test_rows_of_a_mode_that_is_not_offered_do_no_harm(name: str, context: PolicyContext) -> None:
    policy = create(name, context)
    policy.learn([step_row(mode=modes_of([11])[0], accepted=9)] * 50)
    assert all(band.mode in context.modes for band in policy.choose().bands)


@each_policy
@pytest.mark.parametrize(
    "foreign",
    [
        {},
        {"policy": "another", "modes": [], "bands": [], "state": {}},
        {"policy": None, "modes": ["plain_warm"], "bands": [1], "state": {}},
    ],
)
def test_a_foreign_snapshot_is_refused(name: str, foreign: dict[str, object]) -> None:
    policy = create(name, CONTEXTS["sglang's candidates"])
    with pytest.raises(PolicyError):
        policy.restore(foreign)


@each_policy
def test_a_snapshot_of_other_modes_or_bands_is_refused_and_changes_nothing(name: str) -> None:
    policy = create(name, CONTEXTS["sglang's candidates"])
    before = policy.snapshot()
    for other in ("one mode, one band", "no plain, no graphs"):
        with pytest.raises(PolicyError, match=r"modes|bands"):
            policy.restore(create(name, CONTEXTS[other]).snapshot())
    assert policy.snapshot() == before


@each_policy
def test_a_policy_has_a_name_a_summary_and_parameters_with_defaults(name: str) -> None:
    cls = POLICIES[name]
    assert cls.name == name
    assert cls.summary
    assert cls.Parameters() == cls.Parameters()
