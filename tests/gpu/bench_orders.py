"""How the harness and the plugin in the engine's scheduler talk: through a folder.

| file | who writes | what |
|---|---|---|
| `settings.json` | harness, at first | `probabilities` by phase and depth (none: the model's own acceptance), `seed` |
| `phase` | harness | 8 bytes, mapped into memory: the number of the phase; read at every launch |
| `order.json` | harness | one order with a `number`; looked for 20 times a second |
| `answer.json` | plugin | the `number` of the last order that was carried out, and `problem` |
| `filled` | plugin | there once as many requests run at once as the last `record` asked for; CLOCK_MONOTONIC in ns |
| `engine.json` | plugin | version, device and memory, once the scheduler is complete |
| `steps.npz` | plugin | what was recorded, on the order `write` |
"""

from __future__ import annotations

import json
import mmap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench_plugin import StockTables
    from step_recorder import StepRecorder

FOLDER = "TRIMTAB_BENCH_FOLDER"
# Often enough for us, and nothing that a scheduler notices.
LOOK_EVERY_S = 0.05
WORD_BYTES = 8


class OrderError(Exception):
    """The engine did not carry out an order."""


def write_whole(path: Path, text: str) -> None:
    """Renamed over what was there, so that nobody reads half of it."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(text)
    fresh.rename(path)


class Phase:
    """The number of the phase, shared by mapping a file."""

    def __init__(self, folder: Path) -> None:
        path = folder / "phase"
        if not path.exists():
            path.write_bytes(bytes(WORD_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), WORD_BYTES)
        self._words = memoryview(self._map).cast("q")

    def get(self) -> int:
        """The present one."""
        return self._words[0]

    def set(self, number: int) -> None:
        """From the next launch on."""
        self._words[0] = number


class Desk:
    """The engine's side."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._settings: dict[str, Any] = json.loads((folder / "settings.json").read_text())
        self.phase = Phase(folder).get

    def probabilities(self) -> list[list[float]]:
        """By phase and depth; empty for a model with an acceptance of its own."""
        return [list(map(float, phase)) for phase in self._settings["probabilities"]]

    def seed(self) -> int:
        """Of everything drawn."""
        return int(self._settings["seed"])

    def say_engine(self, **facts: Any) -> None:
        """What the engine is."""
        write_whole(self._folder / "engine.json", json.dumps(facts))

    def serve(self, recorder: StepRecorder, tables: StockTables) -> None:
        """Look for orders, on a thread of its own, for ever."""
        threading.Thread(target=self._serve, args=(recorder, tables), name="bench-orders", daemon=True).start()

    def _serve(self, recorder: StepRecorder, tables: StockTables) -> None:
        done, filled = 0, 0
        order_path = self._folder / "order.json"
        while True:
            time.sleep(LOOK_EVERY_S)
            if recorder.filled_ns != filled:
                filled = recorder.filled_ns
                if filled:
                    write_whole(self._folder / "filled", str(filled))
            if not order_path.exists():
                continue
            order = json.loads(order_path.read_text())
            if order["number"] != done:
                done = order["number"]
                problem = self._obey(order, recorder, tables)
                write_whole(self._folder / "answer.json", json.dumps({"number": done, "problem": problem}))

    def _obey(self, order: dict[str, Any], recorder: StepRecorder, tables: StockTables) -> str:
        try:
            match order["do"]:
                case "record":
                    (self._folder / "filled").unlink(missing_ok=True)
                    recorder.begin(order["requests"])
                case "write":
                    recorder.write(self._folder / "steps.npz")
                case "table":
                    return tables.use(order["path"])
        except Exception as error:  # noqa: BLE001 - the harness decides what becomes of it
            return f"{type(error).__name__}: {error}"
        return ""


class Orders:
    """The harness's side.

    Args:
        folder: Of one engine.
        probabilities: By phase and depth.
        seed: Of everything drawn.
    """

    def __init__(self, folder: Path, probabilities: list[list[float]], seed: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "settings.json", json.dumps({"probabilities": probabilities, "seed": seed}))
        self.phase = Phase(folder)
        self._number = 0

    @property
    def steps_path(self) -> Path:
        """Where `write` leaves what was recorded."""
        return self.folder / "steps.npz"

    def engine(self) -> dict[str, Any]:
        """What the engine says it is."""
        found: dict[str, Any] = json.loads((self.folder / "engine.json").read_text())
        return found

    def record(self, requests: int) -> None:
        """Record from now on, and say when so many requests run."""
        self._order({"do": "record", "requests": requests})

    def write(self) -> None:
        """Stop recording; everything is in `steps_path`."""
        self.steps_path.unlink(missing_ok=True)
        self._order({"do": "write"})

    def use_table(self, path: str) -> None:
        """Put a table of SGLang's own rule in force."""
        self._order({"do": "table", "path": path})

    def _order(self, order: dict[str, Any], within_s: float = 30.0) -> None:
        self._number += 1
        write_whole(self.folder / "order.json", json.dumps({**order, "number": self._number}))
        deadline, path = time.monotonic() + within_s, self.folder / "answer.json"
        while time.monotonic() < deadline:
            if path.exists():
                answer = json.loads(path.read_text())
                if answer["number"] == self._number:
                    if answer["problem"]:
                        raise OrderError(f"{order['do']}: {answer['problem']}")
                    return
            time.sleep(LOOK_EVERY_S / 4)
        raise OrderError(f"{order['do']}: no answer within {within_s:g} s")
