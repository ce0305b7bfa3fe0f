"""One engine of `plain.py`: its modes are forced, its steps are written down."""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import figures
import kernel_times
from engine_process import VOCABULARY, EngineEndedError, EngineProcess
from plugin_path import FOLDER, install
from sizes import PROMPT_TOKENS, Sizes, engine_arguments

HERE = Path(__file__).resolve().parent
CODE = (HERE, HERE.parents[1] / "engine_plugin", HERE.parents[1] / "proto")
# Native plain first: it is what is measured in every turn.
MODES = ("plain_native", "plain_warm", "plain_cold", "speculate(3)")
# The forcer looks for a new word every 5 ms, and writes rows as often.
ADOPTION_S = 0.1
PROFILED_STEPS = 24


class PlainEngine:
    """An engine under measurement; ends with the `with` block.

    Args:
        start: Says which start this is.
        backend: Of attention.
        speculation: Whether it speculates, with the plugin acting; otherwise it only watches.
        sizes: What is measured.
        models: Where target/ and draft/ are.
        work: For what the plugin reads and writes.
        out: For its log.

    Attributes:
        name: For example `0-fa3-eagle3`.
        backend: Of attention.
        modes: What it is measured in; one empty word without speculation.
        error: What went wrong, if anything did.
    """

    def __init__(
        self, start: str, backend: str, speculation: bool, sizes: Sizes, models: Path, work: Path, out: Path
    ) -> None:
        self.name = f"{start}-{'eagle3' if speculation else figures.ALONE}"
        self.modes = MODES if speculation else ("",)
        self.error = ""
        self.backend = backend
        self._speculation, self._start_s = speculation, 0.0
        self._folder = work / self.name
        self._folder.mkdir()
        self._windows: list[dict[str, Any]] = []
        self._mode("")
        # In the place of Trimtab's own entry point.
        install(self._folder, {"trimtab_gpu": "mode_forcer:register"})
        path = [str(self._folder), *map(str, CODE), os.environ.get("PYTHONPATH", "")]
        environment = {
            "PYTHONPATH": os.pathsep.join(path), FOLDER: str(self._folder), VOCABULARY: str(sizes.token_limit),
            "SGLANG_PLUGINS": ",".join(sizes.plugins), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        self._process = EngineProcess(
            self.name, out, engine_arguments(sizes, backend, models, speculation), environment
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.stop()

    def ready(self) -> bool:
        """Wait until it serves; False if it never will."""
        try:
            self._start_s = round(self._process.ready(), 1)
        except EngineEndedError as error:
            self.error = str(error)
        return not self.error

    def run(self, batch: int, mode: str, tokens: int, seed: int) -> None:
        """So many tokens of so many requests, all in this mode; the same seed gives the same requests."""
        self._mode(mode)
        began_ns = time.monotonic_ns()
        self._process.generate(batch, PROMPT_TOKENS, tokens, seed)
        self._windows.append({"batch": batch, "mode": mode, "from_ns": began_ns, "to_ns": time.monotonic_ns()})
        time.sleep(ADOPTION_S)

    def profile(self, batches: Sequence[int], tokens: int) -> dict[str, Any]:
        """What the GPU does in a step of native plain, or without speculation, by batch size."""
        found: dict[str, Any] = {}
        self._mode(self.modes[0])
        for batch in batches:
            folder = self._folder / f"profile-{batch}"
            try:
                self._process.profile(folder, PROFILED_STEPS, batch, PROMPT_TOKENS, tokens, seed=batch)
                found[f"batch {batch}"] = kernel_times.by_kernel(folder)
            except (EngineEndedError, ValueError) as error:
                found[f"batch {batch}"] = {"error": str(error)}
        return found

    def record(self) -> dict[str, Any]:
        """What was measured, and what native plain takes."""
        rows = self._folder / "rows.csv"
        read = list(csv.DictReader(rows.open())) if rows.exists() else []
        facts, fuse = self._folder / "facts.json", self._folder / "fuse"
        return {
            "engine": self.name, "backend": self.backend, "speculation": self._speculation, "start_s": self._start_s,
            "facts": json.loads(facts.read_text()) if facts.exists() else {},
            "step_times": figures.step_times(self._windows, read), "catch_ups": figures.catch_ups(read),
            "error": f"the plugin gave up: {fuse.read_text()}" if fuse.exists() else self.error,
        }  # fmt: skip

    def _mode(self, word: str) -> None:
        """Renamed over what was there, so that nobody reads half of it."""
        fresh = self._folder / "mode.new"
        fresh.write_text(word)
        fresh.rename(self._folder / "mode")
        time.sleep(ADOPTION_S)
