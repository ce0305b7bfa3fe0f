"""The example of a bar in one's own CI: the page's file is run as it stands, passes, and fails where it should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.token_world import MODES, TokenWorld, Wandering, random_load, write_run
from trimtab.errors import DataError, PolicyError
from trimtab.replay import Comparison, compare

PAGE = Path(__file__).parents[2] / "runbooks" / "policy-in-ci.md"
FILE = re.compile(r"^```python (\S+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ci") / "traces"
    folder.mkdir()
    world = TokenWorld(random_load(4, stretches=6, largest=32, tokens=6_000), 4)
    return write_run(folder / "peak.parquet", world, world.run(Wandering(MODES, 4), 4).rows)


def run_example(trace: Path, change: tuple[str, str] = ("", "")) -> subprocess.CompletedProcess[str]:
    ((name, content),) = FILE.findall(PAGE.read_text())
    path = trace.parents[1] / name
    path.write_text(content.replace(*change) if change[0] else content)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=100, check=False)


def test_the_example_passes_as_it_stands(trace: Path) -> None:
    done = run_example(trace)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout


def test_a_policy_that_loses_fails_and_the_failure_says_how_much(trace: Path) -> None:
    done = run_example(trace, ('"goodput:margin=0.01"', '"fixed:7"'))
    assert done.returncode == 1
    assert re.search(
        r"fixed:7 makes [\d,]+ tokens a second on \S+peak\.parquet where goodput makes [\d,]+: -\d", done.stdout
    )


def test_every_command_of_the_page_is_the_one_that_the_test_types() -> None:
    assert re.findall(r"^\$ (.*)", PAGE.read_text(), re.MULTILINE) == ["pytest -q test_policy.py"]


def test_a_comparison_holds_both_and_their_difference(trace: Path) -> None:
    found = compare("fixed:7", trace, against="fixed:1")
    assert isinstance(found, Comparison)
    assert (found.policy.policy, found.against.policy) == ("fixed:7", "fixed:1")
    assert found.gain.value == pytest.approx(found.policy.tokens_per_s / found.against.tokens_per_s)
    assert found.gain.low < found.gain.value < found.gain.high
    assert found.lost == pytest.approx(max(0.0, 1 - found.gain.value))
    assert found.lost_at_most > found.lost
    assert compare("fixed:7", trace, against="fixed:1") == found


def test_without_another_policy_it_is_what_ran(trace: Path) -> None:
    found = compare("fixed:3", trace)
    assert found.against.policy == "as recorded"
    assert found.gain == found.policy.against_recorded


def test_what_cannot_be_compared_is_said(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="unknown policy 'best'"):
        compare("best", trace)
    with pytest.raises(DataError, match="cannot be read"):
        compare("goodput", tmp_path / "nowhere.parquet")
