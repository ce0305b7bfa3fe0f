"""A journal stays within its size and age, and keeps what a restart needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.journals import WALL_NS, Bare, S
from trimtab.store.entries import ORDERS, Kind
from trimtab.store.journal_file import Bounds
from trimtab.store.reading import Journal

MIB = 1 << 20
DAY_S = 86_400.0


def block(kind: Kind = Kind.ACK, size: int = 4000) -> tuple[Kind, bytes]:
    return kind, os.urandom(size)


def kept(path: Path) -> list[tuple[int, str, str]]:
    with Journal(path) as journal:
        return [(entry.seq, entry.engine, str(entry.kind)) for entry in journal.entries()]


def test_the_oldest_go_when_the_journal_gets_too_large_and_the_rest_has_no_gap(tmp_path: Path) -> None:
    bare = Bare(tmp_path, Bounds(max_bytes=2 * MIB))
    largest = 0
    for second in range(100):
        bare.add(*(block() for _ in range(10)), at_s=second)
        largest = max(largest, bare.file.size_bytes())
    bare.close()

    assert largest <= 2 * MIB
    with Journal(tmp_path) as journal:
        numbers = [entry.seq for entry in journal.entries()]
        assert numbers == list(range(numbers[0], 1001))
        assert len(numbers) > 300
        assert journal.pruned_through == numbers[0] - 1
        assert journal.gaps() == []


def test_entries_that_are_too_old_go_also_when_nothing_is_written(tmp_path: Path) -> None:
    bare = Bare(tmp_path, Bounds(max_age_s=DAY_S))
    for hour in range(48):
        bare.add(block(), at_s=hour * 3600)
    assert kept(tmp_path)[0][0] == 24
    bare.file.tidy(WALL_NS + round(40 * 3600 + DAY_S) * S)
    bare.close()

    assert [seq for seq, _, _ in kept(tmp_path)] == list(range(41, 49))


def test_an_engines_newest_state_and_the_orders_after_it_stay(tmp_path: Path) -> None:
    bare = Bare(tmp_path, Bounds(max_bytes=MIB))
    bare.add(block(Kind.CHECKPOINT), engine="away", at_s=0)
    bare.add(block(Kind.PINNED), engine="away", at_s=1)
    bare.add(block(Kind.RESUMED), engine="away", at_s=2)
    bare.add(block(Kind.POLICY_SET), engine="away", at_s=3)
    bare.add(block(Kind.UNPINNED, 1), engine="away", at_s=4)
    bare.add(block(Kind.REPORT), engine="away", at_s=4)
    for second in range(5, 300):
        bare.add(block(), engine="busy", at_s=second)
    bare.close()

    assert [entry for entry in kept(tmp_path) if entry[1] == "away"] == [
        (3, "away", "resumed"),
        (4, "away", "policy_set"),
        (5, "away", "unpinned"),
    ]


def test_what_was_kept_goes_when_a_newer_state_takes_its_place(tmp_path: Path) -> None:
    bare = Bare(tmp_path, Bounds(max_bytes=MIB))
    bare.add(block(Kind.CHECKPOINT), block(Kind.PINNED), engine="away")
    for second in range(300):
        bare.add(block(), engine="busy", at_s=second)
    bare.add(block(Kind.CHECKPOINT), engine="away", at_s=600)
    bare.close()

    assert [kind for _, engine, kind in kept(tmp_path) if engine == "away"] == ["checkpoint"]


def test_what_was_kept_goes_when_it_is_too_old_for_a_restart(tmp_path: Path) -> None:
    bare = Bare(tmp_path, Bounds(max_bytes=MIB, max_age_s=DAY_S))
    bare.add(block(Kind.CHECKPOINT), engine="away")
    for second in range(300):
        bare.add(block(), engine="busy", at_s=DAY_S / 2 + second)
    assert kept(tmp_path)[0] == (1, "away", "checkpoint")
    bare.file.tidy(WALL_NS + round(1.2 * DAY_S) * S)
    bare.close()

    assert "away" not in {engine for _, engine, _ in kept(tmp_path)}


def test_a_journal_that_was_allowed_to_be_larger_shrinks(tmp_path: Path) -> None:
    bare = Bare(tmp_path, Bounds(max_bytes=64 * MIB))
    bare.write([bare.group(block()) for _ in range(3000)])
    bare.close()
    before = (tmp_path / "journal.db").stat().st_size
    smaller = Bare(tmp_path, Bounds(max_bytes=2 * MIB))
    for second in range(12):
        smaller.add(block(), at_s=second)
    smaller.close()

    assert before > 10 * MIB
    assert (tmp_path / "journal.db").stat().st_size <= 2 * MIB


def test_runs_of_which_nothing_is_left_are_forgotten(tmp_path: Path) -> None:
    for run in range(4):
        bare = Bare(tmp_path, Bounds(max_age_s=DAY_S))
        bare.add(block(), at_s=run * DAY_S, now_s=0)
        if run == 3:
            bare.file.tidy(WALL_NS + round(3.5 * DAY_S) * S)
        bare.close()
    with Journal(tmp_path) as journal:
        assert [run.number for run in journal.runs()] == [4]
        assert [entry.run for entry in journal.entries()] == [4]


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from([Kind.REPORT, Kind.LEASE, Kind.CHECKPOINT, Kind.RESUMED, Kind.PINNED, Kind.UNPINNED]),
        st.integers(1, 20_000),
    ),
    min_size=1,
    max_size=60,
)


@pytest.mark.parametrize("restarts", [False, True])
@settings(max_examples=25)
@given(entries=ENTRIES)
def test_whatever_comes_each_engine_keeps_its_newest_state_and_the_orders_after_it(
    tmp_path_factory: pytest.TempPathFactory, restarts: bool, entries: list[tuple[str, Kind, int]]
) -> None:
    directory = tmp_path_factory.mktemp("journal")
    bounds = Bounds(max_bytes=300_000)
    bare = Bare(directory, bounds)
    needed: dict[str, list[int]] = {}
    for seq, (engine, kind, size) in enumerate(entries * 3, 1):
        bare.add(block(kind, size), engine=engine, at_s=seq)
        if kind in (Kind.CHECKPOINT, Kind.RESUMED):
            needed[engine] = [seq]
        elif kind in ORDERS and engine in needed:
            needed[engine].append(seq)
        if restarts and seq % 17 == 0:
            bare.close()
            bare = Bare(directory, bounds)
    bare.close()

    found = {seq for seq, _, _ in kept(directory)}
    assert {number for numbers in needed.values() for number in numbers} <= found
