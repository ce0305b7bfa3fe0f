"""Which engines does an order mean?"""

from __future__ import annotations

from trimtab.errors import UnknownEngineError, WireError
from trimtab.server.fleet import Fleet, Seat
from trimtabpb.v1 import admin_pb2 as pb

NAMED_AT_MOST = 20


def select(fleet: Fleet, selector: pb.Selector) -> list[Seat]:
    """The engines that the selector names, by id, by label or all of them; at least one.

    The id of a data-parallel server means all its replicas, ID/RANK one of them.

    Raises:
        WireError: The selector names engines in no way, or in more than one.
        UnknownEngineError: There is no such engine; the message lists those that there are.
    """
    if bool(selector.engine_ids) + selector.all + bool(selector.labels) != 1:
        raise WireError("selector", "give engine_ids, all or labels, and only one of them")
    if selector.engine_ids:
        chosen = {seat.key: seat for engine_id in selector.engine_ids for seat in _with_id(fleet, engine_id)}
        return list(chosen.values())
    found = [seat for seat in fleet.seats() if matches(seat, selector)]
    if not found:
        what = " with these labels" if selector.labels else ""
        raise UnknownEngineError(f"there is no engine{what}: {_known(fleet)}")
    return found


def matches(seat: Seat, selector: pb.Selector) -> bool:
    """Whether the selector means this engine; an empty one means every engine."""
    if selector.engine_ids:
        return any(_is_meant(seat, engine_id) for engine_id in selector.engine_ids)
    return all(seat.hello.labels.get(key) == value for key, value in selector.labels.items())


def _is_meant(seat: Seat, engine_id: str) -> bool:
    return engine_id in (seat.key.engine_id, f"{seat.key.engine_id}/{seat.key.dp_rank}")


def _with_id(fleet: Fleet, engine_id: str) -> list[Seat]:
    found = [seat for seat in fleet.seats() if _is_meant(seat, engine_id)]
    if found:
        return found
    raise UnknownEngineError(f"there is no engine {engine_id[:256]!r}: {_known(fleet)}")


def _known(fleet: Fleet) -> str:
    ids = [str(seat.key) for seat in fleet.seats()]
    if not ids:
        return "none has connected yet"
    more = f" and {len(ids) - NAMED_AT_MOST} more" if len(ids) > NAMED_AT_MOST else ""
    return f"known are {', '.join(ids[:NAMED_AT_MOST])}{more}"
