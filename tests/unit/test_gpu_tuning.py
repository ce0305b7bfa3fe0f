"""The table that SGLang's own rule gets: the best that it can do on a load."""

from __future__ import annotations

import pytest

import tuning

LOW, HIGH = [0.3], [0.85]
# Drafts are nearly free in a small batch and dear in a large one.
SMALL = {0: 5.0, 1: 5.2, 3: 5.6, 7: 6.5}
LARGE = {0: 8.0, 1: 12.0, 3: 24.0, 7: 48.0}


def test_where_drafts_are_nearly_free_the_table_has_many_of_them() -> None:
    table = tuning.tuned_table({1: SMALL}, [HIGH])
    assert table["1"]["candidate_steps"] == [7]


def test_where_they_are_dear_and_fail_it_has_none() -> None:
    table = tuning.tuned_table({1: SMALL, 128: LARGE}, [LOW])
    assert table["12"]["candidate_steps"] == [0]
    assert sorted(table) == ["1", "12"]


def test_where_it_depends_it_leaves_the_choice_to_the_rule() -> None:
    dear = {0: 6.0, 1: 8.5, 3: 10.0, 7: 15.0}
    candidates = tuning.tuned_table({16: dear}, [LOW, HIGH])["1"]["candidate_steps"]
    assert len(candidates) > 1


def test_the_same_calibration_gives_the_same_table() -> None:
    assert tuning.tuned_table({4: SMALL}, [LOW, HIGH]) == tuning.tuned_table({4: SMALL}, [LOW, HIGH])


def test_the_profile_is_fitted_on_the_calibrations_own_steps() -> None:
    rows = [
        (mode, ms * clients**0.1, clients, clients * 100, clients)
        for mode, ms in (("plain_native", 5.0), ("speculate(3)", 6.0))
        for clients in (1, 4, 16)
        for _ in range(20)
    ]
    profile = tuning.fitted_profile(rows)
    assert [point.batch_size for point in profile.points] == [1, 4, 16]
    times = {str(mode): ms for mode, ms in profile.points[-1].ms.items()}
    assert times == pytest.approx({"plain_native": 5.0 * 16**0.1, "speculate(3)": 6.0 * 16**0.1}, rel=1e-3)


def test_a_sample_keeps_the_order_and_no_more_than_it_may() -> None:
    found = tuning.sampled(range(1000), 10, seed=1)
    assert len(found) == 10
    assert found == sorted(found)
    assert tuning.sampled([3, 1], 10, seed=1) == [3, 1]
