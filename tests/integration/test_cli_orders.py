"""Ranges, freezes, standing pins, shadows and canaries: ordered with `trimtab`, carried out by a real daemon."""

from __future__ import annotations

import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from support.command_line import trimtab
from support.daemon_process import DaemonProcess
from support.hooked_engine import EmbeddedEngine
from support.living_engine import LivingEngine
from trimtab.policies.registry import DEFAULT_POLICY
from trimtab_sglang.settings import PluginSettings
from trimtabpb.v1 import admin_pb2
from trimtabpb.v1 import control_pb2 as pb

ALL = admin_pb2.Selector(all=True)


@pytest.fixture
def daemon() -> Iterator[DaemonProcess]:
    with DaemonProcess() as daemon:
        yield daemon
        assert "Traceback" not in daemon.text()


@pytest.fixture
def engines(daemon: DaemonProcess) -> Iterator[ExitStack]:
    """llama-a of team chat; more can come."""
    with ExitStack() as engines:
        comes(engines, daemon, "llama-a", "chat")
        yield engines


def comes(engines: ExitStack, daemon: DaemonProcess, engine_id: str, team: str) -> LivingEngine:
    return engines.enter_context(LivingEngine(daemon.target, engine_id, labels={"team": team}))


def run(daemon: DaemonProcess, *arguments: str) -> str:
    done = trimtab(daemon.target, *arguments)
    assert done.exit_code == 0, done
    return done.out


