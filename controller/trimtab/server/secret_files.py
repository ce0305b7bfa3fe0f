"""Files that say who may come in: certificates, private keys, tokens. Nobody else may have written or read them."""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from trimtab.access_settings import TlsSection
from trimtab.errors import ConfigError

# A group may read a secret (that is how containers share one); nobody may write it, and others may not read it.
FORBIDDEN_BITS = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO
MAX_FILE_BYTES = 1 << 20
MAX_TOKENS = 1024
MIN_TOKEN_CHARACTERS = 16
LOOK_EVERY_S = 1.0

log = structlog.get_logger("trimtab")


@dataclass(frozen=True, slots=True)
class Token:
    """One line of a token file: whose it is, and a digest of it (the token itself is not kept)."""

    name: str
    digest: bytes


class TokenFile:
    """The tokens of one file, read again when it changed. One that cannot be used any more lets nobody in.

    Args:
        key: The setting that names it, for messages.
        path: Where it is.
        now_s: A monotonic clock.
    """

    def __init__(self, key: str, path: Path, now_s: Callable[[], float]) -> None:
        self._key = key
        self._path = path
        self._now_s = now_s
        self._looked_at_s = now_s()
        self._seen = _identity(path)
        self._tokens = read_tokens(key, path)

    def name_of(self, token: str) -> str | None:
        """Whose token this is. It takes as long for a wrong one as for a right one."""
        self._look()
        digest, found = _digest(token), None
        for known in self._tokens:
            if hmac.compare_digest(known.digest, digest):
                found = known.name
        return found

    def _look(self) -> None:
        now_s = self._now_s()
        if now_s - self._looked_at_s < LOOK_EVERY_S:
            return
        self._looked_at_s = now_s
        seen = _identity(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._tokens = read_tokens(self._key, self._path)
            log.info("tokens_read", file=str(self._path), tokens=len(self._tokens))
        except ConfigError as error:
            self._tokens = ()
            log.warning("tokens_unusable", file=str(self._path), why=str(error))


def read_tokens(key: str, path: Path) -> tuple[Token, ...]:
    """The tokens of a file with `NAME TOKEN` on each line; `#` begins a comment.

    Raises:
        ConfigError: It cannot be read, others can, or a line is none; `key` and the line are named, never the token.
    """
    text = _read_secret(key, path).decode(errors="replace")
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
    found = [_token(f"{key}: {path}:{number}", words) for number, words in lines if words and words[0][0] != "#"]
    if len(found) > MAX_TOKENS:
        raise ConfigError(key, f"{path} has {len(found)} tokens, at most {MAX_TOKENS}")
    return tuple(found)


def _token(place: str, words: list[str]) -> Token:
    if len(words) != 2:
        raise ConfigError("", f"{place}: must be NAME TOKEN")
    name, token = words
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise ConfigError("", f"{place}: the token of {name} is shorter than {MIN_TOKEN_CHARACTERS} characters")
    return Token(name[:64], _digest(token))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def server_credentials(tls: TlsSection) -> grpc.ServerCredentials:
    """What gRPC needs to talk TLS; with a client_ca, nobody gets through without a certificate of it.

    Raises:
        ConfigError: A file cannot be read, others can read the key, or they do not fit together.
    """
    cert = _read("server.tls.cert", Path(tls.cert))
    key = _read_secret("server.tls.key", Path(tls.key))
    client_ca = _read("server.tls.client_ca", Path(tls.client_ca)) if tls.client_ca else None
    _check_pair(tls)
    return grpc.ssl_server_credentials([(key, cert)], client_ca, require_client_auth=client_ca is not None)


def _check_pair(tls: TlsSection) -> None:
    """Let OpenSSL say what is wrong with the files: gRPC would only fail at the first handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.cert, tls.key, password=lambda: b"")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError("server.tls.cert", f"{tls.cert} and {tls.key} are no pair in PEM: {_why(error)}") from error
    try:
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            "server.tls.client_ca", f"{tls.client_ca} has no certificate in PEM: {_why(error)}"
        ) from error


def _why(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error) or type(error).__name__


def _read_secret(key: str, path: Path) -> bytes:
    """The content of a file that nobody else may have read or written."""
    content = _read(key, path)
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(key, f"{path} belongs to user {status.st_uid}: it must be the daemon's own, or root's")
    if status.st_mode & FORBIDDEN_BITS:
        raise ConfigError(key, f"{path} has mode {stat.S_IMODE(status.st_mode):04o}: chmod 0600 it (0640 at most)")
    return content


def _read(key: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(key, f"{path} cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(key, f"{path} is larger than {MAX_FILE_BYTES} bytes")
    return content


def _identity(path: Path) -> tuple[int, ...]:
    """Changes whenever the file does."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode, status.st_uid
