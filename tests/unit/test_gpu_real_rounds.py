"""Rounds by request, words for modes, and what the report makes of the cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forced_leases import lease_of
from real_outputs import schedules
from real_report import compare, greedy, report
from rounds import Round, after_plain, from_position, plain_tokens, read_rounds
from trimtab_sglang.lease import PLAIN_NATIVE, PLAIN_WARM, Mode, check_lease, speculate

MODES: dict[str, Mode] = {str(mode): mode for mode in (PLAIN_NATIVE, PLAIN_WARM, speculate(1), speculate(3))}


def test_rounds_are_read_by_request_and_half_a_line_is_left_out() -> None:
    rounds = read_rounds(["1 a:0 b:0\n", "4 a:3 b:1\n", "4 b:2\n", "4 a:"])
    assert rounds == {"a": [Round(1, 0), Round(4, 3)], "b": [Round(1, 0), Round(4, 1), Round(4, 2)]}


def test_the_rounds_after_plain_are_those_behind_its_last() -> None:
    rounds = [Round(4, 3), Round(1, 0), Round(1, 0), Round(4, 1), Round(4, 2), Round(4, 0)]
    assert after_plain(rounds, 2) == [1, 2]
    assert plain_tokens(rounds) == 2


def test_rounds_from_a_position_begin_with_so_many_tokens_put_out() -> None:
    """Put out before each: 1 by prefill, then 5, 6, 9."""
    rounds = [Round(4, 3), Round(4, 0), Round(4, 2), Round(4, 1)]
    assert from_position(rounds, 5, 10) == [0, 2, 1]
    assert from_position(rounds, 6, 1) == [2]


def test_a_mode_for_so_many_launches_then_another() -> None:
    lease = lease_of("plain_native 500 speculate(3)", MODES, 7)
    assert (lease.version, lease.life_steps, lease.then) == (7, 500, speculate(3))
    assert [entry.mode for entry in lease.table] == [PLAIN_NATIVE]


def test_a_mode_for_each_band() -> None:
    lease = lease_of("1 speculate(3), 64 plain_warm", MODES, 1)
    assert [(entry.min_batch_size, entry.mode) for entry in lease.table] == [(1, speculate(3)), (64, PLAIN_WARM)]


@pytest.mark.parametrize("word", ["plain_warm", "1 speculate(1)", *schedules(3)])
def test_every_word_is_a_lease_that_the_plugin_takes(word: str) -> None:
    lease = lease_of(word, MODES, 1)
    check_lease(lease)
    assert set(lease.modes) <= set(MODES.values())


def test_a_shuffle_runs_every_mode() -> None:
    assert lease_of("shuffle 3 5", MODES, 1).modes == frozenset(MODES.values())


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="not a mode"):
        lease_of("plain_native for a while", MODES, 1)
    with pytest.raises(KeyError):
        lease_of("plain_cold", MODES, 1)


def test_a_return_within_3_percent_needs_its_whole_interval_there() -> None:
    same = [[1, 2], [2, 1]] * 50
    assert compare(same, same)["within"]
    assert not compare([[2, 2]] * 100, same)["within"]


def test_requests_without_a_round_are_left_out_in_pairs() -> None:
    assert compare([[1], [], [1]], [[1], [1], []])["pairs"] == 1


def test_divergences_are_told_for_each_kind_of_engine() -> None:
    plain: dict[str, Any] = {
        "outputs": {"with log probabilities": [[1, 2, 3]], "first": [[1, 2, 3]]},
        "gaps": [[1.0, 0.1, 2.0]],
    }
    cells: dict[str, dict[str, Any]] = {
        "plain.greedy": plain,
        "stock.greedy": {"outputs": {"first": [[1, 9, 9]], "again": [[1, 2, 3]]}},
        "ours.greedy": {"outputs": {"shuffle 1 1": [[1, 2, 3]]}},
    }
    told = greedy(cells, "")
    assert [told[kind]["divergences"] for kind in ("plain", "stock", "ours")] == [0, 1, 0]
    assert told["stock"]["gaps"] == [0.1]
    assert told["p if no more than stock"] == 1.0


def test_the_report_is_made_of_what_there_is(tmp_path: Path) -> None:
    swing = {"tokens_per_s": 100.0, "all_s": 1.0, "bursts_s": 0.5, "afterwards_s": 0.2}
    slower = {**swing, "tokens_per_s": 50.0}
    cell = {"about": {}, "tokens": 100, "swings": {"native": [swing] * 2, "always warm": [slower] * 2}}
    (tmp_path / "ours.load.json").write_text(json.dumps(cell))
    (tmp_path / "plain.error").write_text("no card")
    told = report(tmp_path)
    assert told["load"]["native over always warm"] == {"ratio": 2.0, "interval_95": [2.0, 2.0], "of": 2}
    assert told["errors"] == {"plain": "no card"}
    assert "greedy" not in told
