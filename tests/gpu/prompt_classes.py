"""Real models: their acceptance comes from what they are asked, so classes of prompts take the place of phases."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from bench_engines import PROMPT_FILE
from load_file import Load, LoadError


def for_classes(load: Load, models: Path) -> Load:
    """The load with the classes of `prompts.json` in the place of its acceptances.

    The file has for each class a list of prompts as token ids. The fit of SGLang's table still wants probabilities:
    those that the load gives are dealt out to the classes in their order.
    """
    path = models / PROMPT_FILE
    try:
        classes = msgspec.convert(json.loads(path.read_text()), dict[str, list[list[int]]])
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise LoadError(f"{path}: {error}") from error
    if not classes or not all(classes.values()):
        raise LoadError(f"{path}: has no prompts, or a class without any")
    given = list(load.acceptance.values())
    acceptance = {name: given[min(i, len(given) - 1)] for i, name in enumerate(classes)}
    first = next(iter(classes))
    return msgspec.structs.replace(
        load,
        acceptance=acceptance,
        calibration=msgspec.structs.replace(load.calibration, acceptance=first),
        price=msgspec.structs.replace(load.price, acceptance=first),
    )
