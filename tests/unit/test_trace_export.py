"""Traces of a journal: every row with the probability that its lease gave to its mode, and what cannot be joined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.journals import unpacked
from support.made_journal import SECOND_NS, START_NS, MadeJournal
from support.step_rows import depth_counts, step_row
from support.trace_files import rows_of, step_rows_of, table_of
from trimtab.domain import PLAIN_WARM, Mode, StepFlag, StepRow, TableEntry, speculate
from trimtab.errors import DataError
from trimtab.replay.journals.summary import summarize_journal
from trimtab.replay.traces.exporting import Wanted, export_trace
from trimtab.replay.traces.importing import import_traces
from trimtab.replay.traces.recording import read_trace
from trimtab.store.content import report_of
from trimtab.store.entries import Kind
from trimtab.store.reading import Journal

JOURNALS = Path(__file__).parents[1] / "data" / "journals"
DRAWN = TableEntry(1, speculate(3), 0.75, ((speculate(1), 0.25),))
FIXED = TableEntry(8, PLAIN_WARM)


def row(step: int, mode: Mode | None = None, version: int = 1, entry: int | None = 0, **fields: Any) -> StepRow:
    """A row under a lease."""
    mode = mode or speculate(3)
    return step_row(
        mode, step=step, launch_id=step, result_ns=step * 10_000_000, lease_version=version, table_entry=entry,
        depths=depth_counts([0, 1, 3, 3], mode.steps), **fields,
    )  # fmt: skip


def exported(folder: Path, name: str = "out.parquet", **wanted: Any) -> list[dict[str, Any]]:
    export_trace(folder, folder / name, Wanted(**wanted))
    return rows_of(folder / name)


def test_every_row_comes_out_as_it_went_in(tmp_path: Path) -> None:
    rows = [row(step, accepted_worst_decile=0.5, context_tokens_sum=900) for step in range(1, 60)]
    with MadeJournal(tmp_path) as journal:
        journal.hello()
        journal.report(rows[:25])
        journal.report([])
        journal.report(rows[25:])
    report = export_trace(tmp_path, tmp_path / "out.parquet", Wanted())
    assert (report.rows, report.left_out, report.engines) == (59, {}, {"a run 0": 59})
    assert step_rows_of(tmp_path / "out.parquet") == rows
    with read_trace(tmp_path / "out.parquet") as trace:
        (about,) = trace.info.engines
    assert (trace.info.source, about.modes) == ("journal", ("plain_warm", "speculate(1)", "speculate(3)"))
    assert (about.start_mode, about.graph_batch_sizes, about.block_verification) == ("speculate(3)", (1, 2, 4), False)
    assert about.cost_key == {"model": "/models/8b"}


def test_a_row_has_the_probability_that_its_table_entry_gave_to_its_mode(tmp_path: Path) -> None:
    with MadeJournal(tmp_path) as journal:
        journal.hello()
        journal.lease(1, DRAWN, FIXED)
        journal.lease(2, FIXED)
        journal.report([row(1), row(2, speculate(1)), row(3, PLAIN_WARM, entry=1), row(4, PLAIN_WARM, version=2)])
    found = exported(tmp_path)
    assert [r["probability"] for r in found] == [0.75, 0.25, 1.0, 1.0]
    assert [r["exploration_dwell_steps"] for r in found] == [16, 16, 0, 0]


def test_without_a_draw_the_first_choice_is_certain(tmp_path: Path) -> None:
    with MadeJournal(tmp_path) as journal:
        journal.hello()
        journal.lease(1, DRAWN, dwell=0)
        journal.report([row(1)])
    assert [r["probability"] for r in exported(tmp_path)] == [1.0]


def test_where_no_lease_chose_there_is_no_probability(tmp_path: Path) -> None:
    others = {
        "no lease": row(1, version=0, entry=None),
        "a pin": row(2, entry=None),
        "a mode that the entry has not": row(3, speculate(5)),
        "an entry that the lease has not": row(4, entry=7),
        "an unknown lease": row(5, version=9),
    }
    with MadeJournal(tmp_path) as journal:
        journal.hello()
        journal.lease(1, DRAWN)
        journal.report(list(others.values()))
    report = export_trace(tmp_path, tmp_path / "out.parquet", Wanted())
    assert report.unknown_lease == 1
    found = dict(zip(others, [r["probability"] for r in rows_of(tmp_path / "out.parquet")], strict=True))
    assert found == dict.fromkeys(others)


def test_rows_of_the_start_up_sweep_stay_and_keep_their_flag(tmp_path: Path) -> None:
    with MadeJournal(tmp_path) as journal:
        journal.hello()
        journal.report([row(1, flags=StepFlag.SWEEP | StepFlag.GRAPH), row(2, flags=StepFlag.GRAPH)])
    assert [r["flags"] for r in exported(tmp_path)] == [33, 1]


def test_a_restart_of_the_engine_begins_a_run_and_one_of_the_daemon_does_not(tmp_path: Path) -> None:
    with MadeJournal(tmp_path) as journal:
        journal.hello()
        journal.lease(1, DRAWN)
        journal.report([row(1)])
    with MadeJournal(tmp_path, start_s=100) as journal:
        journal.hello()
        journal.report([row(2)])
        journal.hello(boot_id="boot-2")
        journal.report([row(1, version=0, entry=None)])
    rows = exported(tmp_path)
    assert [(r["run"], r["step"], r["probability"]) for r in rows] == [(0, 1, 0.75), (0, 2, 0.75), (1, 1, None)]


def test_engines_are_exported_one_after_the_other_or_alone(tmp_path: Path) -> None:
    with MadeJournal(tmp_path) as journal:
        for engine in ("b", "a"):
            journal.hello(engine)
        for step in (1, 2):
            for engine in ("b", "a"):
                journal.report([row(step)], engine)
    assert [(r["engine"], r["step"]) for r in exported(tmp_path)] == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert [r["engine"] for r in exported(tmp_path, engine="b")] == ["b", "b"]


def test_a_stretch_of_time_can_be_chosen_and_its_leases_are_known(tmp_path: Path) -> None:
    with MadeJournal(tmp_path) as journal:
        journal.hello()
        journal.lease(1, DRAWN)
        for step in (1, 2, 3, 4):
            journal.report([row(step)])
    # The first report is the third entry, three seconds after the start.
    rows = exported(tmp_path, since_ns=START_NS + 4 * SECOND_NS, until_ns=START_NS + 6 * SECOND_NS)
    assert [(r["step"], r["probability"]) for r in rows] == [(2, 0.75), (3, 0.75)]


def test_rows_that_come_twice_or_too_late_are_left_out_and_counted(tmp_path: Path) -> None:
    with MadeJournal(tmp_path) as journal:
        journal.hello()
        journal.report([row(1), row(2), row(2), row(1), row(3)])
    report = export_trace(tmp_path, tmp_path / "out.parquet", Wanted())
    assert report.left_out == {"out_of_order": 1, "repeated": 1}
    assert [r["step"] for r in rows_of(tmp_path / "out.parquet")] == [1, 2, 3]


def test_a_small_one_can_be_csv_and_comes_back_equal(tmp_path: Path) -> None:
    with MadeJournal(tmp_path) as journal:
        journal.hello()
        journal.lease(1, DRAWN)
        journal.report([row(step, prefill_tokens=step) for step in range(1, 30)])
    exported(tmp_path)
    export_trace(tmp_path, tmp_path / "out.csv", Wanted())
    import_traces([tmp_path / "out.csv"], tmp_path / "again.parquet")
    assert table_of(tmp_path / "again.parquet").equals(table_of(tmp_path / "out.parquet"))


def test_what_is_too_much_for_csv_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MadeJournal(tmp_path) as journal:
        journal.hello()
        journal.report([row(step) for step in range(1, 30)])
    monkeypatch.setattr("trimtab.replay.traces.exporting.MAX_CSV_ROWS", 20)
    monkeypatch.setattr("trimtab.replay.traces.exporting.BLOCK_ROWS", 10)
    (tmp_path / "out.csv").write_text("what was there")
    with pytest.raises(DataError, match=r"out\.csv: would have more than 20 rows: write Parquet, or choose fewer"):
        export_trace(tmp_path, tmp_path / "out.csv", Wanted())
    assert (tmp_path / "out.csv").read_text() == "what was there"


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with MadeJournal(tmp_path) as journal:
        journal.hello()
        journal.report([row(1)])

    def problem(**wanted: Any) -> str:
        with pytest.raises(DataError) as caught:
            exported(tmp_path, **wanted)
        return str(caught.value).removeprefix(f"{tmp_path}/journal.db: ")

    assert problem(engine="z") == "has no engine 'z'; there are: a"
    assert problem(until_ns=START_NS) == "has no step rows that were asked for"
    with pytest.raises(DataError, match="does not exist"):
        export_trace(tmp_path / "nowhere.db", tmp_path / "out.parquet", Wanted())
    assert not (tmp_path / "out.parquet").exists()


# -- what is said of a journal -------------------------------------------------------------------------


def test_a_journal_is_summed_up_with_its_gaps_and_the_runs_that_died(tmp_path: Path) -> None:
    first = MadeJournal(tmp_path)
    first.file.open()
    first.hello()
    first.report([row(1)])
    first.lose("a")
    first.lose("a")
    first.report([row(4)])
    first.die()
    with MadeJournal(tmp_path, start_s=100) as journal:
        journal.hello()
        journal.report([row(5)])
        journal.lease(1, DRAWN)
    found = summarize_journal(tmp_path)
    assert (found.entries, found.source, found.pruned_through) == (6, "journal", 0)
    assert [(run.run, run.state) for run in found.runs] == [(1, "died"), (2, "ended")]
    assert [(gap.run, gap.after, gap.lost, gap.died) for gap in found.gaps] == [(1, 2, 2, False), (1, 5, 1, True)]
    assert [(e.engine, e.kinds) for e in found.engines] == [("a", {"hello": 2, "lease": 1, "report": 3})]
    assert (found.first_at, found.last_at) == ("2025-11-30T00:00:01Z", "2025-11-30T00:01:43Z")


def test_the_newest_run_may_still_go_on(tmp_path: Path) -> None:
    journal = MadeJournal(tmp_path)
    journal.file.open()
    journal.hello()
    assert [run.state for run in summarize_journal(tmp_path).runs] == ["open"]
    journal.die()


# -- the journal of a real engine ------------------------------------------------------------------------


def test_the_journal_of_a_real_engine_becomes_a_trace_in_which_every_choice_has_its_probability(tmp_path: Path) -> None:
    path = unpacked(JOURNALS / "steering.db.gz", tmp_path / "journal.db")
    with Journal(path) as journal:
        reported = [r for entry in journal.entries(kinds={Kind.REPORT}) for r in report_of(entry).rows]
    report = export_trace(path, tmp_path / "out.parquet", Wanted())
    rows = rows_of(tmp_path / "out.parquet")
    assert step_rows_of(tmp_path / "out.parquet") == reported
    assert (report.left_out, report.unknown_lease) == ({}, 0)
    chosen = [r for r in rows if r["table_entry"] is not None]
    assert len(chosen) > 1000
    assert all(0 < r["probability"] <= 1 for r in chosen)
    assert all(r["probability"] is None for r in rows if r["table_entry"] is None)
    explored = [r for r in rows if r["flags"] & StepFlag.EXPLORED]
    assert explored
    assert all(r["probability"] < 1 and r["exploration_dwell_steps"] > 0 for r in explored)
