"""The operators' service: what is there, pins, policies. An order for several engines holds for all or none."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import grpc

from trimtab import __version__
from trimtab.errors import NoSuchModeError, NotOfferedError, PolicyError, TrimtabError, UnknownEngineError, WireError
from trimtab.policies.registry import POLICIES, policy_factory
from trimtab.server.fleet import Fleet, FullError
from trimtab.server.pace import PACE
from trimtab.server.scribe import Scribe
from trimtab.server.seat import Seat
from trimtab.server.selection import checked, meant, select
from trimtab.server.trials import Trials
from trimtab.session.events import Pinned, Unpinned
from trimtab.session.orders import PinOrder, PolicyOrder, Selector, TooManyOrdersError
from trimtab.session.pins import Relative, pin_for
from trimtab.wire import (
    engine_asked,
    parameters_ordered,
    pin_duration_s,
    role_ordered,
    selector_asked,
    selector_ordered,
    share_ordered,
    target_ordered,
)
from trimtab.wire.bounds import clipped
from trimtabpb.v1 import admin_pb2 as pb
from trimtabpb.v1 import admin_pb2_grpc as services

STATUS: tuple[tuple[type[TrimtabError], grpc.StatusCode], ...] = (
    (UnknownEngineError, grpc.StatusCode.NOT_FOUND),
    (NoSuchModeError, grpc.StatusCode.INVALID_ARGUMENT),
    (NotOfferedError, grpc.StatusCode.FAILED_PRECONDITION),
    (WireError, grpc.StatusCode.INVALID_ARGUMENT),
    (PolicyError, grpc.StatusCode.INVALID_ARGUMENT),
    (FullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TooManyOrdersError, grpc.StatusCode.RESOURCE_EXHAUSTED),
)
ROLES = pb.SetPolicyRequest.Role
# So that a list of a large fleet holds up no stream.
ENGINES_AT_A_TIME = 16

Context = grpc.aio.ServicerContext[Any, Any]
Request = TypeVar("Request")
Answer = TypeVar("Answer")


class AdminService(services.AdminServiceServicer):
    """Answers from the fleet's sessions and steps them with what operators order.

    That orders are in the journal before they are answered is the gate's duty, through which every call comes.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._trials = Trials(fleet)

    async def ListEngines(self, request: pb.ListEnginesRequest, context: Context) -> pb.ListEnginesResponse:  # noqa: N802
        """Every engine that this controller has seen."""
        answer = pb.ListEnginesResponse(
            controller_version=__version__,
            controller=self._fleet.overview(),
            journal=journal_state(self._fleet.scribe),
        )
        for i, seat in enumerate(self._fleet.seats()):
            if i % ENGINES_AT_A_TIME == ENGINES_AT_A_TIME - 1:
                await asyncio.sleep(0)
            answer.engines.append(self._fleet.view(seat))
        return answer

    async def GetEngine(self, request: pb.GetEngineRequest, context: Context) -> pb.GetEngineResponse:  # noqa: N802
        """One engine."""
        return await _answer(self._get, request, context)

    async def Pin(self, request: pb.PinRequest, context: Context) -> pb.PinResponse:  # noqa: N802
        """Hold engines in a mode, if every one of them can run it."""
        return await _answer(self._pin, request, context)

    async def Unpin(self, request: pb.UnpinRequest, context: Context) -> pb.UnpinResponse:  # noqa: N802
        """Give control back to the policy."""
        return await _answer(self._unpin, request, context)

    async def SetPolicy(self, request: pb.SetPolicyRequest, context: Context) -> pb.SetPolicyResponse:  # noqa: N802
        """Change the policy of engines, if every one of them can have it."""
        return await _answer(self._set_policy, request, context)

    async def PromotePolicy(  # noqa: N802
        self, request: pb.PromotePolicyRequest, context: Context
    ) -> pb.PromotePolicyResponse:
        """Let what is on trial act from now on."""
        return await _answer(self._promote, request, context)

    async def WithdrawPolicy(  # noqa: N802
        self, request: pb.WithdrawPolicyRequest, context: Context
    ) -> pb.WithdrawPolicyResponse:
        """End a trial."""
        return await _answer(self._withdraw, request, context)

    async def Watch(self, request: pb.WatchRequest, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """The engines now, then each that changed."""
        try:
            selector = selector_asked(request.selector)
            chosen = select(self._fleet, selector) if selector.engine_ids else meant(self._fleet, selector)
            watcher = self._fleet.watch()
        except TrimtabError as error:
            await _abort(context, error)
            return
        try:
            for seat in chosen:
                watcher.mark(seat.key)
            while keys := await watcher.take():
                for key in keys:
                    changed = self._fleet.seat(key)
                    if changed is not None and changed.meant_by(selector):
                        await context.write(pb.WatchResponse(engine=self._fleet.view(changed)))
                        await _keep_pace()
        finally:
            self._fleet.unwatch(watcher)

    def _get(self, request: pb.GetEngineRequest) -> pb.GetEngineResponse:
        # Of a data-parallel server the first replica.
        seat, *_ = select(self._fleet, engine_asked(request))
        return pb.GetEngineResponse(engine=self._fleet.view(seat), journal=journal_state(self._fleet.scribe))

    def _pin(self, request: pb.PinRequest) -> pb.PinResponse:
        target, duration_s = target_ordered(request), pin_duration_s(request)
        selector = selector_ordered(request.selector)
        pin_id, reason, owner = secrets.token_hex(4), clipped(request.reason), clipped(request.owner)
        seats = select(self._fleet, selector)
        pins = checked(seats, lambda seat: pin_for(seat.session, target, pin_id, reason, owner))
        if selector.stands and target != Relative.IN_FORCE:
            now_ns = self._fleet.now_ns()
            deadline_ns = None if duration_s is None else now_ns + round(duration_s * 1e9)
            self._fleet.orders.add_pin(PinOrder(pin_id, selector, target, now_ns, deadline_ns, reason, owner))
        for seat, pin in zip(seats, pins, strict=True):
            self._fleet.order(seat, Pinned(pin, duration_s))
        return pb.PinResponse(engines=self._views(seats))

    def _unpin(self, request: pb.UnpinRequest) -> pb.UnpinResponse:
        selector, orders = selector_ordered(request.selector), self._fleet.orders
        ending = [order for order in orders.pins if selector.covers(order.selector)]
        # A standing order can be released after the last of its engines is gone.
        seats = meant(self._fleet, selector) if ending else select(self._fleet, selector)
        orders.release(selector, [seat.identity for seat in seats])
        pinned = [seat for seat in seats if seat.session.pin is not None]
        for seat in pinned:
            self._fleet.order(seat, Unpinned())
        return pb.UnpinResponse(engines=self._views(seats), released=len(pinned), ended_orders=len(ending))

    def _set_policy(self, request: pb.SetPolicyRequest) -> pb.SetPolicyResponse:
        if not request.policy:
            given = request.HasField("selector")
            seats = select(self._fleet, selector_ordered(request.selector)) if given else self._fleet.seats()
            return self._policies(seats)
        role, share, parameters = role_ordered(request), share_ordered(request), parameters_ordered(request)
        factory = policy_factory(request.policy, parameters)
        order = PolicyOrder(selector_ordered(request.selector), request.policy, factory, parameters)
        if role == ROLES.ROLE_CANARY:
            return self._policies(self._trials.start_canary(order, share))
        if role == ROLES.ROLE_SHADOW:
            return self._policies(self._trials.shadow(order.as_shadow()))
        return self._policies(self._trials.act(order))

    def _policies(self, seats: Iterable[Seat]) -> pb.SetPolicyResponse:
        known = [pb.PolicyInfo(name=name, summary=cls.summary) for name, cls in sorted(POLICIES.items())]
        overview = self._fleet.overview()
        canary = overview.canary if overview.HasField("canary") else None
        return pb.SetPolicyResponse(engines=self._views(seats), known=known, canary=canary)

    def _promote(self, request: pb.PromotePolicyRequest) -> pb.PromotePolicyResponse:
        return pb.PromotePolicyResponse(engines=self._views(self._trials.promote(_given(request))))

    def _withdraw(self, request: pb.WithdrawPolicyRequest) -> pb.WithdrawPolicyResponse:
        return pb.WithdrawPolicyResponse(engines=self._views(self._trials.withdraw(_given(request))))

    def _views(self, seats: Iterable[Seat]) -> list[pb.Engine]:
        return [self._fleet.view(seat) for seat in seats]


def journal_state(scribe: Scribe | None) -> pb.JournalState:
    """How the journal does."""
    if scribe is None:
        return pb.JournalState()
    figures = scribe.figures
    return pb.JournalState(path=scribe.path, problem=figures.problem, dropped=figures.dropped.total())


def _given(request: pb.PromotePolicyRequest | pb.WithdrawPolicyRequest) -> Selector | None:
    return selector_ordered(request.selector) if request.HasField("selector") else None


async def _keep_pace() -> None:
    """Hold back a caller that watches more than it may; it skips states then."""
    pace = PACE.get()
    if pace is not None:
        await pace.keep()


async def _answer(method: Callable[[Request], Answer], request: Request, context: Context) -> Answer:
    """The method's answer, or its error as a status."""
    try:
        return method(request)
    except TrimtabError as error:
        await _abort(context, error)
        raise


async def _abort(context: Context, error: TrimtabError) -> None:
    code = next((code for kind, code in STATUS if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    await context.abort(code, str(error))
