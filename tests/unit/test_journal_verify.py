"""A journal is verified by running the same sessions again; what was altered is named."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.journals import Desk, rows_of, written
from trimtab.domain import PLAIN_WARM, Pin, StepRange, speculate
from trimtab.errors import DataError
from trimtab.policies.goodput import GoodputPolicy
from trimtab.policies.registry import policy_factory
from trimtab.replay.journals.comparison import first_mismatch
from trimtab.replay.journals.verify import Difference, VerifyResult, verify
from trimtab.session.events import Pinned, PoliciesSwapped, PolicySet, ShadowDropped, ShadowSet, Unpinned
from trimtab.store.entries import Kind
from trimtab.store.reading import Journal
from trimtabpb.v1 import control_pb2 as pb

PIN = Pin("p1", PLAIN_WARM, "latency", "kim")
NARROW = Pin("p2", speculate(1), "latency", "kim", StepRange(0, 1))


def busy(desk: Desk) -> None:
    """A minute of two engines: load, orders, a connection that breaks, an engine that restarts."""
    a, b = desk.join("a"), desk.join("b")
    for turn in range(120):
        desk.report(a)
        desk.report(b)
        desk.accept(a)
        match turn:
            case 10:
                desk.order(a, Pinned(PIN, 5.0))
            case 15:
                desk.order(b, ShadowSet("ucb", policy_factory("ucb")))
            case 30:
                desk.order(b, PoliciesSwapped())
            case 35:
                desk.order(a, Pinned(NARROW, 3.0))
            case 40:
                desk.order(b, PoliciesSwapped())
                desk.order(a, ShadowSet("exp3", policy_factory("exp3")))
            case 45:
                desk.order(b, ShadowDropped())
            case 50:
                desk.order(b, Pinned(PIN))
            case 60:
                desk.order(b, Unpinned())
                desk.fleet.leave(a, "connection lost")
                desk.join("a")
            case 80:
                desk.order(b, PolicySet("ucb", policy_factory("ucb", {"margin": "0.1"}), {"margin": "0.1"}))
                desk.fleet.leave(a, "goodbye")
                desk.join("a", "boot-2")


def find(directory: Path, kind: Kind, engine: str = "a", after: int = 0) -> int:
    """Number of the first entry of this kind."""
    ((seq,),) = rows_of(
        directory / "journal.db",
        "SELECT min(seq) FROM entries WHERE engine = ? AND kind = ? AND seq > ?",
        (engine, kind, after),
    )
    return int(seq)


def alter(directory: Path, seq: int, change: Callable[[bytes], bytes]) -> None:
    """Change the content of one entry."""
    path = directory / "journal.db"
    ((packed, payload),) = rows_of(path, "SELECT packed, payload FROM entries WHERE seq = ?", (seq,))
    content = change(zlib.decompress(payload) if packed else payload)
    rows_of(path, "UPDATE entries SET payload = ? WHERE seq = ?", (zlib.compress(content) if packed else content, seq))


def difference(result: VerifyResult) -> Difference:
    assert result.difference is not None
    return result.difference


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("busy") / "state", busy)


@pytest.fixture
def journal(original: Path, tmp_path: Path) -> Path:
    """A journal that may be altered."""
    (tmp_path / "journal.db").write_bytes((original / "journal.db").read_bytes())
    return tmp_path


def test_what_was_recorded_comes_out_again(original: Path) -> None:
    told: list[tuple[int, int]] = []
    result = verify(original, progress=lambda done, total: told.append((done, total)))

    assert result.ok
    assert (result.unverified_share, result.lost) == (0.0, 0)
    assert [verdict.engine for verdict in result.engines] == ["a", "b"]
    for verdict in result.engines:
        assert verdict.decisions > 20
        assert verdict.checkpoints >= 4
    assert told[-1] == (told[-1][1],) * 2 == (sum(v.entries for v in result.engines),) * 2
    assert told == sorted(told)


def test_one_engine_can_be_chosen(original: Path) -> None:
    assert [verdict.engine for verdict in verify(original, "b").engines] == ["b"]
    with pytest.raises(DataError, match=r"knows no engine 'c'; known are: a, b"):
        verify(original, "c")


def test_a_lease_whose_probability_was_altered_is_named(journal: Path) -> None:
    seq = find(journal, Kind.LEASE, after=100)

    def change(payload: bytes) -> bytes:
        lease = pb.Lease.FromString(payload)
        lease.table[0].probability -= 1e-6
        return lease.SerializeToString()

    alter(journal, seq, change)
    found = difference(verify(journal))

    assert (found.engine, found.run, found.seq, found.kind) == ("a", 1, seq, "lease")
    assert found.field == "lease.table[0].probability"
    assert found.recorded == pytest.approx(found.replayed, abs=2e-6)


def test_a_decision_whose_words_were_altered_is_named(journal: Path) -> None:
    seq = find(journal, Kind.DECISION, "b")
    alter(journal, seq, lambda payload: payload.replace(b'"exploit"', b'"explore"', 1))
    found = difference(verify(journal))

    assert (found.engine, found.seq, found.field) == ("b", seq, "bands[0].reason")
    assert (found.recorded, found.replayed) == ("explore", "exploit")


def test_a_report_that_was_altered_shows_at_the_first_thing_that_came_of_it(journal: Path) -> None:
    seq = find(journal, Kind.REPORT)

    def change(payload: bytes) -> bytes:
        report = pb.Report.FromString(payload)
        report.rows.step_ns[3] += 500_000
        return report.SerializeToString()

    alter(journal, seq, change)
    found = difference(verify(journal))

    later = [find(journal, kind, after=seq) for kind in (Kind.DECISION, Kind.CHECKPOINT)]
    assert found.seq == min(later)
    assert found.kind == "decision"
    assert found.field.startswith("bands[0].candidates[0].step_ms")


def test_a_checkpoint_that_was_altered_is_named_with_the_place_in_it(journal: Path) -> None:
    seq = find(journal, Kind.CHECKPOINT, after=100)

    def change(payload: bytes) -> bytes:
        content = msgspec.json.decode(payload)
        content["state"]["learned"]["snapshot"]["state"]["decode_share"] += 1e-6
        return msgspec.json.encode(content)

    alter(journal, seq, change)
    found = difference(verify(journal))
    assert (found.seq, found.kind, found.field) == (seq, "checkpoint", "learned.snapshot.state.decode_share")


def removed(journal: Path, seq: int) -> None:
    rows_of(journal / "journal.db", "DELETE FROM entries WHERE seq = ?", (seq,))
    rows_of(journal / "journal.db", "UPDATE entries SET seq = -seq WHERE seq > ?", (seq,))
    rows_of(journal / "journal.db", "UPDATE entries SET seq = -seq - 1 WHERE seq < 0")
    rows_of(
        journal / "journal.db",
        "UPDATE entries SET engine_seq = engine_seq - 1 WHERE engine = 'a' AND seq >= ?",
        (seq,),
    )


def test_a_lease_that_was_taken_out_or_put_in_is_named(journal: Path) -> None:
    seq = find(journal, Kind.LEASE, after=150)
    removed(journal, seq)
    found = difference(verify(journal))
    assert found.kind in ("lease", "decision", "checkpoint")
    assert abs(found.seq - seq) <= 2


def test_a_release_that_nobody_gave_is_named(journal: Path) -> None:
    seq = find(journal, Kind.ACK, after=50)
    rows_of(
        journal / "journal.db",
        "UPDATE entries SET kind = 'release', payload = '{\"reason\":\"x\"}' WHERE seq = ?",
        (seq,),
    )
    found = difference(verify(journal))
    assert (found.seq, found.kind, found.field, found.replayed) == (seq, "release", "", None)
    assert found.recorded == {"reason": "x"}


def test_where_entries_are_missing_nobody_can_follow_until_the_next_checkpoint(journal: Path) -> None:
    whole = verify(journal)
    seq = find(journal, Kind.REPORT, after=100)
    rows_of(journal / "journal.db", "DELETE FROM entries WHERE seq = ?", (seq,))
    result = verify(journal)

    assert result.ok
    assert result.lost == 1
    verdict, before = result.engines[0], whole.engines[0]
    assert 0 < verdict.unverified < verdict.entries / 2
    assert result.unverified_share == pytest.approx(
        verdict.unverified / sum(engine.entries for engine in result.engines)
    )
    assert 0 < verdict.decisions < before.decisions
    # The checkpoint at which it goes on again is taken as it is.
    assert verdict.checkpoints == before.checkpoints - 1


def test_an_alteration_behind_a_gap_is_found_all_the_same(journal: Path) -> None:
    rows_of(journal / "journal.db", "DELETE FROM entries WHERE seq = ?", (find(journal, Kind.REPORT, after=100),))
    seq = find(journal, Kind.DECISION, "b", after=400)
    alter(journal, seq, lambda payload: payload.replace(b'"version":', b'"version":1', 1))
    assert difference(verify(journal)).seq == seq


def test_after_pruning_verification_begins_at_the_first_checkpoint(journal: Path) -> None:
    first = find(journal, Kind.CHECKPOINT, after=200)
    path = journal / "journal.db"
    rows_of(path, "DELETE FROM entries WHERE seq < ?", (first - 20,))
    rows_of(path, "UPDATE meta SET value = ?", (first - 21,))
    result = verify(journal)

    assert result.ok
    assert result.lost == 0
    assert 0 < result.unverified_share < 0.5
    assert all(verdict.decisions for verdict in result.engines)


def test_only_the_first_difference_of_an_engine_is_told_and_the_first_of_all(journal: Path) -> None:
    for engine in "ab":
        for after in (200, 300):
            seq = find(journal, Kind.DECISION, engine, after)
            alter(journal, seq, lambda payload: payload.replace(b'"version":', b'"version":1', 1))
    result = verify(journal)
    seqs = [find(journal, Kind.DECISION, engine, 200) for engine in "ab"]
    assert [v.difference.seq for v in result.engines if v.difference] == seqs
    assert difference(result).seq == min(seqs)


# -- sessions that fail --------------------------------------------------------------------------


def test_a_session_that_failed_fails_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: GoodputPolicy, rows: object) -> None:
        raise ZeroDivisionError("a bug")

    def script(desk: Desk) -> None:
        seat = desk.join()
        desk.report(seat)
        with monkeypatch.context() as broken:
            broken.setattr(GoodputPolicy, "learn", fail)
            desk.report(seat)
        desk.report(seat)

    written(tmp_path, script)
    found = difference(verify(tmp_path))
    assert (found.kind, found.field, found.recorded) == ("failed", "kind", "failed")

    def fail_once(self: GoodputPolicy, rows: object) -> None:
        seen.append(rows)
        if len(seen) == 2:
            raise ZeroDivisionError("the same bug, in other words")
        learn(self, rows)

    seen: list[object] = []
    learn: Any = GoodputPolicy.learn
    monkeypatch.setattr(GoodputPolicy, "learn", fail_once)
    assert verify(tmp_path).ok


def test_a_policy_that_this_version_does_not_have_cannot_be_followed(journal: Path) -> None:
    for kind in (Kind.SESSION, Kind.CHECKPOINT):
        last = 0
        with sqlite3.connect(journal / "journal.db") as db:
            numbers = [seq for (seq,) in db.execute("SELECT seq FROM entries WHERE kind = ? AND engine = 'a'", (kind,))]
        for last in numbers:
            alter(journal, last, lambda payload: payload.replace(b'"name":"goodput"', b'"name":"oracle"'))
    verdict = verify(journal, "a").engines[0]
    assert verdict.difference is None
    assert verdict.unverified > verdict.entries * 0.8


def test_a_damaged_entry_is_one_error_with_its_place(journal: Path) -> None:
    seq = find(journal, Kind.ACK)
    alter(journal, seq, lambda payload: b"\xff\xff\xff")
    with pytest.raises(DataError, match=rf"journal\.db, entry {seq}: \(ack of a\) cannot be read"):
        verify(journal)


def test_all_of_the_session_is_in_the_journal(original: Path) -> None:
    with Journal(original) as journal:
        kinds = {entry.kind for entry in journal.entries()}
    assert kinds >= set(Kind) - {Kind.RESUMED, Kind.FAILED, Kind.ADMIN, Kind.STANDING}


# -- comparing -----------------------------------------------------------------------------------

SPECULATE = {"kind": "speculate", "steps": 3}
PAIRS: dict[str, tuple[Any, Any, Any]] = {
    "same": ({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}, None),
    "floats that are close": ({"a": 1.0}, {"a": 1.0 + 5e-10}, None),
    "small floats": ([0.0], [9e-10], None),
    "large floats": ([1e12], [1e12 + 100], None),
    "floats that are not close": ([1.0], [1.0 + 3e-9], ("[0]", 1.0, 1.0 + 3e-9)),
    "a whole number for a float": ([1.0], [1], None),
    "integers": ([10**18], [10**18 + 1], ("[0]", 10**18, 10**18 + 1)),
    "a key more": ({"a": 1}, {"a": 1, "b": 2}, ("b", None, 2)),
    "a key less": ({"a": {"c": 1}}, {"a": {}}, ("a.c", 1, None)),
    "shorter": ([1, 2], [1], ("[1]", 2, None)),
    "a mode": ({"m": SPECULATE}, {"m": {"kind": "plain_warm", "steps": 0}}, ("m", "speculate(3)", "plain_warm")),
    "another type": ({"a": [1]}, {"a": "x"}, ("a", [1], "x")),
    "the first counts": ({"a": 1, "b": 2}, {"b": 3, "a": 4}, ("a", 1, 4)),
}


@pytest.mark.parametrize(("recorded", "replayed", "found"), PAIRS.values(), ids=PAIRS)
def test_the_first_place_that_differs_is_found(recorded: Any, replayed: Any, found: Any) -> None:
    mismatch = first_mismatch(recorded, replayed)
    assert (mismatch and (mismatch.field, mismatch.recorded, mismatch.replayed)) == found


def test_modes_are_compared_as_modes() -> None:
    assert first_mismatch(msgspec.to_builtins(speculate(3)), SPECULATE) is None
