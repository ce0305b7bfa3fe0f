"""Keeps requests in flight while a test does other things."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count

from engine_server import Answer, EngineServer


class Traffic:
    """Sends prompts round and round, `concurrent` at a time, from entering to leaving the context.

    Leaving waits for the requests in flight and raises the first failure of any request.
    """

    def __init__(self, engine: EngineServer, prompts: Sequence[Sequence[int]], tokens: int, concurrent: int) -> None:
        self.answers: list[Answer] = []
        # Which prompt each answer belongs to.
        self.asked: list[Sequence[int]] = []
        self._engine = engine
        self._prompts = prompts
        self._tokens = tokens
        self._numbers = count()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._failures: list[BaseException] = []
        self._senders = [threading.Thread(target=self._send, name=f"traffic-{i}") for i in range(concurrent)]

    def __enter__(self) -> Traffic:
        for sender in self._senders:
            sender.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        self._over.set()
        for sender in self._senders:
            sender.join()
        if kind is None and self._failures:
            raise self._failures[0]

    @property
    def longest_wait_s(self) -> float:
        """The longest time that any finished request waited for its next piece."""
        return max(answer.longest_wait_s for answer in self.answers)

    def _send(self) -> None:
        while not self._over.is_set() and not self._failures:
            prompt = self._prompts[next(self._numbers) % len(self._prompts)]
            try:
                answer = self._engine.generate(prompt, self._tokens)
                # One after the other: each append is atomic, the pair is not.
                with self._lock:
                    self.answers.append(answer)
                    self.asked.append(prompt)
            except BaseException as failure:  # noqa: BLE001
                self._failures.append(failure)
