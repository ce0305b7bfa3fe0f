"""The real daemon and its journal: restarts, orders, and disks that fail."""

from __future__ import annotations

import os
import resource
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command_line import trimtab
from support.daemon_process import DaemonProcess, run_trimtabd
from support.journals import Bare, rows_of
from support.living_engine import LivingEngine
from support.scripted_engine import ScriptedEngine
from trimtab.domain import speculate
from trimtab.replay.journals.verify import verify
from trimtab.store.content import AdminContent, content_of
from trimtab.store.entries import Kind
from trimtab.store.reading import Journal
from trimtab.wire import mode_to_wire
from trimtabpb.v1 import admin_pb2

UNWRITABLE = "/proc/trimtab"


@pytest.fixture
def daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess() as daemon:
        yield daemon


def pin(daemon: DaemonProcess, steps: int = 1, **fields: Any) -> admin_pb2.PinResponse:
    mode = mode_to_wire(speculate(steps))
    return daemon.admin.Pin(
        admin_pb2.PinRequest(selector=admin_pb2.Selector(all=True), mode=mode, **fields), timeout=10
    )


def view(daemon: DaemonProcess, engine_id: str = "a") -> admin_pb2.Engine:
    request = admin_pb2.GetEngineRequest(engine_id=engine_id)
    # Channels to one socket share their attempts: the last daemon's end is not this one's.
    return daemon.admin.GetEngine(request, wait_for_ready=True, timeout=20).engine


def eventually(check: Callable[[], bool], within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def metrics(daemon: DaemonProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{daemon.started()['metrics']}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("trimtab_journal"))
    return {name: float(value) for name, value in pairs}


# -- restarts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restarted_daemon_goes_on_with_engines_that_are_there_and_with_those_that_are_away(
    number: signal.Signals,
) -> None:
    with DaemonProcess() as first, LivingEngine(first.target, "a") as engine, ScriptedEngine(first.target, "b") as away:
        engine.comes_back = True
        away.start()
        pin(first, reason="p99", owner="kim", duration={"seconds": 600})
        away.close()
        time.sleep(1.0)
        version = view(first).lease.version
        first.stop(number)
        with DaemonProcess(directory=first.directory) as second:
            assert second.logged("journal_opened")["engines"] == 2
            there = view(second, "b")
            assert (there.state, there.pin.reason, there.pin.owner) == (
                admin_pb2.Engine.STATE_DISCONNECTED, "p99", "kim",
            )  # fmt: skip
            assert 590 < there.pin.remaining.seconds < 600
            eventually(lambda: view(second).state == admin_pb2.Engine.STATE_CONNECTED)
            eventually(lambda: view(second).in_force.pin_id == there.pin.id)
            assert view(second).lease.version > version
            assert [line for line in second.log() if line["event"] == "learned_dropped"] == []
            answer = second.admin.Unpin(admin_pb2.UnpinRequest(selector=admin_pb2.Selector(all=True)))
            assert (answer.released, answer.journal_problem) == (2, "")
            second.stop()
        result = verify(first.state)
        assert result.ok, result.difference
        assert result.lost == (number == signal.SIGKILL)


def test_what_was_learned_is_what_the_policy_goes_on_with() -> None:
    with DaemonProcess() as first, LivingEngine(first.target, "a") as engine:
        engine.comes_back = True
        time.sleep(2.0)
        first.stop()
        before = view_candidates(first)
        with DaemonProcess(directory=first.directory) as second:
            eventually(lambda: view(second).state == admin_pb2.Engine.STATE_CONNECTED)
            assert view(second).policy.bands
            second.stop()
        assert before
        with Journal(first.state) as journal:
            kinds = [entry.kind for entry in journal.entries("a", {Kind.RESUMED, Kind.HELLO, Kind.DECISION})]
        # The first decision of the second run is explained from what the first one learned.
        assert kinds[kinds.index(Kind.RESUMED) :][:3] == [Kind.RESUMED, Kind.HELLO, Kind.DECISION]
        assert verify(first.state).ok


