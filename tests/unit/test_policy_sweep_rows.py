"""Rows of the start-up sweep: their times are costs, what their dummy requests accepted is nobody's acceptance."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.step_rows import step_row
from trimtab.domain import DepthCounts, Mode, StepFlag, StepRow, modes_of
from trimtab.policies.contract import Policy, PolicyContext
from trimtab.policies.registry import POLICIES, policy_factory

MODES = modes_of([0, 1, 3])
CONTEXT = PolicyContext(modes=MODES, bands=(1, 3, 5, 9), graph_batch_sizes=(1, 2, 4, 8, 16), initial_steps=3, seed=1)
SWEPT = StepFlag.GRAPH | StepFlag.SWEEP


def swept(mode: Mode, size: int, first_step: int, rows: int = 24, step_ms: float = 50.0) -> list[StepRow]:
    """A mode held at a batch size by the sweep; every draft is accepted."""
    full = DepthCounts((size,) * mode.steps, (size,) * mode.steps)
    return [
        step_row(
            mode, size, depths=full, step=first_step + i, launch_id=first_step + i, result_ns=(first_step + i) * 10**7,
            step_ns=round(step_ms * 1e6), wall_gap_ns=round(step_ms * 1e6), padded_batch_size=size, flags=SWEPT,
        )
        for i in range(rows)
    ]  # fmt: skip


def sweep() -> list[StepRow]:
    """A whole sweep, in which 3 drafts cost a hundredth of no draft."""
    cells = [(mode, size) for size in (1, 16, 4) for mode in MODES]
    return [
        row
        for i, (mode, size) in enumerate(cells)
        for row in swept(mode, size, 1 + 24 * i, step_ms=0.5 if mode.steps == 3 else 50.0)
    ]


def expected(policy: Policy) -> list[list[tuple[float | None, float | None]]]:
    """Accepted drafts and step time of every candidate in every band."""
    return [[(c.accepted_drafts, c.step_ms) for c in band.candidates] for band in policy.choose().bands]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_no_policy_learns_acceptance_of_a_sweep(name: str) -> None:
    fresh, policy = policy_factory(name)(CONTEXT), policy_factory(name)(CONTEXT)
    policy.learn(sweep())
    for before, after in zip(expected(fresh), expected(policy), strict=True):
        assert [accepted for accepted, _ in after] == pytest.approx([accepted for accepted, _ in before], nan_ok=True)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"goodput"}))
def test_a_policy_that_knows_rewards_only_learns_nothing_of_a_sweep(name: str) -> None:
    fresh, policy = policy_factory(name)(CONTEXT), policy_factory(name)(CONTEXT)
    policy.learn(sweep())
    assert policy.snapshot() == fresh.snapshot()
    assert policy.choose() == fresh.choose()


def test_goodput_knows_after_a_sweep_what_steps_cost() -> None:
    policy = policy_factory("goodput")(CONTEXT)
    for cell in range(0, len(sweep()), 24):
        policy.learn(sweep()[cell : cell + 24])
    for band in policy.choose().bands:
        plain, one, three = (candidate.step_ms or 0.0 for candidate in band.candidates)
        assert three < 2 < 25 < min(plain, one)


def test_the_same_rows_without_the_flag_would_have_taught_acceptance() -> None:
    policy = policy_factory("goodput")(CONTEXT)
    policy.learn([replace(row, flags=StepFlag.GRAPH) for row in sweep()])
    assert expected(policy)[0][2][0] == pytest.approx(3.0, abs=0.2)
