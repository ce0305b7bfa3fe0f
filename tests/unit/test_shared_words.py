"""Words that the ranks of a host share: marks, reasons, and what was chosen at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab_sglang.lease import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, Mode, speculate
from trimtab_sglang.shared_words import (
    GAVE_UP,
    HEARD,
    MAX_BATCH,
    REMEMBERED,
    RankStep,
    SharedWords,
    code_of,
    disagree,
    mode_of,
    size_of,
)


@pytest.fixture
def words(tmp_path: Path) -> SharedWords:
    return SharedWords.create(3, tmp_path)[0]


def test_what_one_rank_writes_the_others_read_also_when_the_file_is_gone(tmp_path: Path) -> None:
    created, path = SharedWords.create(2, tmp_path)
    opened = SharedWords.open(path, 2)
    path.unlink()
    opened.give_up(1, "choosing the mode: Ünfug")
    opened.mark(HEARD)
    assert created.marked(GAVE_UP)
    assert created.marked(HEARD)
    assert created.given_up() == [(1, "choosing the mode: Ünfug")]


def test_words_are_where_only_this_user_can_read_them(tmp_path: Path) -> None:
    _, path = SharedWords.create(2, tmp_path)
    assert path.stat().st_mode & 0o077 == 0
    assert path.stat().st_size == size_of(2)


def test_words_that_are_not_there_or_too_few_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        SharedWords.open(tmp_path / "nowhere", 2)
    _, path = SharedWords.create(2, tmp_path)
    with pytest.raises(ValueError, match="mmap"):
        SharedWords.open(path, 3)


def test_in_the_beginning_nobody_gave_up_and_nothing_was_chosen(words: SharedWords) -> None:
    assert not words.marked(GAVE_UP)
    assert words.given_up() == []
    assert words.at_same_step() == ()
    assert words.size_at(0, 1) is None


def test_a_long_reason_is_cut(words: SharedWords) -> None:
    words.give_up(0, "x" * 1000)
    words.give_up(2, "")
    assert [(rank, len(reason)) for rank, reason in words.given_up()] == [(0, 248), (2, 0)]


def test_ranks_are_compared_at_the_newest_step_that_all_have_chosen(words: SharedWords) -> None:
    notes = [words.noter(rank) for rank in range(3)]
    for rank, steps in enumerate((5, 3, 4)):
        for step in range(1, steps + 1):
            notes[rank](step, speculate(3), 3, 8)
    found = words.at_same_step()
    assert [(at.rank, at.step, at.mode, at.batch_size) for at in found] == [(r, 3, speculate(3), 8) for r in range(3)]
    assert not disagree(found)


@pytest.mark.parametrize(
    "other",
    [(2, speculate(5), 5, 8), (2, speculate(3), 3, 9), (2, PLAIN_NATIVE, 0, 8), (2, None, 1, 8)],
    ids=["mode", "batch size", "kind", "own policy"],
)
def test_a_difference_at_any_step_shows_at_every_later_one(
    words: SharedWords, other: tuple[int, Mode | None, int, int]
) -> None:
    notes = [words.noter(rank) for rank in range(3)]
    for step in range(1, 3 * REMEMBERED):
        for note in notes[:2]:
            note(step, speculate(3), 3, 8)
        notes[2](*(other if step == 2 else (step, speculate(3), 3, 8)))
        if step in (1, 2, 3, REMEMBERED, 3 * REMEMBERED - 1):
            assert disagree(words.at_same_step()) == (step >= 2)


def test_of_two_ranks_that_part_the_later_one_finds_out(words: SharedWords) -> None:
    notes = [words.noter(rank) for rank in range(3)]
    assert [note(1, speculate(3), 3, 8) for note in notes] == [False] * 3
    assert [notes[rank](2, speculate(3), 3, size) for rank, size in ((1, 9), (0, 8), (2, 8))] == [False, True, False]
    assert [words.parted(rank, 2) for rank in range(3)] == [True, True, False]
    assert [words.parted(rank, 1) for rank in range(3)] == [False] * 3


def test_who_chose_does_not_matter_what_ran_does(words: SharedWords) -> None:
    notes = [words.noter(rank) for rank in range(3)]
    notes[0](1, speculate(3), 3, 8)
    notes[1](1, None, 3, 8)
    notes[2](1, Mode(speculate(3).kind, 3), 3, 8)
    assert not disagree(words.at_same_step())


def test_a_rank_that_is_far_behind_cannot_be_compared(words: SharedWords) -> None:
    notes = [words.noter(rank) for rank in range(3)]
    for step in range(1, 2 * REMEMBERED):
        notes[0](step, None, 1, 1)
    for note in notes[1:]:
        note(1, None, 1, 1)
    assert words.at_same_step() == ()
    assert words.size_at(0, 1) is None
    assert words.size_at(0, 2 * REMEMBERED - 1) == 1


def test_numbers_beyond_any_server_do_no_harm(words: SharedWords) -> None:
    for rank in range(3):
        words.noter(rank)((1 << 32) + 7, speculate(64), 64, 1 << 30)
    found = words.at_same_step()
    assert {(at.step, at.mode, at.batch_size) for at in found} == {((1 << 32) + 7, speculate(64), MAX_BATCH)}


@pytest.mark.parametrize("mode", [PLAIN_WARM, PLAIN_COLD, PLAIN_NATIVE, speculate(1), speculate(64)])
def test_every_mode_has_a_number(mode: Mode) -> None:
    assert mode_of(code_of(mode)) == mode
    assert code_of(mode) < 4096


def test_fewer_than_two_ranks_agree() -> None:
    assert not disagree(())
    assert not disagree((RankStep(0, 1, PLAIN_WARM, 1, 7),))
