"""Native plain with a real model: is the text the target's own, is the return as good as no leave, what is it worth?

    python3 tests/gpu/real_checks.py --models MODELS --out OUT --seconds 440

MODELS has target/ (`real_model.py`) and draft/ (`train_draft.py`). What is measured comes in cells, ENGINE.NAME:

    plain|stock|ours.greedy        greedy outputs: without speculation (with the gap between its two likeliest tokens),
                                   with SGLang's own speculation, and through 20 schedules of modes
    the same, +deterministic       in SGLang's deterministic mode
    plain|stock|ours.sampled       tokens at 20 places of 20,000 answers at temperature 0.8
    ours.return-50|500|2000        accepted drafts of 10 rounds after so many plain tokens, by request
    ours.catch-up                  what reading the missed tokens takes, by batch size
    ours+cached.prefix             the same of requests that reuse a prefix made plainly
    ours.load                      a load that swings between 2 and 256 requests, in three ways of decoding plainly

OUT keeps a file for each cell that is done; run again with the same OUT, what is missing is measured, and a failed cell
again. A run ends by --seconds, whatever is missing. `report.json` (also printed) is made of what there is. `--cells`
names cells to measure, `--report` measures nothing. In small on the CPU engine:

    .venv-sglang/bin/python tests/gpu/real_checks.py --sizes cpu --backend intel_amx --models MODELS --out OUT

There verifying is greedy at any temperature, so that `sampled` only tells that it runs.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from plugin_path import install
from real_cells import cells
from real_engine import PLUGINS, environment
from real_report import report
from real_sizes import SIZES

HERE = Path(__file__).resolve().parent
CODE = (HERE, HERE.parents[1] / "engine_plugin", HERE.parents[1] / "proto")
# Less is not enough for the start of an engine and one cell.
LEAST_S = 100.0


def missing(out: Path, sizes_name: str, wanted: Sequence[str]) -> dict[str, list[str]]:
    """Cells that are wanted and have no result yet, by engine."""
    found: dict[str, list[str]] = {}
    for engine, named in cells(SIZES[sizes_name]).items():
        names = [
            name
            for name in named
            if any(fnmatch.fnmatch(f"{engine}.{name}", pattern) for pattern in wanted)
            and not (out / f"{engine}.{name}.json").exists()
        ]
        if names:
            found[engine] = names
    return found


def run_engine(engine: str, names: Sequence[str], options: argparse.Namespace, deadline: float) -> None:
    """One engine and its cells, until the deadline."""
    sizes, out = SIZES[options.sizes], Path(options.out).resolve()
    for path in [out / f"{engine}.error", *(out / f"{engine}.{name}.error" for name in names)]:
        path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as temporary, (out / f"{engine}.log").open("wb") as log:
        folder = Path(temporary)
        install(folder, PLUGINS)
        command = [sys.executable, str(HERE / "real_cells.py"), engine, options.sizes, options.backend]
        command += [str(Path(options.models).resolve()), str(folder), str(out)]
        command += [str(round(deadline - time.monotonic())), *names]
        process = subprocess.Popen(
            command, env=environment(engine, sizes, folder, CODE), stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            (out / f"{engine}.error").write_text("the time was over")
        finally:
            if (folder / "fuse").exists():
                (out / f"{engine}.error").write_text(f"the plugin gave up: {(folder / 'fuse').read_text()}")
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The engine and all its processes."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, as far as time goes; 0 if nothing is missing any more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="models")
    parser.add_argument("--out", default=".")
    parser.add_argument("--seconds", type=float, default=440.0)
    parser.add_argument("--cells", default="*", help="names with wildcards, separated by commas: ours.*,plain.greedy")
    parser.add_argument("--backend", default="fa3", help="of attention")
    parser.add_argument("--sizes", choices=SIZES, default="card")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args(arguments)
    deadline, out = time.monotonic() + options.seconds, Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    wanted = options.cells.split(",")
    if not options.report:
        for engine, names in missing(out, options.sizes, wanted).items():
            if deadline - time.monotonic() < LEAST_S:
                break
            run_engine(engine, names, options, deadline)
    found = report(out)
    (out / "report.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))
    left = [f"{engine}.{name}" for engine, names in missing(out, options.sizes, wanted).items() for name in names]
    print(f"missing: {', '.join(left) or 'nothing'}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
