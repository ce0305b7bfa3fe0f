"""Lets a call through if its caller has the role that it takes; writes the audit log; holds back who calls too often.

Every call of every service passes here, so that none can be forgotten: one that no rule names takes an operator.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, NoReturn, Protocol, cast

import grpc

from trimtab.access_settings import Role
from trimtab.server.access import Access, Caller, Context
from trimtab.server.audit import OK, Audit
from trimtab.server.pace import PACE, Pace, Paces
from trimtabpb.v1 import admin_pb2

CONTROL, ADMIN = "/trimtab.v1.ControlService/", "/trimtab.v1.AdminService/"
# Whether the daemon serves is no secret: probes have no certificate to show.
OPEN = ("/grpc.health.v1.Health/",)
NEEDED = {
    f"{CONTROL}Connect": Role.ENGINE,
    f"{ADMIN}ListEngines": Role.VIEWER,
    f"{ADMIN}GetEngine": Role.VIEWER,
    f"{ADMIN}Watch": Role.VIEWER,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Role.VIEWER,
}
# Who is turned away waits for the answer, so that trying costs the daemon little.
TURNED_AWAY_AFTER_S = 0.25
MAX_WAITING = 256
# A caller whose calls are this far behind is refused until it has waited.
WAIT_AT_MOST_S = 2.0
ENGINES_PER_UNIT = 10

# The stubs of grpc know handlers of the synchronous server only.
Handler = Any
Method = Callable[[Any, Context], Any]


class OrderJournal(Protocol):
    """What keeps orders over a restart of the controller."""

    @property
    def left_out(self) -> int:
        """Entries for which it had no room."""

    async def settled(self, since: int) -> str:
        """Wait until an order is in the journal; why it is not, or empty. `since`: `left_out` before it."""


class Gate(grpc.aio.ServerInterceptor):
    """Stands before every service.

    Args:
        access: Finds the roles of a caller.
        audit: Takes down the calls of the admin service, and who is turned away.
        journal: Keeps orders; each is answered when it is there.
        refused: Counts who is turned away, by reason.
    """

    def __init__(self, access: Access, audit: Audit, journal: OrderJournal, refused: Counter[str]) -> None:
        self._access = access
        self._audit = audit
        self._journal = journal
        self._refused = refused
        self._paces = Paces()
        self._waiting = 0
        self._guarded: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The handler of a call, behind the gate."""
        method = str(handler_call_details.method)
        handler = await continuation(handler_call_details)
        if handler is None or method.startswith(OPEN):
            return handler
        if method not in self._guarded:
            self._guarded[method] = self._guard(method, handler)
        return self._guarded[method]

    def _guard(self, method: str, handler: Handler) -> Handler:
        coders = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._unary(method, handler.unary_unary), **coders)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(self._watch(method, handler.unary_stream), **coders)
        return grpc.stream_stream_rpc_method_handler(self._stream(method, handler.stream_stream), **coders)

    def _unary(self, method: str, inner: Method) -> Method:
        async def call(request: Any, context: Context) -> Any:
            caller = await self._admit(method, request, context)
            pace = self._pace_of(caller, method, request)
            await self._hold_back(pace, caller, method, request, context)
            left_out = self._journal.left_out
            try:
                answer = await inner(request, context)
            except BaseException as error:
                self._fail(caller, method, request, error, context)
                raise
            self._take_down(caller, method, request, OK, engines=_engines_of(answer))
            if needed_role(method, request) is Role.OPERATOR and hasattr(answer, "journal_problem"):
                # A journal that fails, or takes too long, does not undo the order: the answer says so.
                answer.journal_problem = await self._journal.settled(left_out)
            # A list of a large fleet is as much work as many calls; the next one waits for it.
            pace.debt_s(rows=len(getattr(answer, "engines", ())) * 100 // ENGINES_PER_UNIT)
            return answer

        return call

    def _watch(self, method: str, inner: Method) -> Method:
        async def call(request: Any, context: Context) -> None:
            caller = await self._admit(method, request, context)
            PACE.set(self._pace_of(caller, method, request))
            self._take_down(caller, method, request, "BEGUN")
            try:
                await inner(request, context)
            except BaseException as error:
                self._fail(caller, method, request, error, context)
                raise

        return call

    def _stream(self, method: str, inner: Method) -> Method:
        if inspect.isasyncgenfunction(inner):

            async def generate(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
                await self._admit(method, None, context)
                async for answer in inner(requests, context):
                    yield answer

            return generate

        async def call(requests: AsyncIterator[Any], context: Context) -> None:
            await self._admit(method, None, context)
            await inner(requests, context)

        return call

    def _pace_of(self, caller: Caller, method: str, request: Any) -> Pace:
        """Orders have a pace of their own: who asks too often can still pin."""
        return self._paces.of(f"{needed_role(method, request)} {caller.who}")

    async def _hold_back(self, pace: Pace, caller: Caller, method: str, request: Any, context: Context) -> None:
        """Let the call wait its turn; one that would wait for long ends here."""
        if pace.behind_s > WAIT_AT_MOST_S:
            words = f"too many calls from {caller.who}: call less often"
            self._refused["too_many_calls"] += 1
            self._take_down(caller, method, request, grpc.StatusCode.RESOURCE_EXHAUSTED.name, words)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        if await pace.keep(size=request.ByteSize()):
            self._refused["call_too_fast"] += 1

    async def _admit(self, method: str, request: Any, context: Context) -> Caller:
        """The caller, if it has the role that this takes; otherwise the call ends here."""
        caller = self._access.caller(context)
        needed = needed_role(method, request)
        if not caller.may(needed):
            await self._turn_away(caller, method, request, needed, context)
        return caller

    async def _turn_away(self, caller: Caller, method: str, request: Any, needed: Role, context: Context) -> NoReturn:
        known = bool(caller.roles) and not caller.problem
        code = grpc.StatusCode.PERMISSION_DENIED if known else grpc.StatusCode.UNAUTHENTICATED
        words = _why_not(caller, method, needed)
        self._refused[code.name.lower()] += 1
        self._audit.record(caller, method.rpartition("/")[2], request, code.name, words)
        if self._waiting < MAX_WAITING:
            self._waiting += 1
            try:
                await asyncio.sleep(TURNED_AWAY_AFTER_S)
            finally:
                self._waiting -= 1
        await context.abort(code, words)
        raise AssertionError("abort does not return")

    def _fail(self, caller: Caller, method: str, request: Any, error: BaseException, context: Context) -> None:
        """Count and take down a call that was refused, or broken off."""
        outcome = _outcome(context, error)
        if outcome != grpc.StatusCode.CANCELLED.name:
            self._refused[outcome.lower()] += 1
        self._take_down(caller, method, request, outcome, context.details() or "")

    def _take_down(
        self, caller: Caller, method: str, request: Any, outcome: str, detail: str = "", engines: Iterable[str] = ()
    ) -> None:
        orders = needed_role(method, request) is Role.OPERATOR
        call, changed = method.rpartition("/")[2], engines if orders else ()
        self._audit.record(caller, call, request, outcome, detail, orders, changed)


def needed_role(method: str, request: Any) -> Role:
    """The role that this call takes."""
    if isinstance(request, admin_pb2.SetPolicyRequest) and not request.policy:
        return Role.VIEWER
    return NEEDED.get(method, Role.OPERATOR)


def _engines_of(answer: Any) -> list[str]:
    return [engine.engine_id for engine in getattr(answer, "engines", ())]


def _why_not(caller: Caller, method: str, needed: Role) -> str:
    call = method.rpartition("/")[2]
    has = ", ".join(sorted(caller.roles)) or "none"
    who = "this caller shows neither a certificate nor a token" if caller.who == "nobody" else f"{caller.who} may not"
    problem = f" ({caller.problem})" if caller.problem else ""
    return f"{call} takes role {needed}; {who}{problem}, its roles: {has}"


def _outcome(context: Context, error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return grpc.StatusCode.CANCELLED.name
    code = cast(Any, context).code()
    return code.name if isinstance(code, grpc.StatusCode) and code is not grpc.StatusCode.OK else "UNKNOWN"
