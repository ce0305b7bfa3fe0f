"""The connection to a controller: how it is secured, and what is shown there. The command line uses it as well."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from trimtab_sglang.settings import Credentials

BEARER = "Bearer"
MAX_FILE_BYTES = 1 << 20

Metadata = tuple[tuple[str, str], ...]


class CredentialsError(ValueError):
    """A file of the credentials that cannot be used; the message names the variable and says what to do."""


def open_channel(address: str, credentials: Credentials, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
    """A channel to `unix:PATH` or HOST:PORT, with TLS where the credentials say so. Files are read now.

    Raises:
        CredentialsError: A file cannot be read, or a token would go over the network for everybody to read.
    """
    if address.startswith("unix:") or not credentials.secure:
        if credentials.token_file and not address.startswith("unix:"):
            raise CredentialsError("TRIMTAB_TOKEN_FILE needs TLS on TCP: set TRIMTAB_TLS_CA as well")
        return grpc.insecure_channel(address, options)
    with_tls = grpc.ssl_channel_credentials(
        _read("TRIMTAB_TLS_CA", credentials.tls_ca) if credentials.tls_ca else None,
        _read("TRIMTAB_TLS_KEY", credentials.tls_key) if credentials.tls_key else None,
        _read("TRIMTAB_TLS_CERT", credentials.tls_cert) if credentials.tls_cert else None,
    )
    named = [("grpc.ssl_target_name_override", credentials.tls_name)] if credentials.tls_name else []
    return grpc.secure_channel(address, with_tls, [*options, *named])


def shown(credentials: Credentials) -> Metadata:
    """What goes with every call: the token, read now, so that a new one counts from the next call on.

    Raises:
        CredentialsError: The file cannot be read, or has no token.
    """
    if not credentials.token_file:
        return ()
    words = _read("TRIMTAB_TOKEN_FILE", credentials.token_file).decode(errors="replace").split()
    if not words or not words[-1].isascii() or not words[-1].isprintable():
        raise CredentialsError(f"TRIMTAB_TOKEN_FILE: {credentials.token_file} has no token")
    return (("authorization", f"{BEARER} {words[-1]}"),)


def _read(variable: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise CredentialsError(f"{variable}: {path} cannot be read: {error.strerror or error}") from error
