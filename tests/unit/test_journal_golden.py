"""The journal of a real engine, recorded on the CPU: every decision comes out again, and none other.

It was recorded by `tests/sglang/record_journal.py`: load that changes, a pin, two policies, a restart of the daemon.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from support.journals import rows_of, unpacked
from trimtab.replay.journals.verify import verify
from trimtab.store.content import report_of
from trimtab.store.entries import Kind
from trimtab.store.reading import Journal
from trimtabpb.v1 import control_pb2 as pb

ARCHIVES = sorted((Path(__file__).resolve().parents[1] / "data" / "journals").glob("*.db.gz"))


@pytest.fixture(params=ARCHIVES, ids=lambda archive: archive.name)
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpacked(request.param, tmp_path / "journal.db")


def test_every_decision_comes_out_again(journal: Path) -> None:
    result = verify(journal)

    assert result.difference is None
    assert (result.unverified_share, result.lost) == (0.0, 0)
    (verdict,) = result.engines
    assert verdict.decisions > 100
    assert verdict.checkpoints > 5


def test_it_holds_what_a_minute_of_steering_brings(journal: Path) -> None:
    with Journal(journal) as reading:
        kinds = [entry.kind for entry in reading.entries()]
        modes = {row.mode for e in reading.entries(kinds={Kind.REPORT}) for row in report_of(e).rows}
        runs = reading.runs()
    trials = {Kind.SHADOW_SET, Kind.SHADOW_DROPPED, Kind.POLICIES_SWAPPED, Kind.STANDING}
    assert set(kinds) >= set(Kind) - {Kind.FAILED, Kind.TICK} - trials
    assert len(runs) == 2
    assert len(modes) >= 4


def alter(journal: Path, seq: int, change: Callable[[bytes], bytes]) -> None:
    """Change the content of one entry."""
    ((packed, payload),) = rows_of(journal, "SELECT packed, payload FROM entries WHERE seq = ?", (seq,))
    content = change(zlib.decompress(payload) if packed else payload)
    rows_of(
        journal, "UPDATE entries SET payload = ? WHERE seq = ?", (zlib.compress(content) if packed else content, seq)
    )


def numbers(journal: Path, *kinds: Kind) -> list[int]:
    with Journal(journal) as reading:
        return [entry.seq for entry in reading.entries(kinds=kinds)]


def one_byte(payload: bytes, place: int, value: int) -> bytes:
    assert payload[place] != value
    return payload[:place] + bytes([value]) + payload[place + 1 :]


def test_one_byte_of_a_lease_is_found_at_that_lease(journal: Path) -> None:
    """The lowest byte of the first probability, and the steps of the first mode."""
    leases = numbers(journal, Kind.LEASE)
    for seq in (leases[len(leases) // 4], leases[-1]):
        with Journal(journal) as reading:
            payload = next(entry.payload for entry in reading.entries() if entry.seq == seq)
        lease = pb.Lease.FromString(payload)
        # A probability travels as a field 3 of 32 bits, in the lowest byte first.
        place = payload.index(lease.table[0].SerializeToString())
        place += lease.table[0].SerializeToString().rindex(b"\x1d") + 1
        alter(journal, seq, lambda payload, place=place: one_byte(payload, place, payload[place] ^ 1))  # type: ignore[misc]
        found = verify(journal).difference
        assert found is not None
        assert (found.seq, found.kind, found.field) == (seq, "lease", "lease.table[0].probability")
        assert found.recorded == pytest.approx(found.replayed, abs=1e-6)
        alter(journal, seq, lambda _, payload=payload: payload)  # type: ignore[misc]
        assert verify(journal).ok


def test_another_mode_in_one_lease_is_found_at_that_lease(journal: Path) -> None:
    leases = numbers(journal, Kind.LEASE)
    seq = leases[len(leases) // 2]

    def change(payload: bytes) -> bytes:
        lease = pb.Lease.FromString(payload)
        lease.table[0].mode.kind, lease.table[0].mode.steps = pb.Mode.KIND_SPECULATE, 7
        return lease.SerializeToString(deterministic=True)

    alter(journal, seq, change)
    found = verify(journal).difference
    assert found is not None
    assert (found.seq, found.kind, found.field, found.recorded) == (seq, "lease", "lease.table[0].mode", "speculate(7)")


def test_one_row_of_a_report_is_found_at_the_first_thing_that_came_of_it(journal: Path) -> None:
    reports = numbers(journal, Kind.REPORT)
    seq = reports[len(reports) // 3]

    def change(payload: bytes) -> bytes:
        report = pb.Report.FromString(payload)
        row = next(i for i, ns in enumerate(report.rows.step_ns) if ns > 0)
        report.rows.step_ns[row] = report.rows.step_ns[row] * 3
        return report.SerializeToString()

    alter(journal, seq, change)
    found = verify(journal).difference
    assert found is not None
    came_of_it = [number for number in numbers(journal, Kind.DECISION, Kind.CHECKPOINT) if number > seq]
    assert (found.seq, found.engine) == (came_of_it[0], "tiny-llama")
