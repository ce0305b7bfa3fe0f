"""One SGLang engine with the real model, in the process that measures it."""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plugin_path import FOLDER
from real_prompts import Prompter
from real_sizes import RealSizes, engine_arguments
from round_log import FILE
from rounds import Round, read_rounds

# The plugins look for a new word every 5 ms; it is in force from the next launch after that on.
ADOPTION_S = 0.1
PLUGINS = {"trimtab_gpu": "mode_forcer:register", "trimtab_rounds": "round_log:register"}


class RealEngine:
    """An engine, its prompts, and the word that says which modes run.

    `plain` says that it is one without speculation.

    Args:
        engine: Its kind; see `real_sizes.engine_arguments`.
        sizes: What is measured.
        backend: Of attention.
        models: Where target/ and draft/ are.
        folder: What the plugins write into.
        ends_at: When the process will be stopped, by the monotonic clock.
    """

    def __init__(self, engine: str, sizes: RealSizes, backend: str, models: Path, folder: Path, ends_at: float) -> None:
        import sglang

        self.sizes = sizes
        self.plain = engine.split("+")[0] == "plain"
        self.prompter = Prompter(models / "target")
        self._folder, self._ends_at = folder, ends_at
        self._names, self._read_up_to = 0, 0
        self.force("")
        began = time.monotonic()
        self._engine = sglang.Engine(**engine_arguments(sizes, engine, backend, models, folder))
        self.start_s = round(time.monotonic() - began, 1)

    @property
    def modes(self) -> list[str]:
        """What may be forced; nothing without this plugin."""
        facts = self._folder / "facts.json"
        return list(json.loads(facts.read_text())["modes"]) if facts.exists() else []

    @property
    def left_s(self) -> float:
        """Seconds until the process is stopped."""
        return self._ends_at - time.monotonic()

    def force(self, word: str) -> None:
        """Run these modes from the next launch on; see `forced_leases`."""
        fresh = self._folder / "mode.new"
        fresh.write_text(word)
        fresh.rename(self._folder / "mode")
        time.sleep(ADOPTION_S)

    def generate(
        self, prompts: Sequence[Sequence[int]], tokens: int, temperature: float = 0.0, **wishes: Any
    ) -> list[dict[str, Any]]:
        """All at once, each `tokens` long; what SGLang answers, with the name of each request in `meta_info`."""
        return list(self._engine.loop.run_until_complete(self.ask(prompts, tokens, temperature, **wishes)))

    def together(self, work: Any) -> Any:
        """Run a coroutine that asks several times at once."""
        return self._engine.loop.run_until_complete(work)

    async def ask(
        self, prompts: Sequence[Sequence[int]], tokens: int, temperature: float = 0.0, **wishes: Any
    ) -> list[dict[str, Any]]:
        """The same, inside a coroutine."""
        parameters = {"temperature": temperature, "max_new_tokens": tokens, "ignore_eos": True}
        names = [f"r{self._names + i}" for i in range(len(prompts))]
        self._names += len(prompts)
        answers: list[dict[str, Any]] = await self._engine.async_generate(
            input_ids=[list(prompt) for prompt in prompts], sampling_params=[parameters] * len(prompts), rid=names,
            **wishes,
        )  # fmt: skip
        lengths = {len(answer["output_ids"]) for answer in answers}
        assert lengths == {tokens}, f"answers came back with {lengths} tokens instead of {tokens}"
        return answers

    def rounds(self) -> dict[str, list[Round]]:
        """The rounds of every request since the last call; the engine is idle."""
        time.sleep(ADOPTION_S)
        with (self._folder / FILE).open("rb") as file:
            file.seek(self._read_up_to)
            written = file.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._read_up_to += len(whole)
        return read_rounds(whole.decode().splitlines(keepends=True))

    def rows(self) -> list[dict[str, str]]:
        """Every decode step so far, as `mode_forcer` wrote it down; the engine is idle."""
        time.sleep(ADOPTION_S)
        with (self._folder / "rows.csv").open() as lines:
            return list(csv.DictReader(lines))

    def forget_cache(self) -> None:
        """Empty the prefix cache."""
        self._engine.flush_cache()

    def stop(self) -> None:
        """End the engine's processes."""
        self._engine.shutdown()


def environment(engine: str, sizes: RealSizes, folder: Path, code: Sequence[Path]) -> Mapping[str, str]:
    """Variables of an engine's process.

    Args:
        engine: Its kind.
        sizes: What is measured.
        folder: Where the plugins are installed and write.
        code: Folders to import from.
    """
    ours = PLUGINS if engine.split("+")[0] == "ours" else ()
    path = [str(folder), *map(str, code), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path),
        # None but these: without a name SGLang would load every plugin that is installed.
        "SGLANG_PLUGINS": ",".join([*ours, *sizes.plugins]) or "none",
        FOLDER: str(folder),
        "PYTHONUNBUFFERED": "1",
        **sizes.environment,
    }
