"""The interaction scripts: the plugin's machine and the controller's, word for word.

A script is a text file beside this one. Each step is a command, a line of four dashes, and exactly what happened;
blank lines lie between steps, lines that begin with # are for people. `pytest tests/interaction --rewrite-scripts`
writes down what happens now; read the difference before you keep it. Commands: `support/two_machines.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.two_machines import Scene

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
STEP = re.compile(r"^(?P<command>[^#\n].*)\n----\n(?P<output>(?:.+\n)*)", re.MULTILINE)


@dataclass(frozen=True)
class Played:
    """A script as it stands, and as it went."""

    text: str
    now: str


def play(text: str) -> Played:
    """Carry out every step of the script, in one scene."""
    scene = Scene()

    def step(found: re.Match[str]) -> str:
        output = "".join(f"{line}\n" for line in scene.do(found["command"]))
        return f"{found['command']}\n----\n{output}"

    return Played(text, STEP.sub(step, text))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_happens_is_what_the_script_says(path: Path, request: pytest.FixtureRequest) -> None:
    played = play(path.read_text())
    if request.config.getoption("--rewrite-scripts", default=False):
        path.write_text(played.now)
    else:
        assert played.now == played.text


def test_a_script_that_says_something_else_is_noticed() -> None:
    text = "engine start\n----\n  0.000 runs away\n\nrun 100ms\n----\n"
    played = play(text)
    assert played.now != text
    assert "runs 3 steps, stock" in played.now


def test_every_step_of_a_script_is_played() -> None:
    for path in SCRIPTS:
        text = path.read_text()
        assert len(STEP.findall(text)) == text.count("\n----\n"), path.name
