"""What the operator told the plugin, from `TRIMTAB_*` environment variables."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from trimtab_sglang.lease import Mode, ModeKind, speculate

__version__ = "0.1.0"

MAX_LABELS = 64
DEFAULT_SWEEP_SECONDS = 20.0
SWEEP_SECONDS = (1.0, 600.0)
DEFAULT_CATCH_UP_MIB = 256
CATCH_UP_MIB = (1, 65_536)
MAX_TEXT = 256
CREDENTIALS = ("tls_ca", "tls_cert", "tls_key", "tls_name", "token_file")
LAST_SECONDS = (1.0, 86_400.0)
MAX_STEPS = 64


class PluginMode(StrEnum):
    """How far the plugin goes: nothing at all, report only, or follow the controller as well."""

    OFF = "off"
    OBSERVE = "observe"
    ACT = "act"


class SettingError(ValueError):
    """A `TRIMTAB_*` variable that cannot be used; the message names it and says what it takes."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What secures the connection to the controller, and who we show that we are: paths of files, not read yet.

    Attributes:
        tls_ca: `TRIMTAB_TLS_CA`: authorities (PEM) of the controller's certificate.
        tls_cert: `TRIMTAB_TLS_CERT`: our own certificate.
        tls_key: `TRIMTAB_TLS_KEY`: its private key.
        tls_name: `TRIMTAB_TLS_NAME`: the name in the controller's certificate, where it is not the host's.
        token_file: `TRIMTAB_TOKEN_FILE`: a token, or `NAME TOKEN` as in the controller's own file.
    """

    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_name: str = ""
    token_file: str = ""

    @property
    def secure(self) -> bool:
        """Whether TCP goes with TLS."""
        return bool(self.tls_ca or self.tls_cert)


def read_credentials(environ: Mapping[str, str]) -> Credentials:
    """Credentials from the environment; `SettingError` if a certificate has no key, or a key no certificate."""
    found = Credentials(**{name: environ.get(f"TRIMTAB_{name.upper()}", "").strip() for name in CREDENTIALS})
    if bool(found.tls_cert) != bool(found.tls_key):
        lacking = "TRIMTAB_TLS_KEY" if found.tls_cert else "TRIMTAB_TLS_CERT"
        raise SettingError(f"{lacking} is missing: a certificate and its key go together")
    return found


@dataclass(frozen=True, slots=True)
class OnExpiry:
    """What runs when the life of the last lease is over: that lease for `last_s` more, then `mode`.

    `mode` None is the engine's own policy.
    """

    mode: Mode | None = None
    last_s: float = 0.0

    def __str__(self) -> str:
        return f"last:{self.last_s:g}" if self.last_s else str(self.mode or "stock")


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """The plugin's settings.

    Attributes:
        mode: `TRIMTAB_MODE`.
        controller: `TRIMTAB_CONTROLLER`: `unix:PATH` or `HOST:PORT`.
        engine_id: `TRIMTAB_ENGINE_ID`; empty takes the host's name and the server's port.
        labels: `TRIMTAB_LABELS`: `key=value,key=value`.
        sweep: `TRIMTAB_SWEEP`: measure every mode with dummy requests at start-up.
        sweep_seconds: `TRIMTAB_SWEEP_SECONDS`: how long that may take.
        dp_attention: `TRIMTAB_DP_ATTENTION`: act under data-parallel attention, where SGLang refuses.
        native_plain: `TRIMTAB_NATIVE_PLAIN`: capture a decode graph at start-up, and offer native plain.
        catch_up_mib: `TRIMTAB_CATCH_UP_MIB`: memory for the hidden states that the draft model catches up with.
        on_expiry: `TRIMTAB_ON_EXPIRY`: `stock`, `last:SECONDS`, `plain_warm` (or another plain) or `speculate:STEPS`.
        credentials: `TRIMTAB_TLS_*` and `TRIMTAB_TOKEN_FILE`.
    """

    mode: PluginMode = PluginMode.ACT
    controller: str = ""
    engine_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    sweep: bool = False
    sweep_seconds: float = DEFAULT_SWEEP_SECONDS
    dp_attention: bool = False
    native_plain: bool = True
    catch_up_mib: int = DEFAULT_CATCH_UP_MIB
    on_expiry: OnExpiry = OnExpiry()
    credentials: Credentials = Credentials()


def read_settings(environ: Mapping[str, str] | None = None) -> PluginSettings:
    """Settings from the environment; `SettingError` names the variable that cannot be used."""
    environ = os.environ if environ is None else environ
    return PluginSettings(
        mode=_mode(environ.get("TRIMTAB_MODE", "").strip().lower()),
        controller=_controller(environ.get("TRIMTAB_CONTROLLER", "").strip(), environ),
        engine_id=_text("TRIMTAB_ENGINE_ID", environ.get("TRIMTAB_ENGINE_ID", "").strip()),
        labels=_labels(environ.get("TRIMTAB_LABELS", "").strip()),
        sweep=_switch("TRIMTAB_SWEEP", environ.get("TRIMTAB_SWEEP", "").strip()),
        sweep_seconds=_seconds("TRIMTAB_SWEEP_SECONDS", environ.get("TRIMTAB_SWEEP_SECONDS", "").strip()),
        dp_attention=_switch("TRIMTAB_DP_ATTENTION", environ.get("TRIMTAB_DP_ATTENTION", "").strip()),
        native_plain=_switch("TRIMTAB_NATIVE_PLAIN", environ.get("TRIMTAB_NATIVE_PLAIN", "").strip() or "1"),
        catch_up_mib=_mib("TRIMTAB_CATCH_UP_MIB", environ.get("TRIMTAB_CATCH_UP_MIB", "").strip()),
        on_expiry=_on_expiry(environ.get("TRIMTAB_ON_EXPIRY", "").strip().lower()),
        credentials=read_credentials(environ),
    )


def default_socket_path(environ: Mapping[str, str], uid: int) -> str:
    """Where a `trimtabd` of the same user listens unless it was told otherwise.

    The same rule as in the controller's `config.py`: neither side may import the other.
    """
    runtime_dir = environ.get("XDG_RUNTIME_DIR")
    folder = "/run/trimtab" if uid == 0 else f"{runtime_dir}/trimtab" if runtime_dir else f"/tmp/trimtab-{uid}"
    return f"{folder}/trimtabd.sock"


def default_engine_id(port: int | None) -> str:
    """The host's name and the server's port."""
    return f"{platform.node() or 'localhost'}:{port or 0}"


def _mode(text: str) -> PluginMode:
    try:
        return PluginMode(text or PluginMode.ACT)
    except ValueError:
        raise SettingError(f"TRIMTAB_MODE is {text!r}; it takes off, observe or act") from None


def _controller(text: str, environ: Mapping[str, str]) -> str:
    if not text:
        return f"unix:{default_socket_path(environ, os.getuid())}"
    host, colon, port = text.rpartition(":")
    if text.startswith("unix:") or (colon and host and port.isdigit()):
        return text
    raise SettingError(f"TRIMTAB_CONTROLLER is {text!r}; it takes unix:/path/to/socket or host:port")


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise SettingError(f"TRIMTAB_LABELS has {part!r}; it takes key=value,key=value")
        labels[_text("TRIMTAB_LABELS", key.strip())] = _text("TRIMTAB_LABELS", value.strip())
    if len(labels) > MAX_LABELS:
        raise SettingError(f"TRIMTAB_LABELS has {len(labels)} labels, at most {MAX_LABELS}")
    return labels


def _switch(variable: str, text: str) -> bool:
    if text not in ("", "0", "1"):
        raise SettingError(f"{variable} is {text!r}; it takes 0 or 1")
    return text == "1"


def _seconds(variable: str, text: str) -> float:
    try:
        seconds = float(text or DEFAULT_SWEEP_SECONDS)
    except ValueError:
        seconds = -1.0
    low, high = SWEEP_SECONDS
    if not low <= seconds <= high:
        raise SettingError(f"{variable} is {text!r}; it takes seconds, {low:g} to {high:g}")
    return seconds


def _mib(variable: str, text: str) -> int:
    low, high = CATCH_UP_MIB
    text = text or str(DEFAULT_CATCH_UP_MIB)
    if not text.isdecimal() or not low <= int(text) <= high:
        raise SettingError(f"{variable} is {text!r}; it takes mebibytes, {low} to {high}")
    return int(text)


def _on_expiry(text: str) -> OnExpiry:
    kind, _, number = text.partition(":")
    low, high = LAST_SECONDS
    with contextlib.suppress(ValueError):
        if text in ("", "stock"):
            return OnExpiry()
        if kind == "last" and low <= float(number) <= high:
            return OnExpiry(last_s=float(number))
        if kind == "speculate" and 1 <= int(number) <= MAX_STEPS:
            return OnExpiry(speculate(int(number)))
        if text.startswith("plain_"):
            return OnExpiry(Mode(ModeKind(text)))
    raise SettingError(
        f"TRIMTAB_ON_EXPIRY is {text!r}; it takes stock, last:SECONDS ({low:g} to {high:g}), plain_warm, plain_cold, "
        f"plain_native or speculate:STEPS (1 to {MAX_STEPS})"
    )


def _text(variable: str, text: str) -> str:
    if len(text) > MAX_TEXT or not text.isprintable():
        raise SettingError(f"{variable} has a value over {MAX_TEXT} characters or with control characters")
    return text
