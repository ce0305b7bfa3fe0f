"""Who calls, and what may they do? By the transport, the certificate, and the token that they show."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import grpc

from trimtab.access_settings import Role, ServerSection
from trimtab.server.secret_files import TokenFile
from trimtab.wire.bounds import clipped

EVERYBODY = frozenset(Role)
BEARER = "Bearer "
TOKEN_KEY = "authorization"
OPERATOR_KEY = "trimtab-operator"

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is at the other end of a call.

    Attributes:
        who: By what it is known: `unix`, `insecure`, `cert:NAME`, `token:NAME`, or `nobody`.
        peer: Its address, as gRPC says it.
        claims: Who it says it is, for people; nobody checked this.
        roles: What it may be.
        problem: What is wrong with what it showed; empty if nothing is.
    """

    who: str
    peer: str
    claims: str
    roles: frozenset[Role]
    problem: str = ""

    def may(self, role: Role) -> bool:
        """Whether it has this role; an operator is a viewer as well."""
        return role in self.roles or (role is Role.VIEWER and Role.OPERATOR in self.roles)


class Access:
    """Knows the roles of the settings, and finds those of a caller.

    Args:
        server: The settings.
        now_s: A monotonic clock, for looking at token files again.

    Raises:
        ConfigError: A token file cannot be used.
    """

    def __init__(self, server: ServerSection, now_s: Callable[[], float] = time.monotonic) -> None:
        self._socket_roles = frozenset(server.socket_roles)
        self._insecure = server.insecure_loopback
        self._patterns = [(pattern, entry.role) for entry in server.role for pattern in entry.names]
        self._tokens = [
            (TokenFile(f"server.role[{i}].token_file", Path(entry.token_file), now_s), entry.role)
            for i, entry in enumerate(server.role)
            if entry.token_file
        ]

    def caller(self, context: Context) -> Caller:
        """Who is at the other end of this call."""
        metadata = {str(key): value for key, value in context.invocation_metadata() or ()}
        peer = clipped(str(context.peer()))
        who, roles = self._by_transport(peer, context.auth_context())
        problem = ""
        token = _token(metadata)
        if token is not None:
            name, of_token = self._by_token(token)
            who, roles = (f"token:{name}", roles | of_token) if name else (who, roles)
            problem = "" if name else "its token is not known"
        return Caller(who, peer, clipped(_text(metadata.get(OPERATOR_KEY))), roles, problem)

    def _by_transport(self, peer: str, auth: Mapping[str, Iterable[bytes]]) -> tuple[str, frozenset[Role]]:
        if peer.startswith("unix:"):
            return "unix", self._socket_roles
        names = certificate_names(auth)
        if names:
            return f"cert:{clipped(names[0])}", frozenset(
                role for pattern, role in self._patterns if any(fnmatchcase(name, pattern) for name in names)
            )
        secure = b"ssl" in auth.get("transport_security_type", ())
        return ("insecure", EVERYBODY) if self._insecure and not secure else ("nobody", frozenset())

    def _by_token(self, token: str) -> tuple[str | None, frozenset[Role]]:
        found = [(tokens.name_of(token), role) for tokens, role in self._tokens]
        names = [name for name, _ in found if name]
        return (names[0] if names else None), frozenset(role for name, role in found if name)


def certificate_names(auth: Mapping[str, Iterable[bytes]]) -> list[str]:
    """The names that a client's certificate vouches for: its alternative names, or else its common name."""
    names = auth.get("x509_subject_alternative_name") or auth.get("x509_common_name") or ()
    return [name.decode(errors="replace") for name in names]


def _token(metadata: Mapping[str, str | bytes]) -> str | None:
    value = _text(metadata.get(TOKEN_KEY))
    return value.removeprefix(BEARER).strip() if value.startswith(BEARER) else None


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
