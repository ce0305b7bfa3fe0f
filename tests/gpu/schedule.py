"""What is run in which order, and what every request is: all of it follows from the load's seed.

Two contenders in the same cell get the same requests, word for word and in the same order of each client.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from load_file import Lengths, Load, Open

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """One number of clients at one acceptance, in one pass over all of them."""

    number: int
    clients: int
    acceptance: str
    run: int

    @property
    def name(self) -> str:
        """For results and figures."""
        return f"{self.clients} clients, {self.acceptance}"


@dataclass(frozen=True)
class Request:
    """What is asked for. `identity` seeds the drafts' fate and is the same for all contenders."""

    identity: str
    prompt_tokens: int
    output_tokens: int

    def prompt(self, vocabulary: int) -> list[int]:
        """Token ids below `vocabulary`."""
        drawn = random.Random(self.identity)
        return [drawn.randrange(3, vocabulary) for _ in range(self.prompt_tokens)]


def cells(load: Load) -> list[Cell]:
    """All cells, in the order in which they run."""
    drawn, found = random.Random(f"{load.seed} cells"), list[Cell]()
    for run in range(load.closed.passes):
        crossed = list(itertools.product(load.closed.clients, load.labels))
        drawn.shuffle(crossed)
        found += [Cell(len(found) + i, clients, label, run) for i, (clients, label) in enumerate(crossed)]
    return found


def order(load: Load, place: str, contenders: Sequence[str]) -> list[str]:
    """The contenders in the order of their turns at this place, whatever the order they are given in."""
    return shuffled(load, place, sorted(contenders))


def shuffled(load: Load, place: str, items: Sequence[T]) -> list[T]:
    """These items in an order drawn for this place."""
    found = list(items)
    random.Random(f"{load.seed} {place}").shuffle(found)
    return found


def request(seed: str, client: int, number: int, lengths: Lengths) -> Request:
    """The request of this client with this number."""
    identity = f"{seed}-{client}-{number}"
    drawn = random.Random(f"{identity} lengths")
    return Request(identity, drawn.randint(*lengths.prompt_tokens), drawn.randint(*lengths.output_tokens))


def requests(seed: str, client: int, lengths: Lengths) -> Iterator[Request]:
    """All requests of this client, without end."""
    return (request(seed, client, number, lengths) for number in itertools.count())


def arrivals(settings: Open, per_second: float, seed: str) -> list[float]:
    """Seconds at which requests arrive: bursts and lulls in turns, `per_second` on average.

    Both states last exponential times; within each, arrivals are a Poisson process.
    """
    drawn = random.Random(f"{seed} arrivals")
    share = settings.burst_s / (settings.burst_s + settings.between_s)
    slow = per_second / (1 - share + share * settings.burst)
    now, found, bursting = 0.0, list[float](), drawn.random() < share
    while now < settings.seconds:
        end = now + drawn.expovariate(1 / (settings.burst_s if bursting else settings.between_s))
        at = now + drawn.expovariate(slow * (settings.burst if bursting else 1))
        while at < min(end, settings.seconds):
            found.append(at)
            at += drawn.expovariate(slow * (settings.burst if bursting else 1))
        now, bursting = end, not bursting
    return found


def acceptances(load: Load, seconds: float, each_s: float, seed: str) -> list[tuple[float, str]]:
    """When the acceptance changes during a run, and to what: never to what it was."""
    drawn, found = random.Random(f"{seed} acceptance"), list[tuple[float, str]]()
    for i in range(max(1, round(seconds / each_s))):
        others = [label for label in load.labels if not found or label != found[-1][1]]
        found.append((i * each_s, drawn.choice(others or load.labels)))
    return found


def place_in_table(identity: str, size: int) -> int:
    """Where the random numbers of a request begin, in a table of `size` (a power of two)."""
    return zlib.crc32(identity.encode()) & (size - 1)
