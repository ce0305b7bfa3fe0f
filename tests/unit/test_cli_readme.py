"""The README says what there is: its lists are held against the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from prometheus_client import CollectorRegistry, generate_latest

from support.admin_messages import controller, engine
from trimtab.cli import main, overview, views
from trimtab.config import SECTIONS, Settings, load_tables, make_settings
from trimtab.replay.counterfactual import result as replay_result
from trimtab.replay.journals import verify
from trimtab.server.journal_metrics import JournalCollector
from trimtab.server.journaling import run_facts
from trimtab.server.metrics import FleetCollector, Sample
from trimtab.server.scribe import Profiles, Scribe
from trimtab.store.journal_file import Bounds, JournalFile
from trimtab.store.writing import JournalWriter

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    """The text under this heading."""
    return README.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def failing_scribe(folder: Path) -> Scribe:
    """One whose journal has every figure."""
    writer = JournalWriter(JournalFile(folder, Bounds(), run_facts(Settings()), {}))
    writer.figures.oldest_wall_ns = 0
    writer.figures.dropped["queue_full"] = writer.figures.errors["io"] = 1
    return Scribe(writer, Profiles())


def test_every_command_is_listed() -> None:
    group: Any = typer.main.get_command(main.app)
    assert set(re.findall(r"^\| `trimtab ([a-z]+)", section("Commands"), re.MULTILINE)) == set(group.commands)


@pytest.mark.parametrize(
    "view",
    [
        views.EngineView, views.EngineDetail, views.PinView, views.LeaseView, views.BandView, views.ShadowView,
        overview.ControllerView, overview.StandingPinView, overview.StandingPolicyView, overview.CanaryView,
    ],
)  # fmt: skip
def test_every_key_of_the_json_output_is_listed(view: Any) -> None:
    missing = {key for key in view.__struct_fields__ if f"`{key}`" not in section("Commands")}
    assert missing == set()


@pytest.mark.parametrize(
    "data",
    [
        replay_result.ReplayVerdict, replay_result.EngineVerdict, verify.VerifyResult, verify.EngineVerdict,
        verify.Difference,
    ],
)  # fmt: skip
def test_every_key_of_a_replay_is_listed(data: Any) -> None:
    assert {key for key in data.__struct_fields__ if f"`{key}`" not in section("Replay")} == set()


def test_the_configuration_shown_is_complete_and_the_default(tmp_path: Path) -> None:
    (content,) = re.findall(r"```toml\n(.*?)```", section("Configuration"), re.DOTALL)
    path = tmp_path / "trimtabd.toml"
    path.write_text(content)
    tables = load_tables(path)
    assert make_settings(tables) == Settings()
    assert {name: set(table) for name, table in tables.items()} == {
        name: set(getattr(Settings(), name).__struct_fields__) for name in SECTIONS
    }


def test_every_metric_is_listed(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    registry.register(JournalCollector(lambda: failing_scribe(tmp_path)))
    registry.register(FleetCollector(lambda: [Sample(engine(), reports=1, decisions=1, leases=1)], controller))
    served = set(re.findall(r"^(trimtab_\w+)[{ ]", generate_latest(registry).decode(), re.MULTILINE))
    assert set(re.findall(r"`(trimtab_\w+)`", section("Metrics"))) == {
        name for name in served if not name.endswith("_created")
    }


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", README)) <= targets
