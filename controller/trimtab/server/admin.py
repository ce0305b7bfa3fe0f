"""The operators' service: what is there, pins, policies. An order for several engines holds for all or none."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import grpc
from google.protobuf.json_format import MessageToDict

from trimtab import __version__
from trimtab.domain import Mode, Pin
from trimtab.errors import NotOfferedError, PolicyError, TrimtabError, UnknownEngineError, WireError
from trimtab.policies.registry import POLICIES, policy_factory
from trimtab.server.fleet import Fleet, FullError, Seat
from trimtab.server.scribe import Scribe
from trimtab.server.selection import matches, select
from trimtab.session.events import Event, Pinned, PolicySet, Unpinned
from trimtab.wire import mode_ordered, pin_duration_s
from trimtab.wire.bounds import MAX_LABELS, at_most, clipped
from trimtabpb.v1 import admin_pb2 as pb
from trimtabpb.v1 import admin_pb2_grpc as services

STATUS: tuple[tuple[type[TrimtabError], grpc.StatusCode], ...] = (
    (UnknownEngineError, grpc.StatusCode.NOT_FOUND),
    (NotOfferedError, grpc.StatusCode.FAILED_PRECONDITION),
    (WireError, grpc.StatusCode.INVALID_ARGUMENT),
    (PolicyError, grpc.StatusCode.INVALID_ARGUMENT),
    (FullError, grpc.StatusCode.RESOURCE_EXHAUSTED),
)

# A request that is larger is obeyed, and not kept word for word.
MAX_ASKED_BYTES = 64 << 10

Context = grpc.aio.ServicerContext[Any, Any]
Request = TypeVar("Request")
Answer = TypeVar("Answer")
Order = TypeVar("Order", pb.PinRequest, pb.UnpinRequest, pb.SetPolicyRequest)
Outcome = TypeVar("Outcome", pb.PinResponse, pb.UnpinResponse, pb.SetPolicyResponse)


class AdminService(services.AdminServiceServicer):
    """Answers from the fleet's sessions and steps them with what operators order."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def ListEngines(self, request: pb.ListEnginesRequest, context: Context) -> pb.ListEnginesResponse:  # noqa: N802
        """Every engine that this controller has seen."""
        return pb.ListEnginesResponse(
            engines=self._views(self._fleet.seats()),
            controller_version=__version__,
            journal=journal_state(self._fleet.scribe),
        )

    async def GetEngine(self, request: pb.GetEngineRequest, context: Context) -> pb.GetEngineResponse:  # noqa: N802
        """One engine."""
        return await _answer(self._get, request, context)

    async def Pin(self, request: pb.PinRequest, context: Context) -> pb.PinResponse:  # noqa: N802
        """Hold engines in a mode, if every one of them can run it."""
        return await self._obey(self._pin, request, context)

    async def Unpin(self, request: pb.UnpinRequest, context: Context) -> pb.UnpinResponse:  # noqa: N802
        """Give control back to the policy."""
        return await self._obey(self._unpin, request, context)

    async def SetPolicy(self, request: pb.SetPolicyRequest, context: Context) -> pb.SetPolicyResponse:  # noqa: N802
        """Change the policy of engines, if every one of them can have it."""
        if not request.policy:
            return await _answer(self._known_policies, request, context)
        return await self._obey(self._set_policy, request, context)

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
        # Of a data-parallel server the first replica.
        seat, *_ = select(self._fleet, pb.Selector(engine_ids=[request.engine_id]))
        return pb.GetEngineResponse(engine=self._fleet.view(seat), journal=journal_state(self._fleet.scribe))

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

    def _known_policies(self, request: pb.SetPolicyRequest) -> pb.SetPolicyResponse:
        given = request.HasField("selector")
        seats = select(self._fleet, request.selector) if given else self._fleet.seats()
        return pb.SetPolicyResponse(engines=self._views(seats), known=_policies())

    def _set_policy(self, request: pb.SetPolicyRequest) -> pb.SetPolicyResponse:
        parameters = at_most("parameters", dict(request.parameters), MAX_LABELS)
        factory = policy_factory(request.policy, parameters)
        seats = select(self._fleet, request.selector)
        _checked(seats, lambda seat: seat.session.check_policy(request.policy, factory))
        for seat in seats:
            self._order(seat, PolicySet(request.policy, factory, parameters))
        return pb.SetPolicyResponse(engines=self._views(seats), known=_policies())

    async def _obey(self, method: Callable[[Order], Outcome], request: Order, context: Context) -> Outcome:
        """Carry out an order; it is answered when it is in the journal, together with who gave it and what came of it.

        A journal that fails, or takes too long, does not undo the order: the answer says so.
        """
        call, asked = type(request).__name__.removesuffix("Request"), _asked(request)
        left_out = self._fleet.left_out
        try:
            outcome = method(request)
        except TrimtabError as error:
            self._fleet.note_order(call, asked, (), str(error))
            await _abort(context, error)
            raise
        self._fleet.note_order(call, asked, [engine.engine_id for engine in outcome.engines])
        outcome.journal_problem = await self._fleet.settled(left_out)
        return outcome

    def _order(self, seat: Seat, event: Event) -> None:
        if not self._fleet.apply(seat, event):
            raise TrimtabError(f"the controller failed on this order for {seat.key}: look at its log")

    def _views(self, seats: Iterable[Seat]) -> list[pb.Engine]:
        return [self._fleet.view(seat) for seat in seats]


def _asked(request: Order) -> dict[str, Any]:
    """The request as the journal keeps it."""
    if request.ByteSize() > MAX_ASKED_BYTES:
        return {"left_out_bytes": request.ByteSize()}
    return MessageToDict(request)


def journal_state(scribe: Scribe | None) -> pb.JournalState:
    """How the journal does."""
    if scribe is None:
        return pb.JournalState()
    figures = scribe.figures
    return pb.JournalState(path=scribe.path, problem=figures.problem, dropped=figures.dropped.total())


def _policies() -> list[pb.PolicyInfo]:
    return [pb.PolicyInfo(name=name, summary=cls.summary) for name, cls in sorted(POLICIES.items())]


def _mode_for(seat: Seat, mode: Mode | None) -> Mode:
    """The mode ordered, or the engine's cheapest plain; `NotOfferedError` if it cannot run it."""
    if mode is None:
        return seat.session.cheapest_plain()
    seat.session.check_mode(mode)
    return mode


def _checked(seats: Iterable[Seat], check: Callable[[Seat], Answer]) -> list[Answer]:
    """The answers of all engines; if some refuse, `NotOfferedError` with what each of them says."""
    answers, refusals = [], []
    for seat in seats:
        try:
            answers.append(check(seat))
        except NotOfferedError as error:
            refusals.append(str(error))
    if refusals:
        raise NotOfferedError("; ".join(refusals[:8]) + (" ..." if len(refusals) > 8 else ""))
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
