"""The `TRIMTAB_*` variables of the engine's process."""

from __future__ import annotations

import os
import platform

import pytest

from trimtab.config import default_socket_path as controllers_socket_path
from trimtab_sglang.lease import PLAIN_WARM, speculate
from trimtab_sglang.settings import (
    MAX_LABELS,
    MAX_TEXT,
    OnExpiry,
    PluginMode,
    PluginSettings,
    SettingError,
    default_engine_id,
    default_socket_path,
    read_settings,
)


def test_without_variables_the_plugin_acts_and_looks_for_a_daemon_of_the_same_user() -> None:
    assert read_settings({}) == PluginSettings(
        PluginMode.ACT,
        f"unix:{default_socket_path({}, os.getuid())}",
        engine_id="",
        labels={},
        sweep=False,
        sweep_seconds=20.0,
    )


GOOD: list[tuple[dict[str, str], dict[str, object]]] = [
    ({"TRIMTAB_MODE": "off"}, {"mode": PluginMode.OFF}),
    ({"TRIMTAB_MODE": " Observe "}, {"mode": PluginMode.OBSERVE}),
    ({"TRIMTAB_MODE": "ACT"}, {"mode": PluginMode.ACT}),
    ({"TRIMTAB_MODE": ""}, {"mode": PluginMode.ACT}),
    ({"TRIMTAB_CONTROLLER": "unix:/x/y.sock"}, {"controller": "unix:/x/y.sock"}),
    ({"TRIMTAB_CONTROLLER": " 127.0.0.1:50051 "}, {"controller": "127.0.0.1:50051"}),
    ({"TRIMTAB_CONTROLLER": "[::1]:50051"}, {"controller": "[::1]:50051"}),
    ({"TRIMTAB_ENGINE_ID": " llama-1 "}, {"engine_id": "llama-1"}),
    ({"TRIMTAB_ENGINE_ID": "x" * MAX_TEXT}, {"engine_id": "x" * MAX_TEXT}),
    ({"TRIMTAB_LABELS": "a=1, b = two words ,,c="}, {"labels": {"a": "1", "b": "two words", "c": ""}}),
    ({"TRIMTAB_LABELS": "url=http://x/?a=b"}, {"labels": {"url": "http://x/?a=b"}}),
    ({"TRIMTAB_SWEEP": " 1 "}, {"sweep": True}),
    ({"TRIMTAB_SWEEP": "0"}, {"sweep": False}),
    ({"TRIMTAB_SWEEP_SECONDS": "7.5"}, {"sweep_seconds": 7.5}),
    ({"TRIMTAB_NATIVE_PLAIN": " 0 "}, {"native_plain": False}),
    ({"TRIMTAB_NATIVE_PLAIN": ""}, {"native_plain": True}),
    ({"TRIMTAB_CATCH_UP_MIB": "512"}, {"catch_up_mib": 512}),
    ({"TRIMTAB_CATCH_UP_MIB": ""}, {"catch_up_mib": 256}),
    ({"TRIMTAB_ON_EXPIRY": ""}, {"on_expiry": OnExpiry()}),
    ({"TRIMTAB_ON_EXPIRY": " Stock "}, {"on_expiry": OnExpiry()}),
    ({"TRIMTAB_ON_EXPIRY": "last:90"}, {"on_expiry": OnExpiry(last_s=90)}),
    ({"TRIMTAB_ON_EXPIRY": "last:2.5"}, {"on_expiry": OnExpiry(last_s=2.5)}),
    ({"TRIMTAB_ON_EXPIRY": "plain_warm"}, {"on_expiry": OnExpiry(PLAIN_WARM)}),
    ({"TRIMTAB_ON_EXPIRY": "speculate:3"}, {"on_expiry": OnExpiry(speculate(3))}),
]


@pytest.mark.parametrize(("environ", "expected"), GOOD)
def test_each_variable_sets_what_it_says(environ: dict[str, str], expected: dict[str, object]) -> None:
    found = read_settings(environ)
    assert {name: getattr(found, name) for name in expected} == expected


