"""What does native plain cost on a GPU, against an engine without speculation and against warm and cold plain?

On a machine with an NVIDIA GPU, and SGLang with its needs in the folder SITE (0.5.16 was used), from the repository:

    PYTHONPATH=SITE python3 tests/gpu/plain.py --out "$OUT" --starts 3 --seconds 540

Every start begins two engines side by side for each attention backend (an 8B Llama shape with dummy weights: one
without speculation, one with EAGLE3, adaptive steps and this plugin). They are measured in turns, while the others
idle: the step time at batch 1, 8, 32 and 128 in every mode. Every window begins with the same requests afresh, so that
all modes are measured at the same lengths: reading the KV cache takes a third of a step at batch 128 and a thousand
tokens. The ratios and their intervals are over engine starts, which differ by more than windows do.

$OUT gets plain.jsonl, a line for each engine start: step times, catch-ups, what native plain takes of memory and of
the start. Run again with `--earlier FILE`, its starts count as well. The last thing printed is the report. Where
something fails, `error` in the line has the end of the engine's log. `--profile` adds kernels.json: what the GPU does
in a step, by kernel, in native plain and without speculation, with the first backend.

To try the script out on the CPU engine:
`.venv-sglang/bin/python tests/gpu/plain.py --sizes cpu --backends intel_amx --out FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dummy_models
import figures
from engine_process import EngineEndedError
from plain_engine import PlainEngine
from sizes import SIZES, Sizes

RESULTS = "plain.jsonl"
# Less is not enough for a start and its measurement.
LEAST_S = 150.0
PROFILED_BATCHES = (1, 128)


def measure_start(
    number: int, backends: Sequence[str], sizes: Sizes, models: Path, out: Path, profile: bool
) -> list[dict[str, Any]]:
    """Start all engines, measure them in turns; a record for each."""
    with tempfile.TemporaryDirectory() as work, ExitStack() as stack:
        place = sizes, models, Path(work), out
        engines = [
            stack.enter_context(PlainEngine(f"{number}-{backend}", backend, speculation, *place))
            for backend in backends
            for speculation in (False, True)
        ]
        alive = [engine for engine in engines if engine.ready()]
        order = random.Random(number)
        for turn in range(sizes.passes):
            for engine in order.sample(alive, len(alive)):
                measure_turn(engine, sizes, turn, order)
        if profile:
            # An export takes ten seconds, and the backends do not differ in what we add.
            profiled = [engine for engine in alive if engine.backend == backends[0]]
            found = {engine.name: engine.profile(PROFILED_BATCHES, sizes.most_tokens) for engine in profiled}
            (out / "kernels.json").write_text(json.dumps(found, indent=1))
        return [{"start": number, **engine.record()} for engine in engines]


def measure_turn(engine: PlainEngine, sizes: Sizes, turn: int, order: random.Random) -> None:
    """Every mode at every batch size; the modes besides native plain in the first turn alone."""
    for batch in sizes.batches:
        modes = engine.modes if turn == 0 else engine.modes[:1]
        for mode in order.sample(modes, len(modes)):
            try:
                engine.run(batch, mode, sizes.most_tokens, seed=batch)
            except EngineEndedError as error:
                engine.error = str(error)
                return


def report(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all starts say together, by backend."""
    return {
        backend: figures.over_alone([record for record in records if record["backend"] == backend])
        for backend in sorted({record["backend"] for record in records})
    }


def main() -> int:
    """Start and measure within the time; exit status 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=".", help="folder for the results")
    parser.add_argument("--earlier", nargs="*", default=[], help="results of earlier runs, which count as well")
    parser.add_argument("--starts", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=540.0, help="begin no start that would last longer")
    parser.add_argument("--backends", default="fa3,triton")
    parser.add_argument("--profile", action="store_true", help="say what the GPU does, after the first start")
    parser.add_argument("--sizes", default="card", choices=SIZES)
    options = parser.parse_args()
    began, out, sizes = time.monotonic(), Path(options.out).resolve(), SIZES[options.sizes]
    out.mkdir(parents=True, exist_ok=True)
    records = [json.loads(line) for file in options.earlier for line in Path(file).read_text().splitlines()]
    with tempfile.TemporaryDirectory() as models, (out / RESULTS).open("a") as file:
        dummy_models.make(Path(models), sizes.shape)
        for number in range(options.starts):
            left = options.seconds - (time.monotonic() - began)
            if number and left < max(LEAST_S, (time.monotonic() - began) / number):
                print(f"time is over after {number} of {options.starts} starts", flush=True)
                break
            found = measure_start(
                number, options.backends.split(","), sizes, Path(models), out, options.profile and not number
            )
            records += found
            file.writelines(json.dumps(record) + "\n" for record in found)
            file.flush()
    print(json.dumps(report(records), indent=1), flush=True)
    failed = [f"{record['engine']}: {record['error'][-2000:]}" for record in records if record["error"]]
    print("failed: " + ("\n".join(failed) or "none"), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
