"""The admin service as the command line calls it: every failure is one line that says what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

# gRPC logs its connection attempts to stderr on its own; what matters is in our own line.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from trimtab.errors import TrimtabError
from trimtab_sglang.channel import CredentialsError, open_channel, shown
from trimtab_sglang.settings import SettingError, read_credentials
from trimtabpb.v1 import admin_pb2, admin_pb2_grpc

OWN_WORDS = frozenset({
    grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED,
})  # fmt: skip
MAX_ANSWER_BYTES = 64 << 20
ADDRESS_VARIABLE = "TRIMTAB_CONTROLLER"

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class ControllerError(TrimtabError):
    """The controller does not answer, or it refuses."""


class Controller:
    """One controller's admin service. Every call raises `ControllerError` and nothing else.

    Args:
        target: `unix:/path` or `host:port`.
        timeout_s: Longest wait for an answer.
    """

    def __init__(self, target: str, timeout_s: float) -> None:
        self.target = target
        self.timeout_s = timeout_s
        # The controller is on this machine or named outright: a proxy in the environment is for the web.
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", MAX_ANSWER_BYTES)]
        try:
            credentials = read_credentials(os.environ)
            self._secure = credentials.secure and not target.startswith("unix:")
            self._channel = open_channel(_checked(target), credentials, options)
            self._metadata = (*shown(credentials), ("trimtab-operator", operator()))
        except (SettingError, CredentialsError) as error:
            raise ControllerError(str(error)) from error
        self._stub = admin_pb2_grpc.AdminServiceStub(self._channel)

    def close(self) -> None:
        """Let go of the connection; a running `watch` ends."""
        self._channel.close()

    def list_engines(self) -> admin_pb2.ListEnginesResponse:
        """All engines, the controller itself, and how the journal does."""
        return self._call(self._stub.ListEngines, admin_pb2.ListEnginesRequest())

    def engines(self) -> list[admin_pb2.Engine]:
        """All engines."""
        return list(self.list_engines().engines)

    def get_engine(self, engine_id: str) -> admin_pb2.GetEngineResponse:
        """The engine with this id, and how the journal does."""
        return self._call(self._stub.GetEngine, admin_pb2.GetEngineRequest(engine_id=engine_id))

    def engine(self, engine_id: str) -> admin_pb2.Engine:
        """The engine with this id."""
        return self.get_engine(engine_id).engine

    def pin(self, request: admin_pb2.PinRequest) -> admin_pb2.PinResponse:
        """Hold engines in a mode."""
        return self._call(self._stub.Pin, request)

    def unpin(self, request: admin_pb2.UnpinRequest) -> admin_pb2.UnpinResponse:
        """Give control back to the policy."""
        return self._call(self._stub.Unpin, request)

    def set_policy(self, request: admin_pb2.SetPolicyRequest) -> admin_pb2.SetPolicyResponse:
        """Change the policy of engines, or ask what is there."""
        return self._call(self._stub.SetPolicy, request)

    def promote_policy(self, selector: admin_pb2.Selector | None) -> admin_pb2.PromotePolicyResponse:
        """Let what is on trial act; the engines that changed."""
        request = admin_pb2.PromotePolicyRequest(selector=selector, owner=operator())
        return self._call(self._stub.PromotePolicy, request)

    def withdraw_policy(self, selector: admin_pb2.Selector | None) -> admin_pb2.WithdrawPolicyResponse:
        """End a trial; the engines that changed."""
        request = admin_pb2.WithdrawPolicyRequest(selector=selector, owner=operator())
        return self._call(self._stub.WithdrawPolicy, request)

    def watch(self, selector: admin_pb2.Selector) -> Iterator[admin_pb2.Engine]:
        """The engines now, then each again whenever it reports; without end."""
        try:
            for update in self._stub.Watch(admin_pb2.WatchRequest(selector=selector), metadata=self._metadata):
                yield update.engine
        except grpc.RpcError as error:
            raise self._explained(error) from error

    def _call(self, method: Callable[..., Answer], request: object) -> Answer:
        try:
            return method(request, timeout=self.timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._explained(error) from error

    def _explained(self, error: grpc.RpcError) -> ControllerError:
        code, details = error.code(), " ".join((error.details() or "").split())
        if code in OWN_WORDS:
            return ControllerError(details)
        if code == grpc.StatusCode.UNAVAILABLE and "Permission denied" in details:
            return ControllerError(
                f"no permission to use {self.target}: run this as the daemon's user, or start it with --socket-group"
            )
        if code == grpc.StatusCode.UNAVAILABLE and (self._secure or "Socket closed" in details):
            return ControllerError(
                f"no connection to {self.target}: trimtabd does not run there, or it and TRIMTAB_TLS_CA, _CERT, _KEY "
                f"do not fit together ({details[-200:]})"
            )
        if code == grpc.StatusCode.UNAVAILABLE:
            return ControllerError(
                f"no controller answers at {self.target}: start trimtabd, "
                f"or name another with --controller or {ADDRESS_VARIABLE}"
            )
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return ControllerError(
                f"the controller at {self.target} did not answer within {self.timeout_s:g} s: "
                "look at its log, or wait longer with --timeout"
            )
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return ControllerError(f"what answers at {self.target} is no trimtabd, or an older one: check --controller")
        return ControllerError(f"the controller at {self.target} failed ({code.name}: {details}): look at its log")


@contextmanager
def connected(target: str | None, timeout_s: float) -> Iterator[Controller]:
    """The controller at `target`, else where the environment says, else at the daemon's default socket."""
    controller = Controller(target or os.environ.get(ADDRESS_VARIABLE) or default_target(), timeout_s)
    try:
        yield controller
    finally:
        controller.close()


def operator() -> str:
    """Who calls, as far as this machine knows: user@host, in ASCII."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}".encode("ascii", "replace").decode()


def default_target() -> str:
    """Where a daemon without further settings listens."""
    from trimtab.config import default_socket_path

    return f"unix:{default_socket_path()}"


def warn_of_order(problem: str) -> None:
    """Say on stderr that the journal does not have an order that was just carried out; nothing without a problem."""
    if problem:
        _warn(f"done, but not in the controller's journal ({problem}): the controller may forget it when it restarts")


def warn_of_journal(journal: admin_pb2.JournalState) -> None:
    """Say on stderr that the journal fails; nothing if it does not."""
    if journal.problem:
        _warn(f"the controller's journal {journal.path} fails ({journal.problem}): look at its disk")


def _warn(message: str) -> None:
    print(f"trimtab: warning: {' '.join(message.split())}", file=sys.stderr)


def _checked(target: str) -> str:
    path = target.removeprefix("unix:")
    host, colon, port = target.rpartition(":")
    if path if path != target else host and colon and port.isdigit():
        return target
    raise ControllerError(f"--controller {target!r} is not an address: write unix:/path/to/socket or host:port")
