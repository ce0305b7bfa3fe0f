"""The engines' service: one stream an engine, from its Hello to the end of the connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import grpc
import structlog
from google.protobuf.message import DecodeError

from trimtab.domain import EngineInfo
from trimtab.errors import TrimtabError, WireError
from trimtab.server.fleet import AlreadyConnectedError, Fleet, FullError, StoppingError
from trimtab.server.outbox import Outbox
from trimtab.server.pace import Pace
from trimtab.server.seat import Seat
from trimtab.session.events import Reported
from trimtab.wire import WireLimitError, read_ack, read_hello, read_report, welcome_message
from trimtabpb.v1 import control_pb2 as pb
from trimtabpb.v1 import control_pb2_grpc as services

HELLO_WITHIN_S = 10.0
# Streams on which the Hello is still to come.
MAX_GREETING = 256
NO_MESSAGE = "is no message of this protocol"
# Error, status, and the reason that it is counted under.
STATUS: tuple[tuple[type[TrimtabError], grpc.StatusCode, str], ...] = (
    (WireLimitError, grpc.StatusCode.RESOURCE_EXHAUSTED, "hello"),
    (WireError, grpc.StatusCode.INVALID_ARGUMENT, "hello"),
    (AlreadyConnectedError, grpc.StatusCode.ALREADY_EXISTS, "already_connected"),
    (FullError, grpc.StatusCode.RESOURCE_EXHAUSTED, "full"),
    (StoppingError, grpc.StatusCode.UNAVAILABLE, "stopping"),
)

log = structlog.get_logger("trimtab")

Messages = AsyncIterator[pb.EngineMessage]
Context = grpc.aio.ServicerContext[pb.EngineMessage, pb.ControllerMessage]


class ControlService(services.ControlServiceServicer):
    """Leads each engine through its stream: Hello, Welcome, then reports and answers up, leases down."""

    def __init__(self, fleet: Fleet, controller_id: str) -> None:
        self._fleet = fleet
        self._controller_id = controller_id
        self._greeting = 0

    async def Connect(self, request_iterator: Messages, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Hold the stream of one engine until one side ends it."""
        try:
            seat, outbox = await self._seat(request_iterator)
            await self._hold(seat, outbox, request_iterator, context)
        except TrimtabError as error:
            code = next((code for kind, code, _ in STATUS if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
            await context.abort(code, str(error))

    async def _seat(self, messages: Messages) -> tuple[Seat, Outbox]:
        """The engine's place, after its Hello; what stands against it is counted."""
        try:
            self._greeting += 1
            if self._greeting > MAX_GREETING:
                raise FullError("too many streams begin at once: connect again later")
            info, hello, wire = await first_hello(messages)
            outbox = Outbox()
            outbox.put(welcome_message(self._controller_id, self._fleet.settings.report_interval_s))
            return self._fleet.join(info, hello, outbox, wire), outbox
        except TrimtabError as error:
            reason = next((reason for kind, _, reason in STATUS if isinstance(error, kind)), "stream")
            self._fleet.refused[reason] += 1
            log.warning("stream_refused", reason=reason, why=str(error))
            raise
        finally:
            self._greeting -= 1

    async def _hold(self, seat: Seat, outbox: Outbox, messages: Messages, context: Context) -> None:
        reader = asyncio.create_task(self._read(seat, messages, outbox))
        reason = "connection lost"
        try:
            while (message := await outbox.get()) is not None:
                await context.write(message)
            # The outbox is closed by the reader's end, or by the controller's.
            reason = await reader if reader.done() else "controller stops"
        except WireError as error:
            reason = str(error)
            raise
        finally:
            reader.cancel()
            self._fleet.leave(seat, reason)

    async def _read(self, seat: Seat, messages: Messages, outbox: Outbox) -> str:
        """Take in messages until the engine ends the stream; why it did.

        Raises:
            WireError: A message that cannot be used.
        """
        pace = Pace(time.monotonic)
        try:
            async for message in messages:
                if message.WhichOneof("message") == "goodbye":
                    return f"goodbye: {message.goodbye.reason[:256]}"
                if await pace.keep(self._take(seat, message), message.ByteSize()):
                    seat.refuse(["too_fast"])
        except DecodeError as error:
            seat.refuse(["undecodable"])
            raise WireError("message", NO_MESSAGE) from error
        except WireError as error:
            seat.refuse(["message"])
            log.warning("message_unusable", engine=str(seat.key), why=str(error))
            raise
        finally:
            outbox.close()
        return "stream ended"

    def _take(self, seat: Seat, message: pb.EngineMessage) -> int:
        """Hand one message to the session; how many rows it had."""
        match message.WhichOneof("message"):
            case "report":
                report, refused = read_report(message.report)
                if refused:
                    seat.refuse(refused)
                self._fleet.apply(seat, Reported(report), message.report.SerializeToString())
                return len(message.report.rows.step)
            case "ack":
                self._fleet.apply(seat, read_ack(message.ack), message.ack.SerializeToString())
            case "hello":
                raise WireError("hello", "came a second time on one stream")
            case _:
                # A later version of the protocol may know more messages than this one.
                seat.refuse(["unknown_message"])
        return 0


async def first_hello(messages: Messages) -> tuple[EngineInfo, pb.Hello, bytes]:
    """The Hello that every stream begins with: its values, fit to be shown, and as it came; `WireError` without one."""
    try:
        async with asyncio.timeout(HELLO_WITHIN_S):
            message = await anext(messages)
    except TimeoutError as error:
        raise WireError("hello", f"did not come within {HELLO_WITHIN_S:g} s") from error
    except StopAsyncIteration as error:
        raise WireError("hello", "did not come before the stream ended") from error
    except DecodeError as error:
        raise WireError("hello", NO_MESSAGE) from error
    kind = message.WhichOneof("message")
    if kind != "hello":
        raise WireError("hello", f"must be the first message of a stream, {kind or 'an unknown one'} came instead")
    return *read_hello(message.hello), message.hello.SerializeToString()