BAD: list[tuple[str, str, str]] = [
    ("TRIMTAB_MODE", "on", "is 'on'; it takes off, observe or act"),
    ("TRIMTAB_CONTROLLER", "/run/trimtab.sock", "it takes unix:/path/to/socket or host:port"),
    ("TRIMTAB_CONTROLLER", "localhost", "it takes unix:/path/to/socket or host:port"),
    ("TRIMTAB_CONTROLLER", ":50051", "it takes unix:/path/to/socket or host:port"),
    ("TRIMTAB_CONTROLLER", "host:port", "it takes unix:/path/to/socket or host:port"),
    ("TRIMTAB_ENGINE_ID", "x" * (MAX_TEXT + 1), "over 256 characters or with control characters"),
    ("TRIMTAB_ENGINE_ID", "a\nb", "over 256 characters or with control characters"),
    ("TRIMTAB_LABELS", "a", "has 'a'; it takes key=value,key=value"),
    ("TRIMTAB_LABELS", "=1", "has '=1'; it takes key=value,key=value"),
    ("TRIMTAB_LABELS", f"a={'x' * (MAX_TEXT + 1)}", "over 256 characters or with control characters"),
    *[("TRIMTAB_SWEEP", value, f"is {value!r}; it takes 0 or 1") for value in ("yes", "2")],
    *[
        ("TRIMTAB_SWEEP_SECONDS", value, f"is {value!r}; it takes seconds, 1 to 600")
        for value in ("0.5", "601", "soon", "nan", "inf")
    ],
    *[
        ("TRIMTAB_CATCH_UP_MIB", value, f"is {value!r}; it takes mebibytes, 1 to 65536")
        for value in ("0", "65537", "1.5", "-1", "much")
    ],
    *[
        (
            "TRIMTAB_ON_EXPIRY",
            value,
            f"is {value!r}; it takes stock, last:SECONDS (1 to 86400), plain_warm, plain_cold, ",
        )
        for value in (
            "last",
            "last:",
            "last:0",
            "last:0.5",
            "last:100000",
            "last:nan",
            "plain",
            "plain_hot",
            "speculate",
            "speculate:0",
            "speculate:65",
            "speculate:three",
            "speculate(3)",
            "stock:1",
        )
    ],
    ("TRIMTAB_LABELS", ",".join(f"k{i}=1" for i in range(MAX_LABELS + 1)), "has 65 labels, at most 64"),
]


@pytest.mark.parametrize(("variable", "value", "words"), BAD)
def test_a_value_that_cannot_be_used_is_an_error_that_names_the_variable(variable: str, value: str, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_settings({variable: value})
    assert str(caught.value).startswith(variable)
    assert words in str(caught.value)


def test_the_process_environment_is_read_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_MODE", "observe")
    assert read_settings().mode is PluginMode.OBSERVE


@pytest.mark.parametrize("text", ["stock", "last:90", "plain_warm"])
def test_what_happens_on_expiry_is_said_as_it_was_set(text: str) -> None:
    assert str(read_settings({"TRIMTAB_ON_EXPIRY": text}).on_expiry) == text


@pytest.mark.parametrize("uid", [0, 1000])
@pytest.mark.parametrize("environ", [{}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "/run/user/1000"}])
def test_plugin_and_controller_meet_at_the_same_socket(environ: dict[str, str], uid: int) -> None:
    assert default_socket_path(environ, uid) == str(controllers_socket_path(environ, uid))


@pytest.mark.parametrize(("port", "expected"), [(30000, ":30000"), (None, ":0")])
def test_without_an_id_an_engine_is_its_host_and_port(port: int | None, expected: str) -> None:
    assert default_engine_id(port) == platform.node() + expected


def test_plugin_and_controller_are_of_one_version() -> None:
    from trimtab import __version__ as controller_version
    from trimtab_sglang.settings import __version__ as plugin_version

    assert plugin_version == controller_version
