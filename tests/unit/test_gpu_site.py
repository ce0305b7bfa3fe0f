"""Packing for a GPU machine without a registry, and unpacking there, with made-up wheels."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SITE = Path(__file__).resolve().parents[1] / "gpu" / "site.sh"
TOOLS = ("unzip", "xz", "split", "sha256sum")
# In the place of a Python with pip: makes the wheels that are asked for.
FAKE_PYTHON = """#!/usr/bin/env python3
import pathlib, random, re, sys, zipfile
folder = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
wanted = pathlib.Path(sys.argv[sys.argv.index("--requirement") + 1])
folder.mkdir(parents=True)
for line in wanted.read_text().splitlines():
    if line.startswith("#"):
        continue
    name = re.match("[A-Za-z0-9_-]+", line)[0].replace("-", "_")
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as wheel:
        package = "sgl_kernel" if name == "sglang_kernel" else name
        wheel.writestr(f"{package}/__init__.py", f"name = {name!r}")
        if name == "sglang_kernel":
            wheel.writestr("sgl_kernel/flash_ops.abi3.so", random.Random(0).randbytes(2_500_000))
            wheel.writestr("sgl_kernel/sm100/kernels.so", "of another generation")
        if name == "sglang":
            wheel.writestr("sglang/weights", random.Random(1).randbytes(1_500_000))
"""

pytestmark = pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"needs {', '.join(TOOLS)}")


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SITE), *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    python = folder / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    done = run("pack", folder / "out", PYTHON=str(python), PART_MIB="1")
    assert done.returncode == 0, done.stderr
    return folder / "out"


def parts(packed: Path) -> list[Path]:
    return sorted(packed.glob("*/part"), key=lambda part: int(part.parent.name))


def test_parts_are_small_and_all_in_the_list(packed: Path) -> None:
    listed = [line.split() for line in (packed / "parts").read_text().splitlines()]
    assert [kind for kind, *_ in listed] == ["site", "site", "fa3", "fa3", "fa3"]
    assert [name for *_, name in listed] == [str(part.relative_to(packed)) for part in parts(packed)]
    assert all(part.stat().st_size <= 1 << 20 for part in parts(packed))


def test_what_was_packed_comes_out_again_in_whatever_calls(packed: Path, tmp_path: Path) -> None:
    first = run("unpack", tmp_path, *parts(packed)[3:])
    assert first.returncode != 0
    assert "site: 1/part is missing" in first.stdout
    second = run("unpack", tmp_path, *parts(packed)[:2])
    assert "site is there" in second.stdout
    assert "fa3: 3/part is missing" in second.stdout
    third = run("unpack", tmp_path, parts(packed)[2])
    assert third.returncode == 0, third.stdout + third.stderr
    assert (tmp_path / "sgl_kernel" / "flash_ops.abi3.so").stat().st_size == 2_500_000
    assert (tmp_path / "sglang" / "__init__.py").exists()
    assert (tmp_path / "structlog" / "__init__.py").exists()
    assert (tmp_path / "sitecustomize.py").exists()
    assert not (tmp_path / "sgl_kernel" / "sm100").exists()


def test_without_the_list_one_line_says_what_to_do(tmp_path: Path) -> None:
    done = run("unpack", tmp_path, tmp_path / "1" / "part")
    assert done.returncode == 2
    assert "PARTS_LIST=FILE" in done.stderr
