"""What is learnt from step times: the costs that made them, in spite of noise, holes and context."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.made_up_steps import MODES, SIZES, MadeUpCosts
from trimtab.domain import PLAIN_COLD, PLAIN_WARM, speculate
from trimtab.errors import DataError
from trimtab.replay.arrays import weighted_median
from trimtab.replay.profiles.check import first_half, held_out_errors, judge
from trimtab.replay.profiles.fit import fit_profile
from trimtab.replay.profiles.sample_files import read_samples
from trimtab.replay.profiles.samples import StepSamples, joined
from trimtab.replay.profiles.wanted import Wanted

TRACES = Path(__file__).parents[1] / "data" / "traces"
H200_8B_FA3 = ("llama8b_fa3_ctx64", "llama8b_fa3_per_request")


def test_without_noise_the_costs_come_out_as_they_are() -> None:
    costs = MadeUpCosts()
    profile = fit_profile(costs.samples())
    for size in SIZES:
        for mode in MODES:
            assert profile.step_ms(mode, size) == pytest.approx(costs.ms(mode, size))
    assert profile.context is None


def test_a_few_wild_times_change_nothing() -> None:
    costs = MadeUpCosts()
    samples = costs.samples(noise=0.01)
    wild = samples.step_ms.copy()
    wild[::7] *= 40
    calm, shaken = fit_profile(samples), fit_profile(replace(samples, step_ms=wild))
    for size in SIZES:
        for mode in MODES:
            assert shaken.step_ms(mode, size) == pytest.approx(calm.step_ms(mode, size), rel=0.01)


@pytest.mark.parametrize(("a_token", "a_longest_token"), [(3e-5, 0.0), (3e-5, 2e-4), (0.0, 2e-4)])
def test_context_is_told_apart_from_batch_and_mode(a_token: float, a_longest_token: float) -> None:
    costs = MadeUpCosts(a_token, a_longest_token)
    profile = fit_profile(costs.samples(noise=0.002, with_context=True))
    assert profile.context is not None
    assert profile.context.ms_per_token == pytest.approx(a_token, rel=0.03, abs=1e-6)
    assert profile.context.ms_per_longest_token == pytest.approx(a_longest_token, rel=0.05, abs=1e-5)
    for size in SIZES:
        exact = costs.ms(speculate(3), size, 1500 * size, 3000)
        assert profile.step_ms(speculate(3), size, 1500, 3000) == pytest.approx(exact, rel=0.01)


def test_context_never_makes_a_step_faster() -> None:
    samples = MadeUpCosts(-3e-5, 1e-4).samples(with_context=True)
    profile = fit_profile(samples)
    assert profile.context is not None
    assert profile.context.ms_per_token == 0
    assert profile.context.ms_per_longest_token > 0


def test_what_was_never_measured_is_the_nearest_mode_times_the_ratio_elsewhere() -> None:
    costs = MadeUpCosts()
    everywhere = costs.samples(modes=(PLAIN_WARM, speculate(1)))
    some = costs.samples(sizes=(4, 64), modes=(speculate(3),))
    profile = fit_profile(joined([everywhere, some]))
    ratio = costs.ms(speculate(3), 4) / costs.ms(speculate(1), 4)
    assert profile.step_ms(speculate(3), 1) == pytest.approx(ratio * costs.ms(speculate(1), 1))
    assert costs.ms(speculate(3), 4) < profile.step_ms(speculate(3), 16) < costs.ms(speculate(3), 64)


def test_other_kinds_of_plain_are_no_part_of_the_ladder_of_steps() -> None:
    costs = MadeUpCosts()
    cold = costs.samples(modes=(speculate(1),))
    samples = joined([costs.samples(), replace(cold, modes=(PLAIN_COLD,), step_ms=cold.step_ms * 0.5)])
    profile = fit_profile(samples)
    assert profile.step_ms(PLAIN_COLD, 16) == pytest.approx(costs.ms(speculate(1), 16) / 2)
    assert profile.step_ms(PLAIN_WARM, 16) == pytest.approx(costs.ms(PLAIN_WARM, 16))


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), moe=st.booleans())
def test_a_bigger_batch_never_costs_less_and_more_steps_never_do_unless_the_model_is_a_mixture_of_experts(
    seed: int, moe: bool
) -> None:
    shuffled = MadeUpCosts().samples(rows=6, seed=seed)
    rng = np.random.default_rng(seed)
    profile = fit_profile(replace(shuffled, step_ms=rng.uniform(5, 50, len(shuffled))), moe)
    table = np.array([[profile.step_ms(mode, size) for mode in MODES] for size in SIZES])
    tolerance = 1e-6 * table.max()
    assert (np.diff(table, axis=0) >= -tolerance).all()
    if not moe:
        assert (np.diff(table, axis=1) >= -tolerance).all()


def test_fewer_experts_may_be_awake_in_a_wider_step() -> None:
    samples = MadeUpCosts().samples()
    faster = np.where(samples.mode == 2, samples.step_ms * 0.5, samples.step_ms)
    samples = replace(samples, step_ms=faster)
    profile = fit_profile(samples, moe=True)
    assert profile.step_ms(speculate(3), 16) < profile.step_ms(speculate(1), 16)
    dense = fit_profile(samples)
    assert dense.step_ms(speculate(3), 16) == pytest.approx(dense.step_ms(speculate(1), 16))


@pytest.mark.parametrize(
    "samples",
    [
        MadeUpCosts().samples(rows=4),
        MadeUpCosts().samples(modes=(PLAIN_WARM,)),
        MadeUpCosts().samples().where(np.zeros(len(SIZES) * len(MODES) * 60, dtype=bool)),
    ],
    ids=["few steps of each", "one mode", "nothing"],
)
def test_too_little_is_refused_in_one_line(samples: StepSamples) -> None:
    with pytest.raises(DataError, match=r"too little to learn from: .* at least two modes, 5 steps each$"):
        fit_profile(samples)


def test_the_errors_of_a_profile_are_those_of_its_cells() -> None:
    costs = MadeUpCosts()
    profile = fit_profile(costs.samples())
    slower = costs.samples(rows=10)
    records = judge(profile, replace(slower, step_ms=slower.step_ms * 1.25))
    assert [(r.batch_size, r.mode) for r in records] == [(size, str(mode)) for size in SIZES for mode in MODES]
    assert {(r.rows, r.error) for r in records} == {(10, -0.2)}


@pytest.mark.parametrize("prompt_tokens", [64, None], ids=["with context", "without context"])
@pytest.mark.parametrize("name", H200_8B_FA3)
def test_a_profile_of_one_half_of_a_real_log_predicts_the_other_half_within_six_percent(
    name: str, prompt_tokens: int | None
) -> None:
    samples = read_samples(TRACES / f"{name}.csv.gz", Wanted(prompt_tokens=prompt_tokens)).samples
    alternate = np.arange(len(samples)) % 2 == 0
    for half in (alternate, ~alternate):
        profile, others = fit_profile(samples.where(half)), samples.where(~half)
        judged = [record for record in judge(profile, others) if record.rows >= 20]
        assert len(judged) >= 13
        worst = max(judged, key=lambda record: abs(record.error))
        assert abs(worst.error) <= 0.06, worst


def test_with_the_context_that_the_log_implies_longer_blocks_are_predicted_as_well() -> None:
    samples = joined([read_samples(TRACES / f"{n}.csv.gz", Wanted(prompt_tokens=64)).samples for n in H200_8B_FA3])
    errors = held_out_errors(samples)
    assert len(errors) >= 45
    assert max(map(abs, errors.values())) <= 0.06


def test_a_profile_of_one_start_of_the_engine_speaks_for_another() -> None:
    one, other = (read_samples(TRACES / f"{n}.csv.gz", Wanted(prompt_tokens=64)).samples for n in H200_8B_FA3)
    records = [r for r in judge(fit_profile(one), other) if r.mode != str(PLAIN_COLD)]
    assert max(abs(r.error) for r in records) <= 0.02


def test_halves_share_no_row_and_have_every_cell() -> None:
    samples = MadeUpCosts().samples(rows=41)
    half = first_half(samples)
    for part in (half, ~half):
        assert {(s, m) for s, m in zip(samples.batch_size[part], samples.mode[part], strict=True)} == {
            (size, m) for size in SIZES for m in range(len(MODES))
        }


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(1, 5)), min_size=1, max_size=30))
def test_a_weighted_median_is_the_median_of_the_repeated_values(pairs: list[tuple[float, int]]) -> None:
    values, weights = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    repeated = np.repeat(values, weights.astype(int))
    assert weighted_median(values, weights) == pytest.approx(float(np.median(repeated)))


def test_the_fit_is_the_same_every_time() -> None:
    samples = MadeUpCosts(3e-5, 1e-4).samples(noise=0.05, with_context=True)
    once, again = fit_profile(samples), fit_profile(samples)
    assert once == again
    assert all(a.batch_size < b.batch_size for a, b in pairwise(once.points))
