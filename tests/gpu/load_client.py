"""The clients of a measured engine, in the engine's own process: nothing is streamed, the engine records for itself."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_orders import Phase
from load_file import Lengths, Open
from schedule import Request, arrivals, request, requests

Classes = Mapping[str, Sequence[Sequence[int]]]
Changes = Sequence[tuple[float, tuple[int, str]]]
LOOK_EVERY_S = 0.02
FILL_WITHIN_S = 12.0
GATHER_WITHIN_S = 60.0


@dataclass
class Tally:
    """What came of the requests."""

    answered: int = 0
    failed: int = 0
    problem: str = ""
    began_ns: int = field(default_factory=time.monotonic_ns)
    ended_ns: int = 0


class Clients:
    """Sends requests to one engine.

    Args:
        engine: `sglang.Engine`.
        folder: Shared with the plugin, which says there when all requests run.
        vocabulary: Prompts are drawn from the tokens below.
        classes: Prompts by class, for a model whose acceptance depends on them; empty for drawn prompts.
    """

    def __init__(self, engine: Any, folder: Path, vocabulary: int, classes: Classes) -> None:
        self._engine = engine
        self._folder = folder
        self._vocabulary = vocabulary
        self._classes = classes
        self._class: Sequence[Sequence[int]] = ()
        self._over = False
        self._runs = 0

    def closed(self, clients: int, lengths: Lengths, seed: str, window_s: float, label: str) -> dict[str, Any]:
        """Clients that wait for their answers, from the moment when all run for `window_s`."""
        self._take(label)
        streams = [requests(seed, client, lengths) for client in range(clients)]
        return self._run(lambda tally: self._closed(streams, window_s, tally))

    def open(self, settings: Open, per_second: float, seed: str, changes: Changes, phase: Phase) -> dict[str, Any]:
        """Requests that arrive by themselves; at these seconds the phase changes, to a number and its label."""
        return self._run(lambda tally: self._open(settings, per_second, seed, changes, phase, tally))

    def work(self, clients: int, prompt_tokens: int, output_tokens: int, seed: str, label: str) -> dict[str, Any]:
        """So many requests of the same length at once, to the end of the last."""
        self._take(label)
        lengths = Lengths((prompt_tokens, prompt_tokens), (output_tokens, output_tokens))
        wanted = [request(seed, client, 0, lengths) for client in range(clients)]
        return self._run(lambda tally: self._all(wanted, tally))

    def _run(self, load: Callable[[Tally], Coroutine[Any, Any, None]]) -> dict[str, Any]:
        self._over, tally = False, Tally()
        self._runs += 1
        self._engine.loop.run_until_complete(load(tally))
        tally.ended_ns = tally.ended_ns or time.monotonic_ns()
        return vars(tally)

    async def _closed(self, streams: list[Iterator[Request]], window_s: float, tally: Tally) -> None:
        tasks = [asyncio.ensure_future(self._client(stream, tally)) for stream in streams]
        try:
            tally.began_ns = await self._filled(tally)
            await asyncio.sleep(max(0.0, window_s - (time.monotonic_ns() - tally.began_ns) / 1e9))
            tally.ended_ns = time.monotonic_ns()
        finally:
            await self._end(tasks)

    async def _open(
        self, settings: Open, per_second: float, seed: str, changes: Changes, phase: Phase, tally: Tally
    ) -> None:
        slots, tasks = asyncio.Semaphore(settings.max_clients), set[Any]()
        began = time.monotonic()
        tally.began_ns = time.monotonic_ns()
        arriving: list[tuple[float, tuple[int, str] | None]] = [
            (at, None) for at in arrivals(settings, per_second, seed)
        ]
        number = 0
        for at, change in sorted([*changes, *arriving], key=lambda item: item[0]):
            await asyncio.sleep(max(0.0, at - (time.monotonic() - began)))
            if change is not None:
                phase.set(change[0])
                self._take(change[1])
                continue
            wanted = request(seed, 0, number, settings.requests)
            number += 1
            tasks.add(asyncio.ensure_future(self._one(wanted, tally, slots)))
        await asyncio.sleep(max(0.0, settings.seconds - (time.monotonic() - began)))
        tally.ended_ns = time.monotonic_ns()
        if tasks:
            await asyncio.wait(tasks, timeout=settings.drain_s)
        await self._end(list(tasks))

    async def _all(self, wanted: list[Request], tally: Tally) -> None:
        await asyncio.gather(*(self._one(one, tally) for one in wanted))

    async def _client(self, stream: Iterator[Request], tally: Tally) -> None:
        for wanted in stream:
            if self._over:
                return
            await self._one(wanted, tally)

    async def _one(self, wanted: Request, tally: Tally, slots: asyncio.Semaphore | None = None) -> None:
        if slots is not None:
            async with slots:
                return await self._one(wanted, tally)
        parameters = {"temperature": 0, "max_new_tokens": wanted.output_tokens, "ignore_eos": True}
        try:
            await self._engine.async_generate(
                input_ids=self._prompt(wanted),
                sampling_params=parameters,
                rid=f"{self._runs}.{wanted.identity}.{wanted.output_tokens}",
            )
        except Exception as error:  # noqa: BLE001 - an aborted request may be an exception
            if not self._over:
                tally.failed += 1
                tally.problem = tally.problem or f"{type(error).__name__}: {error}"
                await asyncio.sleep(LOOK_EVERY_S)
        else:
            tally.answered += not self._over

    def _take(self, label: str) -> None:
        """Prompts of this class from now on."""
        if self._classes:
            self._class = self._classes[label]

    def _prompt(self, wanted: Request) -> list[int]:
        if not self._classes:
            return wanted.prompt(self._vocabulary)
        return list(random.Random(wanted.identity).choice(self._class))

    async def _filled(self, tally: Tally) -> int:
        """When all clients' requests ran at once, on CLOCK_MONOTONIC in ns; now, if that does not come."""
        deadline, path = time.monotonic() + FILL_WITHIN_S, self._folder / "filled"
        while not path.exists():
            if time.monotonic() > deadline:
                tally.problem = tally.problem or f"the batch did not fill up within {FILL_WITHIN_S:g} s"
                return time.monotonic_ns()
            await asyncio.sleep(LOOK_EVERY_S)
        return int(path.read_text())

    async def _end(self, tasks: list[Any]) -> None:
        """Abort what still runs. Requests on their way to the scheduler come after a first abort: hence again."""
        self._over = True
        deadline = time.monotonic() + GATHER_WITHIN_S
        while any(not task.done() for task in tasks):
            if time.monotonic() > deadline:
                raise TimeoutError(f"requests did not end within {GATHER_WITHIN_S:g} s after their abort")
            self._engine.tokenizer_manager.abort_request(abort_all=True)
            await asyncio.wait(tasks, timeout=0.5)
