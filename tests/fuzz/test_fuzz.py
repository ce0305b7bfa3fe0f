"""Every fuzz target holds against many inputs: no crash, no hang, no growing memory. And the runner would notice."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.runner import HERE, names

EVERYDAY, LONG = 20_000, 1_000_000
# Half an hour on a quiet core: a program of so many bytes is some fifteen operations.
LONG_OPTIONS, LONG_S = ("--max-bytes", "512"), 10_000


def fuzz(target: str, keep: Path, *options: str, timeout_s: float = 110) -> subprocess.CompletedProcess[str]:
    """Run a target in a process of its own."""
    command = [sys.executable, str(HERE / "runner.py"), target, "--keep", str(keep), *options]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        timeout=timeout_s, cwd=keep,
    )  # fmt: skip


@pytest.mark.parametrize(
    "inputs", [EVERYDAY, pytest.param(LONG, marks=[pytest.mark.long, pytest.mark.timeout(LONG_S)])]
)
@pytest.mark.parametrize("target", names())
def test_a_target_holds_against_so_many_inputs(target: str, inputs: int, tmp_path: Path) -> None:
    options, timeout_s = ((), 110) if inputs == EVERYDAY else (LONG_OPTIONS, LONG_S - 100)
    done = fuzz(target, tmp_path, "--inputs", str(inputs), *options, timeout_s=timeout_s)
    print(*re.findall(r"#\d+\s+DONE.*|memory after.*|stat::.*", done.stdout), sep="\n")
    kept = [path.name for path in tmp_path.iterdir()]
    assert done.returncode == 0, f"{kept}\n{done.stdout[-4000:]}"
    assert f"stat::number_of_executed_units: {inputs}" in done.stdout
    assert kept == []


GRUDGE = """
INSTRUMENT = ("{prefix}_victim",)
from {prefix}_victim import take

def one_input(data):
    take(data)

def seeds():
    return [b"seed"]
"""
VICTIMS = {
    # Only a search that is led by coverage finds three bytes in a row so soon.
    "crash": """
def take(data):
    if data[:1] == b'F':
        if data[1:2] == b'U':
            if data[2:3] == b'Z':
                raise KeyError('found')
""",
    "hang": "def take(data):\n    while data[:1] == b'F':\n        pass\n",
    "leak": "kept = []\ndef take(data):\n    kept.append(bytearray(20_000))\n",
}


@pytest.mark.parametrize(
    ("harm", "words"),
    [("crash", "KeyError: 'found'"), ("hang", "ERROR: libFuzzer: timeout"), ("leak", "MemoryGrewError: from ")],
)
def test_the_runner_notices(harm: str, words: str, tmp_path: Path) -> None:
    (tmp_path / f"{harm}_victim.py").write_text(VICTIMS[harm])
    (tmp_path / f"{harm}_target.py").write_text(GRUDGE.format(prefix=harm))
    done = fuzz(harm, tmp_path, "--targets", str(tmp_path), "--inputs", "100000", "--seconds-an-input", "1")
    assert done.returncode != 0
    assert words in done.stdout, done.stdout[-2000:]
    assert any(path.name.startswith(("crash-", "timeout-")) for path in tmp_path.iterdir())


def test_an_unknown_target_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    done = fuzz("nothing", tmp_path)
    assert done.returncode == 2
    assert "there is no target 'nothing': known are " in done.stdout
    assert "wire" in done.stdout
