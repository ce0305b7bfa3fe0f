"""The committed protocol code is what the generator makes of the .proto files, and these keep the lint rules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.generate_proto import PROTO_ROOT, generate, generated_files


def test_the_committed_code_is_what_the_generator_makes(tmp_path: Path) -> None:
    generate(tmp_path)
    made, committed = generated_files(tmp_path), generated_files(PROTO_ROOT)

    assert made.keys() == committed.keys()
    stale = [name for name, text in made.items() if text != committed[name]]
    assert not stale, "the .proto files changed: run `make proto`"


def test_the_proto_files_pass_the_lint() -> None:
    buf = Path(sys.executable).with_name("buf")
    answer = subprocess.run([str(buf), "lint"], cwd=PROTO_ROOT, capture_output=True, text=True, timeout=60, check=False)

    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