def view_candidates(daemon: DaemonProcess) -> int:
    with Journal(daemon.state) as journal:
        return sum(1 for _ in journal.entries("a", {Kind.DECISION}))


# -- orders --------------------------------------------------------------------------------------


def test_who_asked_for_what_and_what_came_of_it_is_in_the_journal(daemon: DaemonProcess) -> None:
    with LivingEngine(daemon.target, "a"):
        trimtab(daemon.target, "pin", "a", "--steps", "3", "--reason", "load test")
        trimtab(daemon.target, "pin", "a", "--steps", "4")
        trimtab(daemon.target, "policy", "a", "--set", "fixed", "-p", "steps=1")
        trimtab(daemon.target, "policy")
        trimtab(daemon.target, "unpin", "--all")
        with Journal(daemon.state) as journal:
            asked = [content_of(entry, AdminContent) for entry in journal.entries(kinds={Kind.ADMIN})]
    assert [(content.call, content.engines) for content in asked] == [
        ("Pin", ("a",)), ("Pin", ()), ("SetPolicy", ("a",)), ("Unpin", ("a",)),
    ]  # fmt: skip
    assert "does not offer speculate(4)" in asked[1].refused
    assert asked[0].request["reason"] == "load test"
    assert all("@" in content.request["owner"] for content in asked)
    assert asked[2].request["parameters"] == {"steps": "1"}
    assert [content.outcome for content in asked] == ["OK", "INVALID_ARGUMENT", "OK", "OK"]
    assert {content.who for content in asked} == {"unix"}
    assert {content.claims for content in asked} == {asked[0].request["owner"]}


# -- disks that fail -----------------------------------------------------------------------------


def limit_file_size(daemon: DaemonProcess, size: int) -> None:
    """No file of the daemon can grow beyond this: what a full disk looks like."""
    _, hard = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (size, hard))


def test_a_disk_that_is_full_stops_no_steering_and_everybody_is_told(daemon: DaemonProcess) -> None:
    with ScriptedEngine(daemon.target, "a") as engine:
        engine.start()
        engine.follow(engine.next_lease())
        assert pin(daemon).journal_problem == ""
        limit_file_size(daemon, 24_000)
        engine.report(engine.decode(1000))
        eventually(lambda: problem(daemon) != "")

        done = trimtab(daemon.target, "pin", "a", "--steps", "3", "--for", "10m")
        assert done.exit_code == 0
        assert done.err.startswith("trimtab: warning: done, but not in the controller's journal (")
        assert engine.lease_where().pin.mode.steps in (1, 3)
        listed = trimtab(daemon.target, "engines")
        assert f"warning: the controller's journal {daemon.state}/journal.db fails (" in listed.err
        assert trimtab(daemon.target, "show", "a", "--json").data["journal_problem"]
        assert "journal" in trimtab(daemon.target, "show", "a").out
        assert metrics(daemon)["trimtab_journal_failing"] == 1
        assert len([line for line in daemon.log() if line["event"] == "journal_failing"]) == 1

        limit_file_size(daemon, resource.RLIM_INFINITY)
        # An order tries at once.
        assert pin(daemon, steps=3).journal_problem == ""
        daemon.logged("journal_recovered")
        assert trimtab(daemon.target, "engines").err == ""
        figures = metrics(daemon)
        assert figures["trimtab_journal_failing"] == 0
        assert sum(value for name, value in figures.items() if name.startswith("trimtab_journal_errors_total")) > 0
    daemon.stop()
    result = verify(daemon.state)
    assert result.ok, result.difference
    assert (result.lost, result.unverified_share) == (0, 0.0)


def problem(daemon: DaemonProcess) -> str:
    return daemon.admin.ListEngines(admin_pb2.ListEnginesRequest()).journal.problem


