"""`trimtab replay` as a person and as a program runs it."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.journals import rows_of, unpacked
from support.replay_traces import MS, Recorder, engine, write
from trimtab.store.entries import Kind
from trimtab.store.reading import Journal
from trimtabpb.v1 import control_pb2 as pb

DATA = Path(__file__).parents[1] / "data"
LOGS = sorted((DATA / "traces").glob("llama*.csv.gz"))
LOG = DATA / "traces" / "llama8b_fa3_ctx64.csv.gz"
JOURNAL = DATA / "journals" / "steering.db.gz"
TRIMTAB = Path(sys.executable).with_name("trimtab")
KEYS = {
    "trace", "policy", "tokens_per_s", "low", "high", "observed_share", "truncated_share", "modelled_share", "tokens",
    "seconds", "steps", "switches", "switches_per_1000_steps", "steps_by_mode", "against_recorded", "best_fixed",
    "against_best_fixed", "regret_s", "left_out_s", "left_out_rows", "switch_ms", "profile", "engines", "notes",
}  # fmt: skip


def trimtab(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(TRIMTAB), "replay", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def as_data(*arguments: object) -> list[dict[str, Any]]:
    done = trimtab(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def rows_in(journal: Path) -> int:
    """Rows of a trace that is made of this journal."""
    out = journal.with_name("exported.parquet")
    command = [str(TRIMTAB), "trace", "export", str(journal), "--output", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    out.unlink()
    rows: int = json.loads(done.stdout)["rows"]
    return rows


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    recorder = Recorder()
    for i in range(600):
        recorder.step((3, 1, 0)[i // 50 % 3], [i % 5, 3, 7])
    return write(tmp_path / "t.parquet", (engine(), recorder.rows))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return unpacked(JOURNAL, tmp_path / "journal.db")


def test_the_real_logs_replay() -> None:
    found = as_data(*LOGS, "--policy", "goodput", "--policy", "fixed:0")
    assert len(found) == 3 * len(LOGS) == 18
    for i, log in enumerate(LOGS):
        recorded, goodput, plain = mine = found[3 * i : 3 * i + 3]
        with gzip.open(log, "rt") as lines:
            assert recorded["steps"] == sum(1 for _ in lines) - 1
        assert [(one["trace"], one["policy"]) for one in mine] == [
            (str(log), policy) for policy in ("as recorded", "goodput", "fixed:0")
        ]
        for one in (recorded, goodput, plain):
            assert one.keys() == KEYS
            assert one["low"] < one["tokens_per_s"] < one["high"]
            shares = [one[f"{name}_share"] for name in ("observed", "truncated", "modelled")]
            assert sum(shares) == pytest.approx(1.0)
            assert one["tokens"] == recorded["tokens"]
            assert sum(one["steps_by_mode"].values()) == pytest.approx(1.0)
        # In these logs modes were tried in turn: a policy that learns does better.
        assert goodput["tokens_per_s"] > recorded["tokens_per_s"]


def test_the_data_has_one_object_for_each_trace_and_policy(trace: Path) -> None:
    found = as_data(trace, LOG, "--policy", "sglang-ema", "--policy", "fixed:3")
    assert [(one["trace"], one["policy"]) for one in found] == [
        (str(path), policy) for path in (trace, LOG) for policy in ("as recorded", "sglang-ema", "fixed:3")
    ]
    assert found[2]["against_recorded"].keys() == {"value", "low", "high"}
    (only,) = found[0]["engines"]
    assert (only["engine"], only["run"], only["tokens"]) == ("llama-a", 0, found[0]["tokens"])


def test_counts_by_depth_make_fewer_drafts_exact(trace: Path) -> None:
    _, plain = as_data(trace, "--policy", "fixed:0")
    assert plain["modelled_share"] == 0
    assert plain["truncated_share"] == pytest.approx(1 - plain["observed_share"])


def test_the_default_policy_at_another_interval_and_seed_gives_the_same_data_every_time(trace: Path) -> None:
    once, again = (as_data(trace, "--interval-ms", 100, "--seed", 5) for _ in range(2))
    assert once == again
    assert once[1]["policy"] == "goodput"
    assert once != as_data(trace, "--interval-ms", 1000, "--seed", 5)


def test_a_profile_and_the_price_of_a_switch_can_be_given(trace: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    points = [{"batch_size": 64, "ms": {"plain_warm": 80.0, "speculate(1)": 90.0, "speculate(3)": 120.0}}]
    profile.write_text(json.dumps({"key": {"model": "m", "device_name": "d"}, "points": points}))
    _, fixed = as_data(trace, "--policy", "fixed:3", "--profile", profile, "--switch-ms", 500)
    assert (fixed["profile"], fixed["switch_ms"]) == ("profile.json", 500.0)
    # Ratios count, not the level: times are those of the trace.
    assert fixed["seconds"] == pytest.approx(fixed["steps"] * MS[3] / 1e3, rel=0.02)


def test_people_get_a_table_and_what_belongs_to_it(trace: Path) -> None:
    done = trimtab(trace, "--policy", "fixed:1")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["POLICY", "TOKENS/S"]
    assert lines[1].startswith("as recorded")
    assert re.match(r"fixed:1 +[\d,]+ +[\d,]+ +[\d,]+ +\d\.\d{3} \(\d\.\d{3}-\d\.\d{3}\)", lines[2])
    assert f"{trace}: 600 rows" in done.stdout
    assert "left out: 0.0 s of pauses and gaps that nobody can explain" in done.stdout


def test_a_journal_is_replayed_as_it_is(journal: Path) -> None:
    by_file = as_data(journal, "--policy", "fixed:1")
    assert [one["policy"] for one in by_file] == ["as recorded", "fixed:1"]
    assert by_file[0]["steps"] == rows_in(journal) > 1_000
    by_directory = as_data(journal.parent, "--policy", "fixed:1")
    assert [{**one, "trace": ""} for one in by_directory] == [{**one, "trace": ""} for one in by_file]
    assert [path.name for path in journal.parent.iterdir()] == ["journal.db"]


def test_a_journal_is_verified_and_every_decision_follows_from_the_record(journal: Path) -> None:
    done = trimtab(journal, "--verify", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["difference"] is None
    assert found["engines"][0]["decisions"] > 100
    shown = trimtab(journal, "--verify", "--engine", found["engines"][0]["engine"])
    assert shown.returncode == 0
    assert "every decision that could be followed is the one that was recorded" in shown.stdout


def test_an_altered_journal_is_named_where_it_differs_with_exit_status_1(journal: Path) -> None:
    with Journal(journal) as reading:
        leases = list(reading.entries(kinds={Kind.LEASE}))
    entry = leases[len(leases) // 2]
    lease = pb.Lease.FromString(entry.payload)
    lease.min_dwell_steps += 1
    content = lease.SerializeToString(deterministic=True)
    rows_of(journal, "UPDATE entries SET packed = 0, payload = ? WHERE seq = ?", (content, entry.seq))
    done = trimtab(journal, "--verify")
    assert done.returncode == 1
    said = f"the first difference is entry {entry.seq:,} (run {entry.run}, {entry.engine}): lease lease.min_dwell_steps"
    assert said in done.stdout
    data = trimtab(journal, "--verify", "--json")
    assert (data.returncode, json.loads(data.stdout)["difference"]["seq"]) == (1, entry.seq)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([LOG, "--policy", "greedy"], "unknown policy 'greedy'; there are: "),
        ([LOG, "--policy", "fixed:4"], "llama8b_fa3_ctx64: steps 4 is not among the engine's candidates"),
        ([LOG, "--profile", "nowhere.json"], "nowhere.json: cannot be read: No such file or directory"),
        ([LOG, "--report", "nowhere/page.html"], "--report nowhere/page.html: there is no directory nowhere"),
        ([LOG, "--interval-ms", "0"], "--interval-ms"),
        ([LOG, "--engine", "a"], "--engine goes with --verify"),
        ([LOG, "--verify"], "llama8b_fa3_ctx64.csv.gz"),
        ([LOG, "--verify", "--policy", "fixed:3"], "--verify goes with --engine and --json alone"),
        ([LOG, LOG, "--verify"], "--verify takes one journal"),
        (["nowhere.parquet"], "nowhere.parquet: cannot be read: No such file or directory"),
        ([DATA], "journal.db: does not exist"),
        ([], "Missing argument"),
        (
            [DATA / "traces" / "sglang_0.5.23_fixed.log.gz", "--policy", "fixed:3"],
            "sglang_0.5.23_fixed.log.gz: there is too little to learn from",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_status_2(arguments: list[object], message: str) -> None:
    done = trimtab(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_log_of_averages_replays_with_a_profile(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    ms = {"plain_warm": 5.0, "speculate(1)": 6.0, "speculate(3)": 8.0}
    profile.write_text(
        json.dumps({"key": {"model": "m", "device_name": "d"}, "points": [{"batch_size": 64, "ms": ms}]})
    )
    log = DATA / "traces" / "sglang_0.5.23_adaptive.log.gz"
    recorded, fixed = as_data(log, "--policy", "fixed:3", "--profile", profile)
    assert recorded["steps"] > 500
    assert fixed["truncated_share"] == 0
    assert fixed["tokens"] == recorded["tokens"]
