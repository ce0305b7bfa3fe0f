"""Real models: their acceptance comes from what they are asked, so classes of prompts take the place of phases.

    python tests/gpu/prompt_classes.py MODELS [--count 64] [--length 64]

writes MODELS/prompts.json, with prompts of every kind in `real_prompts.py`, by the tokenizer of MODELS/target.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench_engines import PROMPT_FILE
from load_file import Load, LoadError
from real_prompts import CHECKING_SEED, KINDS, Prompter


def for_classes(load: Load, models: Path) -> Load:
    """The load with the classes of `prompts.json` in the place of its acceptances.

    The file has for each class a list of prompts as token ids. The fit of SGLang's table still wants probabilities:
    those that the load gives are dealt out to the classes in their order.
    """
    path = models / PROMPT_FILE
    try:
        classes = msgspec.convert(json.loads(path.read_text()), dict[str, list[list[int]]])
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}; prompt_classes.py makes it") from error
    except (ValueError, msgspec.ValidationError) as error:
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the prompts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("--count", type=int, default=64, help="prompts of each kind")
    parser.add_argument("--length", type=int, default=64, help="tokens of each")
    options = parser.parse_args(arguments)
    prompter = Prompter(options.models / "target")
    found = {kind: prompter.prompts(kind, options.count, CHECKING_SEED, options.length) for kind in KINDS}
    (options.models / PROMPT_FILE).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
