"""What a Prometheus server reads from a real daemon."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from support.daemon_process import DaemonProcess
from support.scripted_engine import ScriptedEngine
from trimtab import __version__
from trimtab.domain import speculate
from trimtabpb.v1 import admin_pb2
from trimtabpb.v1 import control_pb2 as pb


@dataclass(frozen=True)
class Scrape:
    metrics: dict[str, Metric]

    def value(self, sample: str, **labels: str) -> float | None:
        """The value of the sample with exactly these labels."""
        for metric in self.metrics.values():
            for found in metric.samples:
                if found.name == sample and found.labels == labels:
                    return found.value
        return None


def scrape(daemon: DaemonProcess) -> Scrape:
    with urllib.request.urlopen(f"http://{daemon.started()['metrics']}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return Scrape({metric.name: metric for metric in text_string_to_metric_families(text)})


@pytest.fixture(scope="module")
def scraped() -> Iterator[Scrape]:
    """One engine at work and pinned, one that went away, one that observes."""
    with (
        DaemonProcess() as daemon,
        ScriptedEngine(daemon.target, "busy") as busy,
        ScriptedEngine(daemon.target, "gone") as gone,
        ScriptedEngine(daemon.target, "idle", modes=[], acts=False) as idle,
    ):
        busy.start()
        busy.follow(busy.next_lease())
        busy.report(busy.decode(20, speculate(3)), switches=4, dropped={"negative_count": 7}, running_requests=2)
        busy.report(
            pb.StepRows(step=[1], step_ns=[1, 2]), switches=5, dropped={"negative_count": 7}, running_requests=2
        )
        daemon.admin.Pin(admin_pb2.PinRequest(selector=admin_pb2.Selector(engine_ids=["busy"]), any_plain=True))
        busy.pinned_lease()
        busy.report(switches=6, dropped={"negative_count": 7}, running_requests=2)
        idle.start()
        gone.start()
        gone.goodbye()
        gone.end()
        wait_for_switches(daemon, "busy", 6)
        yield scrape(daemon)


def wait_for_switches(daemon: DaemonProcess, engine_id: str, switches: int) -> None:
    request = admin_pb2.WatchRequest(selector=admin_pb2.Selector(engine_ids=[engine_id]))
    for update in daemon.admin.Watch(request, timeout=10):
        if update.engine.measured.switches >= switches:
            return


EXPECTED = [
    ("trimtab_build_info", {"version": __version__}, 1),
    ("trimtab_engines", {"state": "connected"}, 2),
    ("trimtab_engines", {"state": "stalled"}, 0),
    ("trimtab_engines", {"state": "disconnected"}, 1),
    ("trimtab_engine_acts", {"engine": "busy"}, 1),
    ("trimtab_engine_acts", {"engine": "idle"}, 0),
    ("trimtab_engine_mode_info", {"engine": "busy", "mode": "plain_warm", "source": "pin"}, 1),
    ("trimtab_engine_mode_info", {"engine": "idle", "mode": "", "source": "stock"}, 1),
    ("trimtab_engine_steps", {"engine": "busy"}, 0),
    ("trimtab_engine_steps", {"engine": "idle"}, None),
    ("trimtab_engine_pinned", {"engine": "busy", "mode": "plain_warm"}, 1),
    ("trimtab_engine_pinned", {"engine": "gone", "mode": ""}, 0),
    ("trimtab_engine_goodput_tokens_per_second", {"engine": "busy"}, 700),
    ("trimtab_engine_accepted_drafts", {"engine": "busy"}, 0.75),
    ("trimtab_engine_accepted_drafts", {"engine": "idle"}, None),
    ("trimtab_engine_step_seconds", {"engine": "busy"}, 0.008),
    ("trimtab_engine_batch_size", {"engine": "busy"}, 4),
    ("trimtab_engine_running_requests", {"engine": "busy"}, 2),
    ("trimtab_engine_waiting_requests", {"engine": "busy"}, 0),
    ("trimtab_engine_switches_total", {"engine": "busy"}, 6),
    ("trimtab_engine_reports_total", {"engine": "busy"}, 3),
    ("trimtab_engine_lease_acknowledged", {"engine": "busy"}, 1),
    ("trimtab_engine_lease_version", {"engine": "idle"}, None),
    ("trimtab_engine_dropped_rows_total", {"engine": "busy", "reason": "negative_count"}, 7),
    ("trimtab_engine_refused_total", {"engine": "busy", "reason": "launch_id_missing"}, 1),
]


@pytest.mark.parametrize(("sample", "labels", "value"), EXPECTED)
def test_the_figures_are_those_of_the_engines(
    scraped: Scrape, sample: str, labels: dict[str, str], value: float | None
) -> None:
    assert scraped.value(sample, **labels) == (value if value is None else pytest.approx(value))


def test_what_grows_or_ages_is_there_too(scraped: Scrape) -> None:
    for sample in ("trimtab_engine_decisions_total", "trimtab_engine_leases_total", "trimtab_engine_lease_version"):
        value = scraped.value(sample, engine="busy")
        assert value is not None
        assert value >= 2, sample
    for sample in ("trimtab_engine_last_message_age_seconds", "trimtab_engine_lease_age_seconds"):
        value = scraped.value(sample, engine="busy")
        assert value is not None
        assert 0 <= value < 10, sample


def test_every_metric_says_what_it_means_and_what_to_do(scraped: Scrape) -> None:
    assert len(scraped.metrics) >= 20
    for name, metric in scraped.metrics.items():
        assert name.startswith("trimtab_"), name
        assert metric.type in ("gauge", "counter"), name
        assert len(re.findall(r"[.:;]", metric.documentation)) >= 2, f"{name}: no action in {metric.documentation!r}"


def test_metrics_can_be_switched_off() -> None:
    with DaemonProcess("--metrics-listen", "off") as daemon:
        assert daemon.started()["metrics"] == "off"
