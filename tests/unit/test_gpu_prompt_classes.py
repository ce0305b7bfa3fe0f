"""A load for a real model: classes of prompts in the place of acceptances."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import prompt_classes
import schedule
from load_file import LoadError, read_load

LOAD = read_load(Path(__file__).resolve().parents[1] / "gpu" / "load.toml")


def test_the_classes_of_the_models_prompts_are_what_cells_are_crossed_with(tmp_path: Path) -> None:
    (tmp_path / "prompts.json").write_text(json.dumps({"code": [[5, 6]], "prose": [[7, 8]]}))
    load = prompt_classes.for_classes(LOAD, tmp_path)
    assert load.labels == ("code", "prose")
    assert {cell.acceptance for cell in schedule.cells(load)} == {"code", "prose"}
    assert (load.calibration.acceptance, load.price.acceptance) == ("code", "code")
    assert load.hash != LOAD.hash


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, r"prompts\.json: No such file or directory; prompt_classes\.py makes it"),
        ('{"code": []}', "has no prompts, or a class without any"),
        ('{"code": ["text"]}', "Expected `array`, got `str`"),
        ("{", "prompts"),
    ],
)
def test_prompts_that_cannot_be_used_are_one_error(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "prompts.json").write_text(text)
    with pytest.raises(LoadError, match=words):
        prompt_classes.for_classes(LOAD, tmp_path)
