"""The process of one measured engine: starts it, waits for the word, runs every mode at every batch size.

    python measured_engine.py SIZES BACKEND MODELS FOLDER [speculation]

FOLDER gets `ready.json`, then, once `go` is there, `measured.json`; or `error` with a traceback. What ran when is told
by windows on the clock of the rows that `mode_forcer` writes beside.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sizes import PROMPT_TOKENS, SIZES, Sizes, engine_arguments

PLAIN = ("plain_native", "plain_warm", "plain_cold")
MODES = (*PLAIN, "speculate(3)")
PASSES, SETTLE_S = 2, 0.15
COMPARED_PROMPTS, COMPARED_TOKENS = 8, 64
LARGE_BATCH = 64


class MeasuredEngine:
    """An engine under measurement.

    Args:
        sizes: What to measure.
        folder: What the process shares with whoever started it.
        modes: Modes to run; a single empty one without speculation.
        arguments: Of the engine.
    """

    def __init__(self, sizes: Sizes, folder: Path, modes: Sequence[str], arguments: dict[str, Any]) -> None:
        import sglang

        self._sizes, self._folder, self._modes = sizes, folder, modes
        self._random = random.Random(0)
        began = time.monotonic()
        self._engine = sglang.Engine(**arguments)
        self._write("ready.json", {"start_s": round(time.monotonic() - began, 1)})

    def measure(self) -> None:
        """Wait for the word, measure everything, leave the results."""
        while not (self._folder / "go").exists():
            time.sleep(0.1)
        compared = [mode for mode in self._modes if mode in ("", *PLAIN)]
        outputs = {mode or "alone": self._outputs(mode) for mode in compared}
        windows = [window for batch in self._sizes.batches for window in self._measure_batch(batch)]
        self._write("measured.json", {"outputs": outputs, "windows": windows})
        self._engine.shutdown()

    def _outputs(self, mode: str) -> list[list[int]]:
        self._run_mode(mode)
        answers = self._generate(self._prompts(random.Random(1), COMPARED_PROMPTS), COMPARED_TOKENS)
        return [answer["output_ids"] for answer in answers]

    def _measure_batch(self, batch: int) -> list[dict[str, Any]]:
        """Every mode at this batch size, in a fresh order each pass."""
        self._run_mode(self._modes[0])
        prompts = self._prompts(self._random, batch)
        client = threading.Thread(target=self._generate, args=(prompts, self._sizes.most_tokens), daemon=True)
        client.start()
        self._wait_for_batch(batch)
        stay_s = self._sizes.stay_s * (2 if batch >= LARGE_BATCH else 1)
        order = [mode for _ in range(PASSES) for mode in self._random.sample(self._modes, len(self._modes))]
        windows = [{"batch": batch, "mode": mode, **self._stay(mode, stay_s)} for mode in order]
        self._engine.tokenizer_manager.abort_request(abort_all=True)
        client.join(timeout=30)
        return windows

    def _stay(self, mode: str, stay_s: float) -> dict[str, int]:
        self._run_mode(mode)
        time.sleep(SETTLE_S)
        began_ns = time.monotonic_ns()
        time.sleep(stay_s)
        return {"from_ns": began_ns, "to_ns": time.monotonic_ns()}

    def _prompts(self, source: random.Random, count: int) -> list[list[int]]:
        return [[source.randrange(3, self._sizes.token_limit) for _ in range(PROMPT_TOKENS)] for _ in range(count)]

    def _generate(self, prompts: list[list[int]], tokens: int) -> Any:
        parameters = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        return self._engine.generate(input_ids=prompts, sampling_params=[parameters] * len(prompts))

    def _wait_for_batch(self, batch: int, within_s: float = 20.0) -> None:
        deadline, rows = time.monotonic() + within_s, self._folder / "rows.csv"
        while time.monotonic() < deadline:
            time.sleep(0.1)
            last = rows.read_text().splitlines()[-6:]
            if len(last) == 6 and all(line.split(",")[3] == str(batch) for line in last):
                return
        raise TimeoutError(f"batch {batch} did not fill up within {within_s:g} s")

    def _run_mode(self, mode: str) -> None:
        self._write("mode", mode)

    def _write(self, name: str, value: object) -> None:
        """Renamed over what was there, so that nobody reads half of it."""
        fresh = self._folder / f"{name}.new"
        fresh.write_text(value if isinstance(value, str) else json.dumps(value))
        fresh.rename(self._folder / name)


def main(arguments: Sequence[str]) -> None:
    """Measure one engine; whatever goes wrong is left in `error`."""
    name, backend, models, folder, *speculation = arguments
    sizes = SIZES[name]
    try:
        made = engine_arguments(sizes, backend, Path(models), bool(speculation))
        MeasuredEngine(sizes, Path(folder), MODES if speculation else ("",), made).measure()
    except BaseException:
        (Path(folder) / "error").write_text(traceback.format_exc())
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
