"""What can happen to a controller, done to a real one at random: seeded, so that a run can be repeated."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from controller_process import ControllerProcess

ROGUES = Path(__file__).with_name("rogue_peers.py")


@dataclass(frozen=True, slots=True)
class Episode:
    """Something that was done, and when, on CLOCK_MONOTONIC.

    Attributes:
        kind: What it was.
        gone_ns: When the controller stopped leading; equal to `back_ns` where it did not.
        begun_ns: When it began to come back: it may lead from then on.
        back_ns: When it surely was there again.
    """

    kind: str
    gone_ns: int
    begun_ns: int
    back_ns: int


class Disturber:
    """Does one thing after the other to a controller. After each the controller is there and nobody disturbs it.

    Args:
        controller: The controller, running.
        seed: Of what is done and how long.
    """

    def __init__(self, controller: ControllerProcess, seed: int) -> None:
        self._controller = controller
        self._drawn = random.Random(seed)
        self._deck: list[Callable[[], Episode]] = []

    def next(self) -> Episode:
        """Do the next thing; every kind comes once before one comes twice."""
        if not self._deck:
            self._deck = [self.kill, self.stop, self.pause, self.flood, self.garbage, self.impostor]
            self._drawn.shuffle(self._deck)
        return self._deck.pop()()

    def kill(self) -> Episode:
        """kill -9, and a new one after a while."""
        return self._replace("killed", self._controller.kill, self._drawn.uniform(0.0, 5.0))

    def stop(self) -> Episode:
        """SIGTERM, and a new one after a while."""
        return self._replace("stopped in good order", self._controller.stop, self._drawn.uniform(0.0, 3.0))

    def pause(self) -> Episode:
        """SIGSTOP and SIGCONT."""
        gone_ns = time.monotonic_ns()
        self._controller.pause()
        time.sleep(self._drawn.uniform(0.5, 8.0))
        begun_ns = time.monotonic_ns()
        self._controller.resume()
        return Episode("hung", gone_ns, begun_ns, time.monotonic_ns())

    def flood(self) -> Episode:
        """Others talk to it without end."""
        return self._beside("flooded", "flood", self._drawn.uniform(1.0, 3.0))

    def garbage(self) -> Episode:
        """Others send it what is no protocol."""
        return self._beside("fed garbage", "garbage", self._drawn.uniform(1.0, 3.0))

    def impostor(self) -> Episode:
        """Killed, and something else answers in its place for a while."""
        return self._replace("impersonated", self._controller.kill, self._drawn.uniform(2.0, 5.0), self._rogue)

    def _replace(
        self, kind: str, end: Callable[[], None], seconds: float, meanwhile: Callable[[str, float], None] | None = None
    ) -> Episode:
        gone_ns = time.monotonic_ns()
        end()
        if meanwhile is not None:
            meanwhile("impostor", seconds)
        else:
            time.sleep(seconds)
        begun_ns = time.monotonic_ns()
        self._controller.start()
        return Episode(kind, gone_ns, begun_ns, time.monotonic_ns())

    def _beside(self, kind: str, rogue: str, seconds: float) -> Episode:
        self._rogue(rogue, seconds)
        now_ns = time.monotonic_ns()
        return Episode(kind, now_ns, now_ns, now_ns)

    def _rogue(self, kind: str, seconds: float) -> None:
        arguments: Sequence[str] = (
            kind,
            str(self._controller.socket),
            f"{seconds:.2f}",
            str(self._drawn.randrange(1 << 30)),
        )
        subprocess.run([sys.executable, str(ROGUES), *arguments], stderr=subprocess.DEVNULL, timeout=60, check=False)
