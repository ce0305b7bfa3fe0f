"""What does native plain cost on a GPU, against an engine without speculation and against warm and cold plain?

On a machine with an NVIDIA GPU, and SGLang with its needs in the folder SITE (0.5.16 was used), from the repository:

    PYTHONPATH=SITE python3 tests/gpu/plain.py --out "$OUT" --seconds 440

For each attention backend two engines start side by side (an 8B Llama shape with dummy weights: one without
speculation, one with EAGLE3, adaptive steps and this plugin), then each is measured while the other idles:

* the median step time at batch 1, 8, 32 and 128 in every mode, the modes in an order drawn anew for every pass;
* what a catch-up takes, by batch size and unread tokens;
* greedy outputs in every plain mode and without speculation: dummy weights make near-ties of everything, so the share
  of equal tokens says whether native plain is as near to the others as they are to each other;
* what native plain takes of memory and of the start (`facts`, `ready`).

$OUT gets results.json (also printed), rows.csv.gz and a log for each engine. Where something fails, `error` has the
traceback and the end of the engine's log. `--backends fa3` measures one backend only. To try the script out on the CPU
engine: `.venv-sglang/bin/python tests/gpu/plain.py --sizes cpu --backends intel_amx --out FOLDER`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dummy_models
import figures
from sizes import SIZES, Sizes

HERE = Path(__file__).resolve().parent
CODE = (HERE, HERE.parents[1] / "engine_plugin", HERE.parents[1] / "proto")
LOG_LINES = 80


class Run:
    """One engine in a process of its own.

    Attributes:
        name: For example `fa3-eagle3`.
        result: What came of it.
    """

    def __init__(self, backend: str, speculation: bool, work: Path, out: Path) -> None:
        self.name = f"{backend}-{'eagle3' if speculation else 'alone'}"
        self.result: dict[str, Any] = {}
        self._backend, self._speculation = backend, speculation
        self._folder, self._log = work / self.name, out / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, sizes_name: str, models: Path) -> None:
        """Start the engine; it is ready when `ready.json` is there."""
        self._folder.mkdir(parents=True)
        (self._folder / "mode").write_text("")
        install_forcer(self._folder)
        command = [sys.executable, str(HERE / "measured_engine.py"), sizes_name, self._backend, str(models)]
        command += [str(self._folder), *(["speculation"] if self._speculation else [])]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=self._environment(SIZES[sizes_name]), stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def wait_for(self, name: str, deadline: float) -> bool:
        """Whether the file came before the deadline and the end of the process."""
        assert self._process is not None
        while not (self._folder / name).exists():
            if time.monotonic() > deadline or self._process.poll() is not None:
                return (self._folder / name).exists()
            time.sleep(0.1)
        return True

    def measure(self, deadline: float) -> None:
        """Give the word, and wait until everything is measured."""
        (self._folder / "go").write_text("")
        self.wait_for("measured.json", deadline)

    def end(self) -> None:
        """Take in what is there, and end the whole process group."""
        for name in ("facts", "ready", "measured"):
            file = self._folder / f"{name}.json"
            if file.exists():
                self.result[name] = json.loads(file.read_text())
        for name in ("error", "fuse"):
            if (self._folder / name).exists():
                self.result[name] = (self._folder / name).read_text()
        if "measured" not in self.result and self._log.exists():
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES:])
            self.result["error"] = f"{self.result.get('error', 'no result in time')}\n{tail}"
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def rows(self) -> list[dict[str, str]]:
        """Every decode step."""
        file = self._folder / "rows.csv"
        return list(csv.DictReader(file.open())) if file.exists() else []

    def _environment(self, sizes: Sizes) -> dict[str, str]:
        path = [str(self._folder), *map(str, CODE), os.environ.get("PYTHONPATH", "")]
        return os.environ | {
            "PYTHONPATH": os.pathsep.join(path),
            "TRIMTAB_GPU_FOLDER": str(self._folder),
            "SGLANG_PLUGINS": ",".join(sizes.plugins),
            "PYTHONUNBUFFERED": "1",
        }


def install_forcer(folder: Path) -> None:
    """An entry point of SGLang's plugins that lies on the path of one run alone."""
    info = folder / "trimtab_gpu-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trimtab_gpu\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\ntrimtab_gpu = mode_forcer:register\n")


def measure_backend(backend: str, sizes_name: str, models: Path, out: Path, work: Path, deadline: float) -> Any:
    """Both engines of a backend; whatever fails is in the result."""
    alone, speculating = runs = [Run(backend, speculation, work, out) for speculation in (False, True)]
    try:
        for run in runs:
            run.start(sizes_name, models)
        ready = [run for run in runs if run.wait_for("ready.json", deadline)]
        for run in ready:
            run.measure(deadline)
    finally:
        for run in runs:
            run.end()
    outputs: dict[str, Any] = {}
    for run in runs:
        measured, rows = run.result.pop("measured", {}), run.rows()
        outputs |= measured.get("outputs", {})
        run.result["step_times"] = figures.step_times(measured.get("windows", ()), rows)
        run.result["catch_ups"] = figures.catch_ups(rows)
        with gzip.open(out / "rows.csv.gz", "at") as file:
            csv.writer(file).writerows([run.name, *row.values()] for row in rows)
    return {
        "engines": {run.name: run.result for run in runs},
        "over_alone": figures.over_alone(alone.result["step_times"], speculating.result["step_times"]),
        "equal_outputs": figures.equal_outputs(outputs),
    }


def main() -> int:
    """Start and measure everything within the time; exit status 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=".", help="folder for the results")
    parser.add_argument("--seconds", type=float, default=440.0, help="end by then, whatever is missing")
    parser.add_argument("--backends", default="fa3,triton")
    parser.add_argument("--sizes", default="card", choices=SIZES)
    options = parser.parse_args()
    deadline, out = time.monotonic() + options.seconds, Path(options.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        models, work = Path(temporary) / "models", Path(temporary) / "work"
        dummy_models.make(models, SIZES[options.sizes].shape)
        for backend in options.backends.split(","):
            results[backend] = measure_backend(backend, options.sizes, models, out, work, deadline)
            (out / "results.json").write_text(json.dumps(results, indent=1))
            print(json.dumps(results[backend], indent=1), flush=True)
    engines = {name: engine for found in results.values() for name, engine in found["engines"].items()}
    failed = [name for name, engine in engines.items() if {"error", "fuse"} & engine.keys()]
    print(f"failed: {', '.join(failed) or 'none'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
