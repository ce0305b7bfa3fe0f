"""The process of one engine with the real model: measures cell after cell, and leaves each result as it comes.

    python real_cells.py ENGINE SIZES BACKEND MODELS FOLDER OUT SECONDS CELL...

OUT gets CELL.json for each cell of the engine, or CELL.error with a traceback.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import real_load
import real_outputs
import real_return
from real_engine import RealEngine
from real_sizes import KINDS, SIZES, RealSizes

Measure = Callable[[RealEngine], dict[str, Any]]


def cells(sizes: RealSizes) -> dict[str, dict[str, Measure]]:
    """What is measured on which engine, by names; together they name a cell: `ours.load`."""
    found: dict[str, dict[str, Measure]] = {
        kind: {"greedy": real_outputs.greedy, "sampled": real_outputs.sampled} for kind in KINDS
    }
    found["ours"] |= {f"return-{n}": partial(real_return.after, plain=n) for n in sizes.plain_tokens}
    found["ours"]["catch-up"] = real_return.catch_up
    found["ours"]["load"] = real_load.swings
    found["ours+cached"] = {"prefix": real_return.prefix}
    return found | {f"{kind}+deterministic": {"greedy": real_outputs.greedy} for kind in KINDS}


def measure(
    engine_name: str, sizes: RealSizes, paths: Mapping[str, Path], backend: str, seconds: float, names: Sequence[str]
) -> None:
    """Start the engine and measure these cells; it is stopped after so many seconds."""
    ends_at = time.monotonic() + seconds
    engine = RealEngine(engine_name, sizes, backend, paths["models"], paths["folder"], ends_at)
    for name in names:
        began = time.monotonic()
        try:
            result = cells(sizes)[engine_name][name](engine)
        except Exception:  # noqa: BLE001 - the next cell may work
            _leave(paths["out"] / f"{engine_name}.{name}.error", traceback.format_exc())
            continue
        facts = paths["folder"] / "facts.json"
        about = {
            "engine": engine_name, "cell": name, "start_s": engine.start_s,
            "took_s": round(time.monotonic() - began, 1),
            "facts": json.loads(facts.read_text()) if facts.exists() else {}, **software(),
        }  # fmt: skip
        _leave(paths["out"] / f"{engine_name}.{name}.json", json.dumps({"about": about, **result}))
    engine.stop()


def software() -> dict[str, str]:
    """Versions, and the card."""
    import torch

    import sglang

    card = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    return {"sglang": sglang.__version__, "torch": torch.__version__, "card": card}


def _leave(path: Path, text: str) -> None:
    """All of it or nothing."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.rename(path)


def main(arguments: Sequence[str]) -> None:
    """Measure; whatever stops the engine itself is left in ENGINE.error."""
    engine, sizes, backend, models, folder, out, seconds, *names = arguments
    paths = {"models": Path(models), "folder": Path(folder), "out": Path(out)}
    try:
        measure(engine, SIZES[sizes], paths, backend, float(seconds), names)
    except BaseException:
        _leave(paths["out"] / f"{engine}.error", traceback.format_exc())
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
