"""`trimtab` against a real `trimtabd`, with engines that do as they are told."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from support.command_line import trimtab
from support.daemon_process import DaemonProcess
from support.living_engine import LivingEngine
from support.scripted_engine import ScriptedEngine
from trimtab.policies.registry import DEFAULT_POLICY, POLICIES
from trimtabpb.v1 import admin_pb2
from trimtabpb.v1 import control_pb2 as pb

PLAIN_WARM = {"kind": "plain_warm", "steps": 0}
OFFERED = [PLAIN_WARM, {"kind": "speculate", "steps": 1}, {"kind": "speculate", "steps": 3}]
LINE_KEYS = {
    "engine_id", "state", "labels", "model", "acts", "mode", "decided_by", "policy", "policy_paused", "canary",
    "shadow", "pin", "lease", "goodput_tps", "accepted_drafts", "step_ms", "batch_size", "switches",
    "running_requests", "waiting_requests", "last_message_age_s",
}  # fmt: skip
DETAIL_KEYS = LINE_KEYS | {
    "boot_id", "connected_at", "software", "topology", "speculation", "offers", "observe_reasons",
    "graph_batch_sizes", "max_running_requests", "kv_capacity_tokens", "candidate_cost", "on_expiry", "alarms",
    "rank_divergence", "journal_problem", "fuse_reason", "profile", "profile_ignored", "bands", "measured_rows",
    "dropped", "refused", "hooks_applied", "hooks_not_applied", "refused_modes", "plain", "stale_share",
    "stale_resumes",
}  # fmt: skip


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess("--listen", "127.0.0.1:0", "--insecure-loopback") as daemon:
        yield daemon
        assert "Traceback" not in daemon.text()


@pytest.fixture(scope="module")
def fleet(daemon: DaemonProcess) -> Iterator[str]:
    """llama-a and llama-b obey, llama-o only observes."""
    target = daemon.target
    watching = {"acts": False, "modes": (), "observe_reasons": ["TRIMTAB_MODE is observe"]}
    with (
        LivingEngine(target, "llama-a", labels={"team": "chat"}, software=pb.Software(sglang_version="0.5.23")),
        LivingEngine(target, "llama-b", labels={"team": "code"}),
        LivingEngine(target, "llama-o", **watching),
    ):
        yield target


@pytest.fixture
def released(daemon: DaemonProcess, fleet: str) -> Iterator[str]:
    """The fleet without pins, before and after."""
    yield fleet
    daemon.admin.Unpin(admin_pb2.UnpinRequest(selector=admin_pb2.Selector(all=True)))


def test_engines_lists_every_engine_with_its_mode_and_who_decides(fleet: str) -> None:
    done = trimtab(fleet, "engines")
    assert done.err == ""
    header, *rows = done.out.splitlines()
    assert header.split()[:4] == ["ENGINE", "STATE", "MODE", "BY"]
    assert [row.split()[:2] for row in rows] == [[name, "connected"] for name in ("llama-a", "llama-b", "llama-o")]
    assert all(row == row.rstrip() for row in rows)


def test_engines_as_json_has_stable_keys(fleet: str) -> None:
    engines = trimtab(fleet, "engines", "--json").data
    assert [set(engine) for engine in engines] == [LINE_KEYS] * 3
    a, _, observer = engines
    assert (a["labels"], a["acts"], a["policy"]) == ({"team": "chat"}, True, DEFAULT_POLICY)
    assert (a["running_requests"], a["waiting_requests"], a["switches"]) == (4, 1, 2)
    assert a["goodput_tps"] > 0
    assert a["step_ms"] == 8.0
    assert (observer["acts"], observer["lease"], observer["mode"], observer["pin"]) == (False, None, None, None)


def test_show_says_everything_about_one_engine(fleet: str) -> None:
    text = trimtab(fleet, "show", "llama-a").out
    for expected in (
        "engine       llama-a, connected, last message",
        "labels       team=chat",
        "sglang 0.5.23",
        "offers       plain_warm, speculate(1), speculate(3)",
        "dropped      negative_count=1",
        f"last decision of policy {DEFAULT_POLICY}",
    ):
        assert expected in text
    assert "only observes: TRIMTAB_MODE is observe" in trimtab(fleet, "show", "llama-o").out


def test_show_as_json_adds_to_the_line_of_engines(fleet: str) -> None:
    detail = trimtab(fleet, "show", "llama-a", "--json").data
    assert set(detail) == DETAIL_KEYS
    assert detail["offers"] == OFFERED
    assert detail["dropped"] == {"negative_count": 1}
    assert detail["bands"][0]["min_batch_size"] == 1
    assert detail["bands"][-1]["max_batch_size"] is None
    assert {candidate["mode"]["kind"] for candidate in detail["bands"][0]["candidates"]} == {"plain_warm", "speculate"}


@pytest.mark.parametrize(
    ("wanted", "mode"),
    [
        (["--plain"], PLAIN_WARM),
        (["--plain=warm"], PLAIN_WARM),
        (["--steps", "3"], {"kind": "speculate", "steps": 3}),
    ],
)
def test_a_pin_is_in_force_when_the_command_returns(released: str, wanted: list[str], mode: dict[str, object]) -> None:
    (pinned,) = trimtab(released, "pin", *wanted, "llama-a", "--reason", "a test", "--json").data
    assert (pinned["engine_id"], pinned["decided_by"], pinned["mode"]) == ("llama-a", "pin", mode)
    assert pinned["pin"].pop("pinned_at").startswith("20")
    assert pinned["pin"] == {
        "mode": mode,
        "owner": f"{getpass.getuser()}@{socket.gethostname()}",
        "reason": "a test",
        "remaining_s": None,
        "in_force": True,
        "min_steps": None,
        "max_steps": None,
        "ordered_for": None,
    }


def test_a_pin_with_a_time_says_what_is_left(released: str) -> None:
    done = trimtab(released, "pin", "llama-a", "--steps", "1", "--for", "10m")
    assert (done.out, done.err) == ("llama-a: speculate(1) for 10m00s\n", "")
    shown = trimtab(released, "show", "llama-a", "--json").data["pin"]
    assert 590 < shown["remaining_s"] <= 600
    assert "llama-a  connected  speculate(1)  pin 9m5" in trimtab(released, "engines").out


def test_labels_choose_engines(released: str) -> None:
    done = trimtab(released, "pin", "--label", "team=code", "--plain")
    assert done.out == "llama-b: plain_warm until released\n"


def test_unpin_gives_control_back(released: str) -> None:
    trimtab(released, "pin", "llama-a", "--plain")
    assert trimtab(released, "unpin", "llama-a").out == "1 released: the policy decides again\n"
    assert trimtab(released, "unpin", "llama-a").out == "nothing was pinned\n"
    answer = trimtab(released, "unpin", "--all", "--json").data
    assert answer["released"] == 0
    assert [set(engine) for engine in answer["engines"]] == [LINE_KEYS] * 3
    assert all(engine["pin"] is None for engine in answer["engines"])


def test_a_pin_that_an_engine_does_not_confirm_is_said_so() -> None:
    with DaemonProcess() as other, ScriptedEngine(other.target, "deaf") as engine:
        engine.start()
        done = trimtab(other.target, "pin", "deaf", "--plain")
    assert done.exit_code == 0
    assert done.out == (
        "deaf: plain_warm until released; not confirmed by the engine (connected): see `trimtab show`\n"
    )


def test_policy_shows_what_decides_where_and_what_is_known(fleet: str) -> None:
    text = trimtab(fleet, "policy").out
    assert f"llama-a  {DEFAULT_POLICY}" in text
    assert "sglang-ema" in text
    data = trimtab(fleet, "policy", "llama-b", "--json").data
    quiet = {"canary": False, "shadow": None, "agreement": None}
    assert data["engines"] == [{"engine_id": "llama-b", "policy": DEFAULT_POLICY, **quiet}]
    assert data["canary"] is None
    assert [known["name"] for known in data["known"]] == sorted(POLICIES)
    assert all(known["summary"] for known in data["known"])


def test_policy_sets_another_one_with_its_parameters(fleet: str) -> None:
    done = trimtab(fleet, "policy", "llama-b", "--set", "fixed", "-p", "steps=1")
    assert [line.split() for line in done.out.splitlines()] == [["ENGINE", "POLICY"], ["llama-b", "fixed"]]
    bands = trimtab(fleet, "show", "llama-b", "--json").data["bands"]
    assert {(band["mode"]["steps"], band["reason"]) for band in bands} == {(1, "fixed")}
    assert trimtab(fleet, "policy", "llama-b", "--set", DEFAULT_POLICY).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["show", "llama-z"], "there is no engine 'llama-z': known are llama-a, llama-b, llama-o"),
        (["pin", "llama-z", "--plain"], "there is no engine 'llama-z': known are llama-a, llama-b, llama-o"),
        (["unpin", "llama-z"], "there is no engine 'llama-z': known are llama-a, llama-b, llama-o"),
        (["pin", "--label", "team=ops", "--plain"], "there is no engine with these labels"),
        (["pin", "llama-a", "--steps", "4"], "llama-a does not offer speculate(4); it offers plain_warm, speculate(1)"),
        (["pin", "llama-a", "--plain=cold"], "llama-a does not offer plain_cold; it offers plain_warm"),
        (["pin", "llama-o", "--plain"], "llama-o only observes: TRIMTAB_MODE is observe"),
        (["pin", "--all", "--plain"], "llama-o only observes"),
        (["policy", "--all", "--set", "tea-leaves"], "unknown policy 'tea-leaves'; there are: "),
        (["policy", "llama-a", "--set", "fixed", "-p", "wings=2"], "policy 'fixed' has no parameter 'wings'"),
    ],
)
def test_what_the_controller_refuses_is_one_line_and_exit_status_2(
    daemon: DaemonProcess, fleet: str, arguments: list[str], complaint: str
) -> None:
    assert complaint in trimtab(fleet, *arguments).complaint
    engines = daemon.admin.ListEngines(admin_pb2.ListEnginesRequest()).engines
    assert not any(engine.HasField("pin") for engine in engines)


def test_what_the_controller_refused_is_counted_by_reason(fleet: str) -> None:
    trimtab(fleet, "show", "llama-z")
    trimtab(fleet, "pin", "llama-a", "--steps", "4")
    refused = trimtab(fleet, "show", "--json").data["refused"]
    assert {"not_found", "invalid_argument"} <= set(refused)


def test_a_controller_on_tcp_is_reached_past_any_proxy(daemon: DaemonProcess, fleet: str) -> None:
    address = daemon.started()["listen"]
    done = trimtab("", "--controller", address, "engines", "--json", http_proxy="http://127.0.0.1:1")
    assert {"llama-a", "llama-b", "llama-o"} <= {engine["engine_id"] for engine in done.data}


def test_a_controller_without_engines_says_how_to_get_one() -> None:
    with DaemonProcess() as empty:
        assert trimtab(empty.target, "engines").out.startswith("No engine has connected yet")
        assert trimtab(empty.target, "engines", "--json").data == []
        assert "No engine has connected yet" in trimtab(empty.target, "top", "--once").out
        assert "KNOWN POLICY" in trimtab(empty.target, "policy").out
        assert "none has connected yet" in trimtab(empty.target, "pin", "--all", "--plain").complaint


def test_a_controller_that_was_killed_is_named_with_what_to_do() -> None:
    with DaemonProcess() as killed:
        killed.process.kill()
        killed.process.wait()
        complaint = trimtab(killed.target, "engines").complaint
    assert complaint.startswith(f"no controller answers at {killed.target}: start trimtabd")


def test_a_service_that_is_not_a_controller_is_named() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        complaint = trimtab(f"127.0.0.1:{port}", "engines").complaint
    finally:
        server.stop(None)
    assert complaint == f"what answers at 127.0.0.1:{port} is no trimtabd, or an older one: check --controller"


def test_a_controller_that_hangs_is_given_up_after_the_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        complaint = trimtab(f"127.0.0.1:{silent.getsockname()[1]}", "engines", "--timeout", "0.3").complaint
    assert "did not answer within 0.3 s" in complaint
