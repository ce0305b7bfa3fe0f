"""Every command of the runbooks is run, and does what its page says."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.console_blocks import commands_of
from support.runbook_operator import FILE_BLOCK, Operator
from trimtab.config import Settings, load_tables, make_settings

RUNBOOKS = Path(__file__).resolve().parents[2] / "runbooks"
# This page needs traces: test_replay_ci_example.py follows it.
ELSEWHERE = {RUNBOOKS / "policy-in-ci.md"}
PAGES = sorted({*RUNBOOKS.glob("procedures/*.md"), *RUNBOOKS.glob("[a-z]*.md")} - ELSEWHERE)
# The others begin with a daemon and an engine in place.
FROM_NOTHING = {"install-beside-a-server", "secure-tcp"}
HARM = "0.62 of the tokens of plain decoding over 2.1 s; drafting leases are refused for 5 s"
LINK = re.compile(r"\]\(([^)#:]+)\)")


@pytest.fixture
def operator() -> Iterator[Operator]:
    folder = Path(tempfile.mkdtemp(prefix="trimtab-"))
    with Operator(folder) as operator:
        yield operator
    shutil.rmtree(folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_the_page_does_what_the_page_says(operator: Operator, page: Path) -> None:
    if page.stem not in FROM_NOTHING:
        operator.start_daemon()
        operator.start_engine("llama-a", {"team": "chat"}, HARM if page.stem == "harmful-lease" else "")
    if page.stem == "controller-down":
        operator.stop_daemon()
    operator.follow(page)


def test_the_settings_on_the_page_are_the_defaults(tmp_path: Path) -> None:
    page = (RUNBOOKS / "procedures" / "install-beside-a-server.md").read_text()
    (content,) = [content for name, content in FILE_BLOCK.findall(page) if name == "trimtabd.toml"]
    path = tmp_path / "trimtabd.toml"
    path.write_text(content)
    assert make_settings(load_tables(path)) == Settings()


def test_the_index_lists_every_page_and_every_link_leads_somewhere() -> None:
    index = (RUNBOOKS / "README.md").read_text()
    assert {str(page.relative_to(RUNBOOKS)) for page in PAGES} <= set(LINK.findall(index))
    for page in [RUNBOOKS / "README.md", *PAGES]:
        broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
        assert broken == [], page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_commands_and_says_when_and_what_if_not(page: Path) -> None:
    text = page.read_text()
    assert "**When:**" in text
    assert "## If not" in text
    assert commands_of(page)
