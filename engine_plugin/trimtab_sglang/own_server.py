"""The HTTP server in front of this engine, as a client on the same machine sees it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Any

LOOK_TIMEOUT_S = 5.0
ABORT_TIMEOUT_S = 2.0
GENERATE_TIMEOUT_S = 120.0
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}


class ServerError(Exception):
    """The server cannot be used, or it failed a request."""


class OwnServer:
    """Asks the server for dummy work.

    Args:
        host: Address that it listens on.
        port: Its port.
        api_key: What its clients must show; empty for nothing.
    """

    def __init__(self, host: str, port: int, api_key: str = "") -> None:
        self._host = ANY_ADDRESS.get(host, host)
        self._port = port
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    @classmethod
    def of(cls, server: Mapping[str, Any]) -> OwnServer:
        """The server of these settings of SGLang's.

        Raises:
            ServerError: There is none that we could talk to.
        """
        port = server.get("port")
        if not isinstance(port, int) or not port:
            raise ServerError("there is no HTTP server")
        if server.get("ssl_certfile"):
            raise ServerError("the HTTP server speaks TLS only")
        return cls(str(server.get("host") or ""), port, str(server.get("api_key") or ""))

    @property
    def address(self) -> str:
        """Host and port, for people."""
        return f"{self._host}:{self._port}"

    def healthy(self) -> bool:
        """Whether it would serve a request now."""
        try:
            return self._ask("GET", "/health", None, LOOK_TIMEOUT_S)[0] == http.HTTPStatus.OK
        except ServerError:
            return False

    def generate(self, prompts: Sequence[Sequence[int]], rids: Sequence[str], tokens: int) -> None:
        """Generate so many tokens for every prompt, all at once; returns when the last one is through.

        Raises:
            ServerError: The server refused or failed.
        """
        parameters = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = {"input_ids": [list(p) for p in prompts], "rid": list(rids), "sampling_params": parameters}
        status, answer = self._ask("POST", "/generate", body, GENERATE_TIMEOUT_S)
        if status != http.HTTPStatus.OK:
            raise ServerError(f"the server at {self.address} refused a dummy request ({status}): {answer[:200]}")

    def abort(self, rids: Sequence[str]) -> None:
        """Take back these requests, as far as the server lets us."""
        connection = self._connect(ABORT_TIMEOUT_S)
        try:
            for rid in rids:
                if self._ask_over(connection, "POST", "/abort_request", {"rid": rid})[0] != http.HTTPStatus.OK:
                    return
        except ServerError:
            return
        finally:
            connection.close()

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> tuple[int, str]:
        connection = self._connect(timeout_s)
        try:
            return self._ask_over(connection, method, path, body)
        finally:
            connection.close()

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)

    def _ask_over(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[int, str]:
        """Status and text of the answer."""
        try:
            connection.request(method, path, None if body is None else json.dumps(body), self._headers)
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"the server at {self.address} does not answer: {error}") from error