def test_a_directory_that_cannot_be_written_is_no_reason_not_to_steer() -> None:
    with DaemonProcess("--state-dir", UNWRITABLE) as daemon, ScriptedEngine(daemon.target, "a") as engine:
        assert daemon.logged("journal_failing")["path"] == f"{UNWRITABLE}/journal.db"
        engine.start()
        engine.follow(engine.next_lease())
        answer = pin(daemon)
        assert answer.journal_problem.startswith("io: ")
        assert engine.pinned_lease().pin.mode.steps == 1
        assert daemon.stop()[0] == 0
        assert daemon.logged("journal_cut_short")["lost"] > 0


def test_a_damaged_journal_is_moved_aside_and_the_daemon_starts_afresh(tmp_path: Path) -> None:
    state = tmp_path / "state"
    bare = Bare(state)
    bare.write([bare.group((Kind.ACK, os.urandom(3000))) for _ in range(100)])
    bare.close()
    os.truncate(state / "journal.db", 100_000)
    with DaemonProcess(directory=tmp_path) as daemon:
        moved_to = Path(daemon.logged("journal_damaged")["moved_to"])
        assert moved_to.stat().st_size == 100_000
        assert daemon.logged("journal_opened")["engines"] == 0


def test_a_file_of_somebody_else_stops_the_daemon_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_text("my notes, and much more of them")
    answer = run_trimtabd("--state-dir", str(tmp_path), "--socket", str(tmp_path / "x.sock"), "--metrics-listen", "off")

    assert answer.returncode == 2
    assert answer.stderr == (
        f"trimtabd: journal.directory: {tmp_path}/journal.db: is no journal of Trimtab: "
        "move it away, or take another place with --state-dir, or off\n"
    )
    assert (tmp_path / "journal.db").read_text() == "my notes, and much more of them"


def test_a_journal_of_a_newer_version_stops_the_daemon_and_stays_as_it_is(tmp_path: Path) -> None:
    Bare(tmp_path).close()
    rows_of(tmp_path / "journal.db", "PRAGMA user_version = 9")
    before = (tmp_path / "journal.db").read_bytes()
    answer = run_trimtabd("--state-dir", str(tmp_path), "--socket", str(tmp_path / "x.sock"), "--metrics-listen", "off")

    assert answer.returncode == 2
    assert "is a journal of a newer Trimtab (schema 9, this one reads 2): move it away" in answer.stderr
    assert (tmp_path / "journal.db").read_bytes() == before


def test_two_daemons_do_not_share_a_journal(daemon: DaemonProcess, tmp_path: Path) -> None:
    answer = run_trimtabd(
        "--state-dir", str(daemon.state), "--socket", str(tmp_path / "x.sock"), "--metrics-listen", "off"
    )
    assert answer.returncode == 2
    assert answer.stderr == (
        f"trimtabd: journal.directory: another trimtabd writes {daemon.state}/journal.db: "
        "give this one another place with --state-dir, or off\n"
    )


def test_a_path_that_is_no_directory_stops_the_daemon_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = run_trimtabd(
        "--state-dir", str(tmp_path / "file"), "--socket", str(tmp_path / "x.sock"), "--metrics-listen", "off"
    )
    assert answer.returncode == 2
    assert answer.stderr == (
        f"trimtabd: journal.directory: {tmp_path}/file is no directory: take another place with --state-dir\n"
    )


def test_the_journal_can_be_switched_off(tmp_path: Path) -> None:
    with DaemonProcess("--state-dir", "off", directory=tmp_path) as daemon, LivingEngine(daemon.target, "a"):
        assert daemon.started()["journal"] == "off"
        assert pin(daemon).journal_problem == ""
        assert metrics(daemon) == {}
    assert not (tmp_path / "state").exists()


def test_a_service_of_systemd_keeps_its_journal_where_systemd_says(tmp_path: Path) -> None:
    state = tmp_path / "lib"
    arguments = {"own_socket": False, "environ": {"STATE_DIRECTORY": str(state)}}
    with DaemonProcess("--state-dir", "", directory=tmp_path, **arguments) as daemon:  # type: ignore[arg-type]
        assert daemon.started()["journal"] == f"{state}/journal.db"
