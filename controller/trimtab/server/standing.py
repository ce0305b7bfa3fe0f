"""Gives engines what was ordered for them before they came, and takes it back when it is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from trimtab.errors import NotOfferedError
from trimtab.session.events import Event, Pinned, ShadowSet, Unpinned
from trimtab.session.orders import Orders, PinOrder
from trimtab.session.pins import can_hold, pin_for

if TYPE_CHECKING:
    from trimtab.server.seat import Seat

log = structlog.get_logger("trimtab")

Apply = Callable[["Seat", Event], bool]


def settle(seat: Seat, orders: Orders, apply: Apply, now_ns: int) -> None:
    """Bring the engine's pin in line with the standing orders.

    A pin of its own goes before them. Without one, the newest order that holds for the engine decides; a pin of
    an order that holds no longer is released.
    """
    held = seat.session.pin
    if held is not None and orders.pin_with_id(held.pin.id) is None:
        return
    order = orders.pin_for(*seat.identity)
    if order is None:
        if held is not None:
            apply(seat, Unpinned())
    elif held is None or held.pin.id != order.id or not can_hold(seat.session, held.pin):
        _pin(seat, order, apply, now_ns)


def _pin(seat: Seat, order: PinOrder, apply: Apply, now_ns: int) -> None:
    try:
        pin = pin_for(seat.session, order.target, order.id, order.reason, order.owner)
    except NotOfferedError as error:
        if seat.session.known().acts:
            seat.refuse(["standing_pin"])
            log.warning("standing_pin_not_possible", engine=str(seat.key), pinned=str(order.selector), why=str(error))
        return
    apply(seat, Pinned(pin, order.remaining_s(now_ns)))


def give_shadow(seat: Seat, orders: Orders, apply: Apply) -> None:
    """Give the engine the shadow that stands for it, unless it has one or follows the same policy anyway."""
    order = orders.policy_for(*seat.identity, shadow=True)
    if order is not None and seat.session.shadow is None and not seat.session.follows(order.factory):
        apply(seat, ShadowSet(order.name, order.factory, order.parameters))
