"""SGLang calls the plugin's entry point in every process of a server: nothing there may stop one."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.metadata import entry_points

import pytest

from support.hooked_engine import UNLINKED, EmbeddedEngine
from trimtab_sglang import plugin
from trimtab_sglang.facts import Ranks
from trimtab_sglang.plugin import Plugin
from trimtab_sglang.settings import PluginMode


def test_sglang_finds_the_entry_point() -> None:
    (entry,) = entry_points(group="sglang.srt.plugins", name="trimtab")
    assert entry.load() is plugin.register


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("off", []),
        ("on", ["trimtab stays off: TRIMTAB_MODE is 'on'; it takes off, observe or act"]),
        # The tests' environment has no SGLang: importing it fails.
        ("act", ["trimtab stays off"]),
    ],
)
def test_the_entry_point_never_raises(
    mode: str, said: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRIMTAB_MODE", mode)
    plugin.register()
    assert [record.getMessage() for record in caplog.records] == said


def test_a_plugin_acts_once_it_has_seen_a_scheduler_that_it_may_act_beside() -> None:
    made: list[bool] = []
    engine = EmbeddedEngine(before_start=lambda plugin: made.append(plugin.acts))
    assert made == [False]
    assert engine.plugin.acts
    assert not EmbeddedEngine(replace(UNLINKED, mode=PluginMode.OBSERVE)).plugin.acts


@pytest.mark.parametrize(("ranks", "linked"), [(Ranks(), True), (Ranks(tp_rank=1), False), (Ranks(pp_rank=1), False)])
def test_the_link_starts_with_the_first_requests_and_only_on_the_rank_that_speaks(ranks: Ranks, linked: bool) -> None:
    with EmbeddedEngine(linked=True) as engine:
        assert engine.plugin.facts is not None
        engine.plugin.facts = replace(engine.plugin.facts, ranks=ranks)
        assert engine.plugin.link is None
        engine.idle()
        engine.idle()
        assert (engine.plugin.link is not None) == linked


@pytest.mark.parametrize(
    ("server", "draft_tokens", "steps"),
    [
        ({}, 1, 0),
        ({}, 4, 3),
        ({}, 0, 0),
        ({}, 999, 64),
        ({"speculative_eagle_topk": 1}, 4, 3),
        ({"speculative_eagle_topk": 4, "speculative_num_steps": 3}, 16, 3),
        ({"speculative_eagle_topk": 4, "speculative_num_steps": None}, 16, 0),
    ],
)
def test_steps_from_the_width_of_a_verify(server: dict[str, int | None], draft_tokens: int, steps: int) -> None:
    made: Plugin = EmbeddedEngine().plugin
    assert made.facts is not None
    made.facts = replace(made.facts, server=server)
    assert made.steps_of(draft_tokens) == steps


def test_the_digest_is_that_of_the_code() -> None:
    assert re.fullmatch("[0-9a-f]{16}", plugin.digest())
    assert plugin.digest() == plugin.digest()