def metrics(daemon: DaemonProcess) -> str:
    with urllib.request.urlopen(f"http://{daemon.started()['metrics']}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
    return text


# -- pins ----------------------------------------------------------------------------------------


def test_a_range_is_visible_everywhere(daemon: DaemonProcess, engines: ExitStack) -> None:
    pinned = ("pin", "llama-a", "--steps", "0-1", "--for", "10m", "--reason", "tail latency")
    assert run(daemon, *pinned) == "llama-a: steps 0-1 for 10m00s\n"
    assert re.search(r"pin 0-1 (10m00s|9m5)", run(daemon, "engines"))
    assert "pin 0-1 9m5" in run(daemon, "top", "--once")
    assert "steps 0-1, 9m" in (shown := run(daemon, "show", "llama-a"))
    assert "policy       goodput, active" in shown
    data = trimtab(daemon.target, "show", "llama-a", "--json").data
    assert (data["pin"]["min_steps"], data["pin"]["max_steps"], data["pin"]["ordered_for"]) == (0, 1, None)
    assert data["mode"]["steps"] <= 1
    assert all(band["mode"]["steps"] <= 1 for band in data["bands"])
    assert 'trimtab_engine_pinned{engine="llama-a",mode="steps 0-1"} 1.0' in metrics(daemon)
    update = next(daemon.admin.Watch(admin_pb2.WatchRequest(), timeout=5)).engine
    assert (update.pin.range.max_steps, update.pin.reason) == (1, "tail latency")


def test_a_freeze_holds_what_runs_and_is_no_standing_order(daemon: DaemonProcess, engines: ExitStack) -> None:
    run(daemon, "pin", "llama-a", "--steps", "1")
    run(daemon, "unpin", "llama-a")
    before = trimtab(daemon.target, "show", "llama-a", "--json").data["mode"]
    assert run(daemon, "freeze", "--all", "--reason", "incident 7").endswith("until released\n")
    shown = trimtab(daemon.target, "show", "llama-a", "--json").data
    assert (shown["pin"]["mode"], shown["pin"]["reason"]) == (before, "incident 7")
    comes(engines, daemon, "llama-b", "chat")
    assert trimtab(daemon.target, "show", "llama-b", "--json").data["pin"] is None
    assert run(daemon, "unpin", "--all") == "1 released: the policy decides again\n"


def test_a_pin_for_labels_holds_for_a_pod_that_comes_later_and_can_be_released_after_the_last_one_is_gone(
    daemon: DaemonProcess, engines: ExitStack
) -> None:
    assert run(daemon, "pin", "--label", "team=chat", "--plain") == "llama-a: plain_warm until released\n"
    later = comes(engines, daemon, "llama-b", "chat")
    comes(engines, daemon, "llama-c", "code")
    told = {e["engine_id"]: e["pin"] for e in trimtab(daemon.target, "engines", "--json").data}
    assert told["llama-b"]["ordered_for"] == told["llama-a"]["ordered_for"] == "team=chat"
    assert told["llama-c"] is None
    assert "for team=chat" in run(daemon, "show", "llama-b")
    run(daemon, "unpin", "llama-a")
    assert "plain for team=chat, not for llama-a, until released" in run(daemon, "show")
    assert "trimtab_standing_pins 1.0" in metrics(daemon)
    later.close()
    answer = trimtab(daemon.target, "unpin", "--label", "team=chat", "--json").data
    assert (answer["released"], answer["ended_orders"]) == (1, 1)
    assert trimtab(daemon.target, "show", "--json").data["standing_pins"] == []


def test_a_range_holds_in_a_real_plugin_also_after_the_controller_is_gone() -> None:
    with DaemonProcess() as daemon:
        settings = PluginSettings(controller=daemon.target, engine_id="llama-a")
        with EmbeddedEngine(settings, linked=True) as engine:
            engine.admit(4)
            engine.decode_until(lambda: engine.plugin.machine.lease)
            daemon.admin.Pin(admin_pb2.PinRequest(selector=ALL, range=pb.StepRange(min_steps=1, max_steps=3)))
            engine.decode_until(lambda: engine.plugin.machine.pin)
            assert set(engine.decode_for(1.0)) <= {1, 3}
            assert engine.plugin.machine.version > 0, "the table rules within the range"
            daemon.stop(signal.SIGKILL)
            engine.decode_until(lambda: engine.plugin.machine.lease is None)
            assert set(engine.decode_for(1.0)) <= {1, 3}
            assert engine.plugin.machine.pin is not None
            with DaemonProcess(directory=daemon.directory) as second:
                engine.decode_until(lambda: engine.plugin.machine.lease)
                assert set(engine.decode_for(0.5)) <= {1, 3}
                view = second.admin.GetEngine(admin_pb2.GetEngineRequest(engine_id="llama-a")).engine
                assert (view.pin.range.min_steps, view.pin.range.max_steps) == (1, 3)


# -- trials --------------------------------------------------------------------------------------


def test_a_shadow_decides_and_is_shown_and_logged_and_not_followed(daemon: DaemonProcess, engines: ExitStack) -> None:
    out = run(daemon, "policy", "--all", "--set", "fixed", "-p", "steps=1", "--shadow")
    assert [line.split()[:3] for line in out.splitlines()[:2]] == [
        ["ENGINE", "POLICY", "SHADOW"],
        ["llama-a", DEFAULT_POLICY, "fixed"],
    ]
    wait_for(daemon, lambda e: e.policy.shadow.steps > 0)
    shown = run(daemon, "show", "llama-a")
    assert f"last decision of policy {DEFAULT_POLICY}" in shown
    assert "last decision of policy fixed, in shadow" in shown
    assert "fixed, agrees for " in shown
    data = trimtab(daemon.target, "show", "llama-a", "--json").data
    assert data["shadow"]["bands"][0]["mode"]["steps"] == 1
    assert 0 <= data["shadow"]["agreement"] <= 1
    assert daemon.logged("shadow_decision")["policy"] == "fixed"
    assert 'trimtab_engine_shadow_agreement{engine="llama-a"}' in metrics(daemon)
    comes(engines, daemon, "llama-b", "chat")
    assert trimtab(daemon.target, "show", "llama-b", "--json").data["shadow"]["policy"] == "fixed"
    assert "fixed for all, in shadow: steps=1" in run(daemon, "show")


def test_a_shadow_is_promoted_or_withdrawn(daemon: DaemonProcess, engines: ExitStack) -> None:
    run(daemon, "policy", "llama-a", "--set", "fixed", "-p", "steps=1", "--shadow")
    run(daemon, "policy", "llama-a", "--withdraw")
    assert trimtab(daemon.target, "show", "llama-a", "--json").data["shadow"] is None
    run(daemon, "policy", "llama-a", "--set", "fixed", "-p", "steps=1", "--shadow")
    out = run(daemon, "policy", "llama-a", "--promote")
    assert [line.split() for line in out.splitlines()] == [["ENGINE", "POLICY"], ["llama-a", "fixed"]]


def test_a_canary_acts_on_one_engine_out_of_many_and_is_promoted(daemon: DaemonProcess, engines: ExitStack) -> None:
    for name in ("llama-b", "llama-c"):
        comes(engines, daemon, name, "chat")
    out = run(
        daemon, "policy", "--label", "team=chat", "--set", "fixed", "-p", "steps=1", "--canary", "--share", "0.01"
    )
    (chosen,) = [line.split()[0] for line in out.splitlines() if "(canary)" in line]
    assert f"canary of fixed on {chosen} (1% of team=chat)" in out
    assert "(canary)" in run(daemon, "engines")
    assert f'trimtab_engine_canary{{engine="{chosen}"}} 1.0' in metrics(daemon)
    policies = {e["engine_id"]: e["policy"] for e in trimtab(daemon.target, "engines", "--json").data}
    assert sorted(policies.values()) == ["fixed", DEFAULT_POLICY, DEFAULT_POLICY]
    assert policies[chosen] == "fixed"
    assert trimtab(daemon.target, "show", "--json").data["canary"]["engines"] == [chosen]
    complaint = trimtab(daemon.target, "policy", chosen, "--set", "ucb").complaint
    assert complaint == f"{chosen} is on a canary: promote or withdraw it first"
    run(daemon, "policy", "--promote")
    comes(engines, daemon, "llama-d", "code")
    policies = {e["engine_id"]: e["policy"] for e in trimtab(daemon.target, "engines", "--json").data}
    assert set(policies.values()) == {"fixed"}
    assert trimtab(daemon.target, "policy", "--promote").complaint.startswith("no canary runs")


def test_a_canary_is_withdrawn_and_its_engine_goes_back(daemon: DaemonProcess, engines: ExitStack) -> None:
    run(daemon, "policy", "llama-a", "--set", "fixed", "-p", "steps=1", "--canary")
    data = trimtab(daemon.target, "policy", "--withdraw", "--json").data
    assert data["canary"] is None
    assert [(e["engine_id"], e["policy"], e["canary"]) for e in data["engines"]] == [("llama-a", DEFAULT_POLICY, False)]


def wait_for(daemon: DaemonProcess, condition: Callable[[admin_pb2.Engine], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition(daemon.admin.GetEngine(admin_pb2.GetEngineRequest(engine_id="llama-a")).engine):
            return
        time.sleep(0.1)
    raise AssertionError("not in time")
