"""Policies on trial: as a shadow, which decides and is not followed, or as a canary, which acts on some engines.

On an engine of the canary the policy that acted before goes on as a shadow, so that it can take over again with
all that it learnt meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.errors import NotOfferedError
from trimtab.server.fleet import Fleet
from trimtab.server.seat import Seat
from trimtab.server.selection import checked, meant, select
from trimtab.session.events import PoliciesSwapped, PolicySet, ShadowDropped, ShadowSet
from trimtab.session.orders import Canary, Orders, PolicyOrder, Selector, threshold_for

EVERYTHING = Selector()


class Trials:
    """Starts and ends trials. What an order cannot do for one of its engines it does for none.

    Every method gives the engines that the order changed something for.

    Args:
        fleet: The engines, and their standing orders.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    @property
    def _orders(self) -> Orders:
        return self._fleet.orders

    def act(self, order: PolicyOrder) -> list[Seat]:
        """The policy acts on the engines selected from now on; it learns afresh."""
        seats = self._able(order)
        self._stand(order)
        return self._order(seats, PolicySet(order.name, order.factory, order.parameters))

    def shadow(self, order: PolicyOrder) -> list[Seat]:
        """The policy decides beside that of the engines selected."""
        seats = self._able(order)
        self._stand(order)
        return self._order(seats, ShadowSet(order.name, order.factory, order.parameters))

    def start_canary(self, order: PolicyOrder, share: float) -> list[Seat]:
        """The policy acts on this share of the engines selected, at least on one.

        Raises:
            NotOfferedError: Another canary runs already, or an engine cannot have the policy.
        """
        if self._orders.canary is not None:
            raise NotOfferedError(
                f"a canary of policy {self._orders.canary.order.name} runs already: promote or withdraw it first"
            )
        seats = [seat for seat in select(self._fleet, order.selector) if seat.session.known().acts]
        if not seats:
            raise NotOfferedError("these engines only observe: no policy can act on them")
        threshold = threshold_for(share, (str(seat.key) for seat in seats))
        canary = Canary(order, share, threshold, self._fleet.now_ns())
        chosen = [seat for seat in seats if canary.takes(*seat.identity)]
        checked(chosen, lambda seat: _check_other(seat, order))
        self._orders.canary = canary
        for seat in chosen:
            self._fleet.put_on_canary(seat, canary)
        return chosen

    def promote(self, selector: Selector | None) -> list[Seat]:
        """What is on trial acts on the engines selected, and keeps what it learnt.

        Without a selector: the canary's policy, on every engine.

        Raises:
            NotOfferedError: Nothing is on trial, or an engine cannot have the policy.
        """
        if self._orders.canary is None:
            return self._promote_shadows(_named(selector))
        trial, wanted = self._orders.canary.order, selector or EVERYTHING
        seats = select(self._fleet, wanted)
        checked(seats, lambda seat: seat.session.check_policy(trial.name, trial.factory))
        self._stand(PolicyOrder(wanted, trial.name, trial.factory, trial.parameters))
        self._end_canary(kept=seats)
        for seat in seats:
            self._take_over(seat, trial)
        return seats

    def withdraw(self, selector: Selector | None) -> list[Seat]:
        """End the canary (without a selector), or drop the shadows of the engines selected.

        Raises:
            NotOfferedError: Nothing is on trial there.
        """
        if self._orders.canary is None:
            return self._drop_shadows(_named(selector))
        if selector is not None:
            raise NotOfferedError("a canary is withdrawn as a whole: name no engines")
        return self._end_canary(kept=())

    def _promote_shadows(self, selector: Selector) -> list[Seat]:
        seats = _shadowed(select(self._fleet, selector))
        checked(seats, _check_shadow)
        standing = self._orders.shadow_of(selector)
        if standing is not None:
            self._stand(PolicyOrder(selector, standing.name, standing.factory, standing.parameters))
        self._orders.drop_shadows(selector)
        self._order(seats, PoliciesSwapped())
        return self._order(seats, ShadowDropped())

    def _drop_shadows(self, selector: Selector) -> list[Seat]:
        stood = self._orders.shadow_of(selector) is not None
        seats = meant(self._fleet, selector) if stood else _shadowed(select(self._fleet, selector))
        self._orders.drop_shadows(selector)
        return self._order(seats, ShadowDropped())

    def _take_over(self, seat: Seat, trial: PolicyOrder) -> None:
        """The policy acts on an engine that was not on the canary; as its shadow it has learnt already."""
        shadow = seat.session.shadow
        if seat.session.follows(trial.factory):
            return
        if shadow is not None and shadow.factory == trial.factory:
            self._order([seat], PoliciesSwapped())
            self._order([seat], ShadowDropped())
        else:
            self._order([seat], PolicySet(trial.name, trial.factory, trial.parameters))

    def _end_canary(self, kept: Iterable[Seat]) -> list[Seat]:
        """No canary any more: its policy goes on acting on the engines kept, the others go back to their own."""
        stay, canary = {seat.key for seat in kept}, self._orders.canary
        seats = [seat for seat in self._fleet.seats() if seat.canary]
        self._orders.canary = None
        for seat in seats:
            if canary is not None and seat.key not in stay:
                self._fleet.take_off_canary(seat, canary)
            seat.canary = False
            self._fleet.order(seat, ShadowDropped())
            self._fleet.give_shadow(seat)
        return seats

    def _able(self, order: PolicyOrder) -> list[Seat]:
        """The engines of an order, none of them on a canary, and all of them able to have the policy."""
        seats = select(self._fleet, order.selector)
        for seat in seats:
            if seat.canary:
                raise NotOfferedError(f"{seat.key} is on a canary: promote or withdraw it first")
        checked(seats, lambda seat: seat.session.check_policy(order.name, order.factory))
        return seats

    def _stand(self, order: PolicyOrder) -> None:
        if order.selector.stands:
            self._orders.add_policy(order)

    def _order(
        self, seats: Iterable[Seat], event: PolicySet | ShadowSet | ShadowDropped | PoliciesSwapped
    ) -> list[Seat]:
        ordered = list(seats)
        for seat in ordered:
            self._fleet.order(seat, event)
        return ordered


def _named(selector: Selector | None) -> Selector:
    if selector is None:
        raise NotOfferedError("no canary runs: for a policy in shadow, name its engines")
    return selector


def _shadowed(seats: Iterable[Seat]) -> list[Seat]:
    found = [seat for seat in seats if seat.session.shadow is not None]
    if not found:
        raise NotOfferedError("none of these engines has a policy in shadow")
    return found


def _check_other(seat: Seat, trial: PolicyOrder) -> None:
    if seat.session.follows(trial.factory):
        raise NotOfferedError(f"{seat.key} follows this policy already")
    seat.session.check_policy(trial.name, trial.factory)


def _check_shadow(seat: Seat) -> None:
    shadow = seat.session.shadow
    if shadow is not None and shadow.policy is None and seat.session.known().modes:
        raise NotOfferedError(f"{seat.key} cannot have policy {shadow.name}: {shadow.unusable}")
