"""Which engines does an order mean?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from trimtab.errors import NoSuchModeError, NotOfferedError, UnknownEngineError
from trimtab.server.fleet import Fleet
from trimtab.server.seat import Seat
from trimtab.session.orders import Selector

NAMED_AT_MOST = 20
REFUSALS_AT_MOST = 8

Answer = TypeVar("Answer")


def select(fleet: Fleet, selector: Selector) -> list[Seat]:
    """The engines that the selector means; at least one.

    The id of a data-parallel server means all its replicas, ID/RANK one of them.

    Raises:
        UnknownEngineError: There is no such engine; the message lists those that there are.
    """
    if selector.engine_ids:
        chosen = {seat.key: seat for engine_id in selector.engine_ids for seat in _with_id(fleet, engine_id)}
        return list(chosen.values())
    found = meant(fleet, selector)
    if not found:
        what = " with these labels" if selector.labels else ""
        raise UnknownEngineError(f"there is no engine{what}: {_known(fleet)}")
    return found


def meant(fleet: Fleet, selector: Selector) -> list[Seat]:
    """The engines that the selector means, if there are any."""
    return [seat for seat in fleet.seats() if seat.meant_by(selector)]


def _with_id(fleet: Fleet, engine_id: str) -> list[Seat]:
    found = meant(fleet, Selector((engine_id,)))
    if found:
        return found
    raise UnknownEngineError(f"there is no engine {engine_id[:256]!r}: {_known(fleet)}")


def checked(seats: Iterable[Seat], check: Callable[[Seat], Answer]) -> list[Answer]:
    """The answers of all engines.

    Raises:
        NotOfferedError: Some refuse; with what each of them says. `NoSuchModeError` if that is all that is wrong.
    """
    answers, refusals = [], []
    for seat in seats:
        try:
            answers.append(check(seat))
        except NotOfferedError as error:
            refusals.append(error)
    if refusals:
        words = "; ".join(map(str, refusals[:REFUSALS_AT_MOST])) + (" ..." if len(refusals) > REFUSALS_AT_MOST else "")
        none_built = all(isinstance(refusal, NoSuchModeError) for refusal in refusals)
        raise NoSuchModeError(words) if none_built else NotOfferedError(words)
    return answers


def _known(fleet: Fleet) -> str:
    ids = [str(seat.key) for seat in fleet.seats()]
    if not ids:
        return "none has connected yet"
    more = f" and {len(ids) - NAMED_AT_MOST} more" if len(ids) > NAMED_AT_MOST else ""
    return f"known are {', '.join(ids[:NAMED_AT_MOST])}{more}"
