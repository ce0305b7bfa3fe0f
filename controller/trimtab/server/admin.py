"""The operators' service: what is there, pins, policies. An order for several engines holds for all or none."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import grpc

from trimtab import __version__
from trimtab.domain import Mode, Pin
from trimtab.errors import NoSuchModeError, NotOfferedError, PolicyError, TrimtabError, UnknownEngineError, WireError
from trimtab.policies.registry import POLICIES, policy_factory
from trimtab.server.fleet import Fleet, FullError, Seat
from trimtab.server.selection import matches, select
from trimtab.session.events import Event, Pinned, PolicySet, Unpinned
from trimtab.wire import mode_ordered, pin_duration_s
from trimtab.wire.bounds import MAX_LABELS, at_most, clipped
from trimtabpb.v1 import admin_pb2 as pb
from trimtabpb.v1 import admin_pb2_grpc as services

STATUS: tuple[tuple[type[TrimtabError], grpc.StatusCode], ...] = (
    (UnknownEngineError, grpc.StatusCode.NOT_FOUND),
    (NoSuchModeError, grpc.StatusCode.INVALID_ARGUMENT),
    (NotOfferedError, grpc.StatusCode.FAILED_PRECONDITION),
    (WireError, grpc.StatusCode.INVALID_ARGUMENT),
    (PolicyError, grpc.StatusCode.INVALID_ARGUMENT),
    (FullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
)

Context = grpc.aio.ServicerContext[Any, Any]
Request = TypeVar("Request")
Answer = TypeVar("Answer")


class AdminService(services.AdminServiceServicer):
    """Answers from the fleet's sessions and steps them with what operators order."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def ListEngines(self, request: pb.ListEnginesRequest, context: Context) -> pb.ListEnginesResponse:  # noqa: N802
        """Every engine that this controller has seen."""
        return pb.ListEnginesResponse(engines=self._views(self._fleet.seats()), controller_version=__version__)

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

    async def Watch(self, request: pb.WatchRequest, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """The engines now, then each that changed."""
        try:
            chosen = select(self._fleet, request.selector) if request.selector.engine_ids else self._fleet.seats()
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
                    if changed is not None and matches(changed, request.selector):
                        await context.write(pb.WatchResponse(engine=self._fleet.view(changed)))
        finally:
            self._fleet.unwatch(watcher)

    def _get(self, request: pb.GetEngineRequest) -> pb.GetEngineResponse:
        (seat,) = select(self._fleet, pb.Selector(engine_ids=[request.engine_id]))
        return pb.GetEngineResponse(engine=self._fleet.view(seat))

    def _pin(self, request: pb.PinRequest) -> pb.PinResponse:
        mode, duration_s = mode_ordered(request), pin_duration_s(request)
        seats = select(self._fleet, request.selector)
        modes = _checked(seats, lambda seat: _mode_for(seat, mode))
        pin_id, reason, owner = secrets.token_hex(4), clipped(request.reason), clipped(request.owner)
        for seat, its_mode in zip(seats, modes, strict=True):
            self._order(seat, Pinned(Pin(pin_id, its_mode, reason, owner), duration_s))
        return pb.PinResponse(engines=self._views(seats))

    def _unpin(self, request: pb.UnpinRequest) -> pb.UnpinResponse:
        seats = select(self._fleet, request.selector)
        released = sum(seat.session.pin is not None for seat in seats)
        for seat in seats:
            self._order(seat, Unpinned())
        return pb.UnpinResponse(engines=self._views(seats), released=released)

    def _set_policy(self, request: pb.SetPolicyRequest) -> pb.SetPolicyResponse:
        known = [pb.PolicyInfo(name=name, summary=cls.summary) for name, cls in sorted(POLICIES.items())]
        if not request.policy:
            given = request.HasField("selector")
            seats = select(self._fleet, request.selector) if given else self._fleet.seats()
            return pb.SetPolicyResponse(engines=self._views(seats), known=known)
        factory = policy_factory(request.policy, at_most("parameters", dict(request.parameters), MAX_LABELS))
        seats = select(self._fleet, request.selector)
        _checked(seats, lambda seat: seat.session.check_policy(request.policy, factory))
        for seat in seats:
            self._order(seat, PolicySet(request.policy, factory))
        return pb.SetPolicyResponse(engines=self._views(seats), known=known)

    def _order(self, seat: Seat, event: Event) -> None:
        if not self._fleet.apply(seat, event):
            raise TrimtabError(f"the controller failed on this order for {seat.key}: look at its log")

    def _views(self, seats: Iterable[Seat]) -> list[pb.Engine]:
        return [self._fleet.view(seat) for seat in seats]


def _mode_for(seat: Seat, mode: Mode | None) -> Mode:
    """The mode ordered, or the engine's cheapest plain; `NotOfferedError` if it cannot run it."""
    if mode is None:
        return seat.session.cheapest_plain()
    seat.session.check_mode(mode)
    return mode


def _checked(seats: Iterable[Seat], check: Callable[[Seat], Answer]) -> list[Answer]:
    """The answers of all engines; if some refuse, `NotOfferedError` with what each of them says."""
    answers: list[Answer] = []
    refusals: list[NotOfferedError] = []
    for seat in seats:
        try:
            answers.append(check(seat))
        except NotOfferedError as error:
            refusals.append(error)
    if refusals:
        kind = NoSuchModeError if all(isinstance(error, NoSuchModeError) for error in refusals) else NotOfferedError
        raise kind("; ".join(map(str, refusals[:8])) + (" ..." if len(refusals) > 8 else ""))
    return answers


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
