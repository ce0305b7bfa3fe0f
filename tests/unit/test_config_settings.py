"""Settings: defaults, ranges, and errors that name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from trimtab.access_settings import Role, RoleSection, TlsSection
from trimtab.config import (
    DEFAULT_METRICS_LISTEN,
    default_socket_path,
    default_state_directory,
    load_tables,
    make_settings,
    render_settings,
    split_address,
)
from trimtab.errors import ConfigError
from trimtab.policies.registry import DEFAULT_POLICY
from trimtab_sglang import settings as plugin_settings


def test_without_a_file_everything_has_its_default() -> None:
    settings = make_settings({})

    assert settings.server.metrics_listen == DEFAULT_METRICS_LISTEN
    assert (settings.server.socket, settings.server.listen, settings.server.socket_group) == ("", "", "")
    assert (settings.session.report_interval_ms, settings.session.lease_ttl_s) == (250, 2.0)
    assert (settings.policy.name, settings.policy.parameters) == (DEFAULT_POLICY, {})


FULL = """
[server]
socket = "/run/trimtab/trimtabd.sock"
listen = "[::1]:50051"
socket_group = "inference"
socket_roles = ["engine", "viewer"]
metrics_listen = "0.0.0.0:9464"
max_engines = 64
[server.tls]
cert = "server.pem"
key = "/etc/trimtab/server.key"
client_ca = "ca.pem"
[[server.role]]
role = "engine"
names = ["gpu-*.example.org"]
[[server.role]]
role = "operator"
token_file = "operators.tokens"
[session]
report_interval_ms = 100
lease_ttl_s = 5
[policy]
name = "ucb"
[policy.parameters]
half_life_s = 10.0
"""


def test_a_full_file_is_taken_in_and_printed_as_one_that_means_the_same(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(FULL)
    settings = make_settings(load_tables(path))

    assert settings.server.socket_group == "inference"
    assert settings.server.socket_roles == (Role.ENGINE, Role.VIEWER)
    assert settings.server.tls == TlsSection(
        str(tmp_path / "server.pem"), "/etc/trimtab/server.key", str(tmp_path / "ca.pem")
    )
    assert settings.server.role[1] == RoleSection(Role.OPERATOR, token_file=str(tmp_path / "operators.tokens"))
    assert settings.session.lease_ttl_s == 5.0
    assert settings.policy.parameters == {"half_life_s": 10.0}
    assert make_settings(msgspec.toml.decode(render_settings(settings))) == settings


BAD_TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown table": ({"sesion": {}}, "sesion: unknown key; did you mean session?"),
    "unknown key": (
        {"session": {"report_interval": 250}},
        "session.report_interval: unknown key; did you mean report_interval_ms?",
    ),
    "unknown key like no other": (
        {"session": {"colour": "red"}},
        "session.colour: unknown key; known are: lease_ttl_s, report_interval_ms",
    ),
    "no table": ({"server": 3}, "server: must be a table"),
    "wrong type": (
        {"session": {"report_interval_ms": "fast"}},
        "session.report_interval_ms: expected `int`, got `str`",
    ),
    "interval too short": (
        {"session": {"report_interval_ms": 99}},
        "session.report_interval_ms: must be 100 to 5000, is 99",
    ),
    "interval too long": (
        {"session": {"report_interval_ms": 5001}},
        "session.report_interval_ms: must be 100 to 5000, is 5001",
    ),
    "lease too short": ({"session": {"lease_ttl_s": 0.4}}, "session.lease_ttl_s: must be 0.5 to 60, is 0.4"),
    "lease without end": ({"session": {"lease_ttl_s": float("inf")}}, "session.lease_ttl_s: must be 0.5 to 60, is inf"),
    "no number": ({"session": {"lease_ttl_s": float("nan")}}, "session.lease_ttl_s: must be 0.5 to 60, is nan"),
    "no TLS": (
        {"server": {"listen": "10.0.0.7:50051"}},
        "server.listen: needs TLS: set cert, key and client_ca under [server.tls]; or, to try it out, "
        "use a loopback address with --insecure-loopback, which lets in everybody on this machine",
    ),
    "open to everybody": (
        {"server": {"listen": "10.0.0.7:50051", "insecure_loopback": True}},
        "server.listen: '10.0.0.7' is not a loopback address, and --insecure-loopback lets in everybody: "
        "use 127.0.0.1:PORT, or set [server.tls]",
    ),
    "no address": (
        {"server": {"listen": "localhost", "insecure_loopback": True}}, "server.listen: 'localhost' is not HOST:PORT",
    ),
    "cert without key": (
        {"server": {"tls": {"cert": "x"}}}, "server.tls.key: is missing: TLS needs both cert and key",
    ),
    "key without cert": (
        {"server": {"tls": {"key": "x"}}}, "server.tls.cert: is missing: TLS needs both cert and key",
    ),
    "authorities without cert": (
        {"server": {"tls": {"client_ca": "x"}}},
        "server.tls.cert: is missing: client_ca goes with the daemon's own cert and key",
    ),
    "TLS without TCP": (
        {"server": {"tls": {"cert": "x", "key": "y"}}},
        "server.listen: is missing: TLS is for TCP; give HOST:PORT, or leave [server.tls] out",
    ),
    "TLS for nobody": (
        {"server": {"listen": "h:1", "tls": {"cert": "x", "key": "y", "client_ca": "z"}}},
        "server.role: is missing: nobody may do anything over TCP; add [[server.role]] with role and names",
    ),
    "TLS that is none": (
        {"server": {"listen": "[::1]:1", "insecure_loopback": True, "tls": {"cert": "x", "key": "y"}}},
        "server.insecure_loopback: contradicts [server.tls]: leave one of them out",
    ),
    "names that nobody vouches for": (
        {"server": {"listen": "h:1", "tls": {"cert": "x", "key": "y"}, "role": [{"role": "viewer", "names": ["*"]}]}},
        "server.role[0].names: need server.tls.client_ca, which vouches for certificates",
    ),
    "a role for nobody": (
        {"server": {"role": [{"role": "viewer"}]}},
        "server.role[0]: says nobody: give names of certificates, or a token_file",
    ),
    "an empty name": (
        {"server": {"tls": {"client_ca": "z"}, "role": [{"role": "viewer", "names": [""]}]}},
        "server.role[0].names: must be 1 to 256 patterns, none of them empty",
    ),
    "no role": (
        {"server": {"role": [{"role": "boss", "names": ["*"]}]}},
        "server.role[0].role: 'boss' is no role; there are: engine, viewer, operator",
    ),
    "no role of the socket": (
        {"server": {"socket_roles": ["boss"]}},
        "server.socket_roles[0]: 'boss' is no role; there are: engine, viewer, operator",
    ),
    "unknown key of TLS": ({"server": {"tls": {"certs": "x"}}}, "server.tls.certs: unknown key; did you mean cert?"),
    "unknown key of a role": (
        {"server": {"role": [{"nam": "x"}]}}, "server.role[0].nam: unknown key; did you mean names?",
    ),
    "TLS as a word": ({"server": {"tls": "yes"}}, "server.tls: must be a table"),
    "no engines": ({"server": {"max_engines": 0}}, "server.max_engines: must be 1 to 65536, is 0"),
    "no port": ({"server": {"metrics_listen": "here:http"}}, "server.metrics_listen: 'here:http' is not HOST:PORT"),
    "long socket": (
        {"server": {"socket": "/" + "s" * 107}},
        "server.socket: longer than the 107 bytes of a socket path: shorten it",
    ),
    "unknown policy": ({"policy": {"name": "fixd"}}, "policy.name: unknown policy 'fixd'; did you mean fixed?"),
    "unknown parameter": (
        {"policy": {"name": "ucb", "parameters": {"half_life": 1}}},
        "policy.parameters.half_life: unknown key; did you mean half_life_s?",
    ),
    "parameter out of range": (
        {"policy": {"name": "ucb", "parameters": {"half_life_s": -1.0}}},
        "policy.parameters: policy 'ucb': Expected `float` > 0.0 - at `$.half_life_s`",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tables", "words"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_what_cannot_be_used_is_named_with_its_range_or_its_nearest_name(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_settings(tables)

    assert str(caught.value) == words
    assert words.startswith(caught.value.key)


@pytest.mark.parametrize(("interval_ms", "lease_ttl_s"), [(100, 0.5), (5000, 60.0)])
def test_the_ends_of_the_ranges_can_be_used(interval_ms: int, lease_ttl_s: float) -> None:
    make_settings({"session": {"report_interval_ms": interval_ms, "lease_ttl_s": lease_ttl_s}})


@pytest.mark.parametrize("text", [b"[session", b"\xff\xfe", b"a = "])
def test_a_file_that_is_no_toml_is_named(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match="is not TOML") as caught:
        load_tables(path)

    assert caught.value.key == str(path)


ADDRESSES = {"127.0.0.1:80": ("127.0.0.1", 80), "[::1]:0": ("::1", 0), "localhost:65535": ("localhost", 65535)}


@pytest.mark.parametrize(("address", "parts"), ADDRESSES.items())
def test_addresses_are_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address("key", address) == parts


@pytest.mark.parametrize("address", ["", ":80", "host", "host:", "host:65536", "host:-1", "::1:80"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        split_address("key", address)


SOCKET_PATHS: list[tuple[dict[str, str], int, str]] = [
    ({"XDG_RUNTIME_DIR": "/run/user/1000"}, 1000, "/run/user/1000/trimtab/trimtabd.sock"),
    ({}, 0, "/run/trimtab/trimtabd.sock"),
    ({"XDG_RUNTIME_DIR": "/run/user/0"}, 0, "/run/trimtab/trimtabd.sock"),
    ({"XDG_RUNTIME_DIR": ""}, 1000, "/tmp/trimtab-1000/trimtabd.sock"),
    ({}, 1000, "/tmp/trimtab-1000/trimtabd.sock"),
]


@pytest.mark.parametrize(("environ", "uid", "path"), SOCKET_PATHS)
def test_daemon_and_plugin_agree_on_the_default_socket(environ: dict[str, str], uid: int, path: str) -> None:
    assert str(default_socket_path(environ, uid)) == path
    assert plugin_settings.default_socket_path(environ, uid) == path


STATE_DIRECTORIES = [
    ({}, 0, "/var/lib/trimtab"),
    ({"HOME": "/root", "XDG_STATE_HOME": "/root/state"}, 0, "/var/lib/trimtab"),
    ({"HOME": "/home/kim"}, 1000, "/home/kim/.local/state/trimtab"),
    ({"HOME": "/home/kim", "XDG_STATE_HOME": "/data/state"}, 1000, "/data/state/trimtab"),
    ({"STATE_DIRECTORY": "/var/lib/steering", "HOME": "/home/kim"}, 1000, "/var/lib/steering"),
    ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}, 0, "/var/lib/a"),
]


@pytest.mark.parametrize(("environ", "uid", "path"), STATE_DIRECTORIES)
def test_the_journal_is_where_services_and_users_keep_their_state(environ: dict[str, str], uid: int, path: str) -> None:
    assert str(default_state_directory(environ, uid)) == path


@pytest.mark.parametrize(
    ("journal", "words"),
    [
        ({"max_mb": 0}, "journal.max_mb: must be 1 to"),
        ({"max_age_days": 0.0}, "journal.max_age_days: must be 0.01 to 3650, is 0"),
        ({"max_age_days": float("nan")}, "journal.max_age_days: must be 0.01 to 3650"),
        ({"max_bm": 5}, "journal.max_bm: unknown key; did you mean max_mb?"),
    ],
)
def test_a_journal_that_cannot_be_kept_is_named(journal: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_settings({"journal": journal})
    assert str(error.value).startswith(words)
