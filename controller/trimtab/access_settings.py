"""Who may do what: the settings of roles, TLS and TCP, and what of them goes together.

An error names the key (`server.tls.key`) and says what to do.
"""

from __future__ import annotations

import ipaddress
import re
from enum import StrEnum

import msgspec

from trimtab.errors import ConfigError

MAX_ROLES = 64
MAX_PATTERNS = 256


class Role(StrEnum):
    """What a peer is to the controller. An operator may do all that a viewer may."""

    ENGINE = "engine"
    VIEWER = "viewer"
    OPERATOR = "operator"


class TlsSection(msgspec.Struct, frozen=True):
    """TLS on TCP. With a `client_ca`, only clients with a certificate of it get through.

    Attributes:
        cert: PEM file with the daemon's certificate, and those between it and the root.
        key: PEM file with its private key.
        client_ca: PEM file with the authorities of client certificates; empty: clients show a token instead.
    """

    cert: str = ""
    key: str = ""
    client_ca: str = ""


class RoleSection(msgspec.Struct, frozen=True):
    """A role, and who has it: by the names in a client's certificate, or by a token.

    Attributes:
        role: engine, viewer or operator.
        names: Patterns such as `gpu-*.example.org`, for one of the certificate's alternative names, or for its
            common name where it has none.
        token_file: File with a `NAME TOKEN` on each line, readable by the daemon's user alone.
    """

    role: Role
    names: tuple[str, ...] = ()
    token_file: str = ""


class ServerSection(msgspec.Struct, frozen=True):
    """Where the daemon listens, and who may do what there.

    Attributes:
        socket: Path of the Unix socket; empty for the default path.
        socket_group: Group that may use the socket; empty for the daemon's user alone.
        socket_roles: What everybody may be who can open the socket.
        listen: HOST:PORT to listen on besides; empty for none.
        insecure_loopback: Whether `listen` goes without TLS, for everybody on this machine.
        metrics_listen: HOST:PORT of /metrics, or "off".
        max_engines: Engines to know at the same time.
        tls: TLS of `listen`.
        role: Who may do what on `listen`.
    """

    socket: str = ""
    socket_group: str = ""
    socket_roles: tuple[Role, ...] = (Role.ENGINE, Role.OPERATOR)
    listen: str = ""
    insecure_loopback: bool = False
    metrics_listen: str = "127.0.0.1:9464"
    max_engines: int = 1024
    tls: TlsSection = TlsSection()
    role: tuple[RoleSection, ...] = ()


def check_access(server: ServerSection) -> None:
    """Raise `ConfigError` unless it is clear who may do what on TCP, and nobody is let in by mistake."""
    _check_roles(server)
    tls = server.tls
    if bool(tls.cert) != bool(tls.key):
        raise ConfigError(f"server.tls.{'key' if tls.cert else 'cert'}", "is missing: TLS needs both cert and key")
    if tls.client_ca and not tls.cert:
        raise ConfigError("server.tls.cert", "is missing: client_ca goes with the daemon's own cert and key")
    if tls.cert and not server.listen:
        raise ConfigError("server.listen", "is missing: TLS is for TCP; give HOST:PORT, or leave [server.tls] out")
    if server.listen and tls.cert:
        _check_secure(server)
    elif server.listen:
        _check_insecure(server)


def _check_roles(server: ServerSection) -> None:
    if len(server.role) > MAX_ROLES:
        raise ConfigError("server.role", f"has {len(server.role)} entries, at most {MAX_ROLES}")
    for i, entry in enumerate(server.role):
        if not entry.names and not entry.token_file:
            raise ConfigError(f"server.role[{i}]", "says nobody: give names of certificates, or a token_file")
        if entry.names and not server.tls.client_ca:
            raise ConfigError(f"server.role[{i}].names", "need server.tls.client_ca, which vouches for certificates")
        if len(entry.names) > MAX_PATTERNS or not all(entry.names):
            raise ConfigError(f"server.role[{i}].names", f"must be 1 to {MAX_PATTERNS} patterns, none of them empty")


def _check_secure(server: ServerSection) -> None:
    split_address("server.listen", server.listen)
    if server.insecure_loopback:
        raise ConfigError("server.insecure_loopback", "contradicts [server.tls]: leave one of them out")
    if not server.role:
        raise ConfigError(
            "server.role", "is missing: nobody may do anything over TCP; add [[server.role]] with role and names"
        )
    if not server.tls.client_ca and not any(entry.token_file for entry in server.role):
        raise ConfigError("server.tls.client_ca", "is missing: clients need a certificate, or a token_file for tokens")


def _check_insecure(server: ServerSection) -> None:
    host, _ = split_address("server.listen", server.listen)
    if not server.insecure_loopback:
        raise ConfigError(
            "server.listen",
            "needs TLS: set cert, key and client_ca under [server.tls]; or, to try it out, "
            "use a loopback address with --insecure-loopback, which lets in everybody on this machine",
        )
    if not _is_loopback(host):
        raise ConfigError(
            "server.listen",
            f"{host!r} is not a loopback address, and --insecure-loopback lets in everybody: "
            "use 127.0.0.1:PORT, or set [server.tls]",
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_address(key: str, address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT or [IPV6]:PORT.

    Raises:
        ConfigError: It is neither; `key` is named.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigError(key, f"{address!r} is not HOST:PORT")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ConfigError(key, f"{address!r} is not HOST:PORT; write an IPv6 address as [ADDRESS]:PORT")
    return host.strip("[]"), int(port)
