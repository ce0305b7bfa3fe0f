"""How UCB behaves on arms whose goodput is known; time runs by the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import pytest

from support.step_rows import step_row
from trimtab.domain import Mode, StepRow, modes_of, speculate
from trimtab.policies.contract import PolicyContext
from trimtab.policies.ucb import UcbParameters, UcbPolicy

MODES = modes_of([0, 1, 3, 5, 7])
BATCH_SIZE = 8


def policy(bands: tuple[int, ...] = (1,), incumbent: Mode | None = None, **parameters: float) -> UcbPolicy:
    return UcbPolicy(PolicyContext(MODES, bands, initial_steps=3, incumbent=incumbent), UcbParameters(**parameters))


def rows(mode: Mode, tps: float, n: int = 25, batch_size: int = BATCH_SIZE, step_ms: float = 10.0) -> list[StepRow]:
    tokens = round(tps * step_ms / 1e3)
    return [step_row(mode, batch_size, step_ns=round(step_ms * 1e6), emitted_tokens=tokens)] * n


def play(subject: UcbPolicy, tps: Mapping[int, float], reports: int, batch_size: int = BATCH_SIZE) -> list[int]:
    """Steps chosen in each report of 250 ms when every mode's goodput is as given."""
    chosen = []
    for _ in range(reports):
        decision = subject.choose()
        mode = next(b.mode for b in reversed(decision.bands) if b.min_batch_size <= batch_size)
        chosen.append(mode.steps)
        subject.learn(rows(mode, tps[mode.steps], batch_size=batch_size))
    return chosen


PEAK_AT_ONE = {0: 1400.0, 1: 2000.0, 3: 1600.0, 5: 1200.0, 7: 900.0}
PEAK_AT_SEVEN = {0: 800.0, 1: 1200.0, 3: 1800.0, 5: 2200.0, 7: 2600.0}


def test_it_begins_with_the_mode_in_force_and_without_one_with_the_engines_own_steps() -> None:
    assert policy(incumbent=speculate(5)).choose().bands[0].mode == speculate(5)
    assert policy().choose().bands[0].mode == speculate(3)


@pytest.mark.parametrize(("tps", "best"), [(PEAK_AT_ONE, 1), (PEAK_AT_SEVEN, 7)])
def test_it_climbs_to_the_best_mode_within_seconds_and_mostly_stays(tps: dict[int, float], best: int) -> None:
    chosen = play(policy(), tps, reports=80)
    assert best in chosen[:12]
    assert Counter(chosen[20:])[best] >= 45


def test_it_does_not_try_modes_beyond_one_that_already_lost() -> None:
    assert set(play(policy(), PEAK_AT_ONE, reports=12)) <= {0, 1, 3, 5}


def test_it_follows_when_the_best_mode_changes() -> None:
    subject = policy()
    play(subject, PEAK_AT_ONE, reports=80)
    chosen = play(subject, PEAK_AT_SEVEN, reports=120)
    assert Counter(chosen[60:])[7] >= 40


def test_a_mode_keeps_the_band_for_a_while() -> None:
    chosen = play(policy(stay_s=1.0), PEAK_AT_ONE, reports=60)
    changes = [i for i in range(1, len(chosen)) if chosen[i] != chosen[i - 1]]
    assert min(b - a for a, b in pairwise(changes)) >= 4


def test_modes_within_the_margin_do_not_take_turns() -> None:
    nearly_equal = {k: 2000.0 + k for k in PEAK_AT_ONE}
    chosen = play(policy(exploration=0.0), nearly_equal, reports=60)
    assert len(set(chosen[30:])) == 1


def test_a_band_that_was_never_entered_takes_over_what_its_neighbour_found() -> None:
    subject = policy(bands=(1, 9, 17))
    play(subject, PEAK_AT_SEVEN, reports=40)
    assert [band.mode.steps for band in subject.choose().bands] == [7, 7, 7]
    first = play(subject, PEAK_AT_SEVEN, reports=4, batch_size=12)
    assert first == [7, 7, 7, 7]


def test_candidates_show_what_was_measured_within_their_interval() -> None:
    subject = policy()
    play(subject, PEAK_AT_ONE, reports=40)
    by_steps = {c.mode.steps: c for c in subject.choose().bands[0].candidates}
    best = by_steps[1]
    assert best.goodput_tps == pytest.approx(2000.0)
    assert best.step_ms == pytest.approx(10.0)
    assert best.goodput_low_tps is not None
    assert best.goodput_high_tps is not None
    assert best.goodput_low_tps < 2000.0 < best.goodput_high_tps
    assert by_steps[7].goodput_tps is None
