"""The rounds of single requests, as `round_log` wrote them down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PLAIN = 1


@dataclass(frozen=True)
class Round:
    """One decode result of one request.

    Attributes:
        width: Tokens that the verify read: drafts and one more.
        accepted: Drafts that were accepted.
    """

    width: int
    accepted: int


def read_rounds(lines: Iterable[str]) -> dict[str, list[Round]]:
    """The rounds of every request, in their order; a line that is cut off ends them."""
    found: dict[str, list[Round]] = defaultdict(list)
    for line in lines:
        if not line.endswith("\n"):
            break
        width, *told = line.split()
        for pair in told:
            request, _, accepted = pair.rpartition(":")
            found[request].append(Round(int(width), int(accepted)))
    return dict(found)


def after_plain(rounds: Sequence[Round], count: int) -> list[int]:
    """Accepted drafts of the first `count` rounds that drafted after the last stretch of plain ones."""
    last = max((i for i, r in enumerate(rounds) if r.width == PLAIN), default=-1)
    return [r.accepted for r in rounds[last + 1 :][:count]]


def from_position(rounds: Sequence[Round], position: int, count: int) -> list[int]:
    """Accepted drafts of the first `count` rounds that begin with `position` tokens or more put out.

    Prefill puts out the first token.
    """
    put_out, found = 1, list[int]()
    for r in rounds:
        if put_out >= position:
            found.append(r.accepted)
        put_out += r.accepted + 1
    return found[:count]


def plain_tokens(rounds: Sequence[Round]) -> int:
    """Rounds without drafts."""
    return sum(r.width == PLAIN for r in rounds)
