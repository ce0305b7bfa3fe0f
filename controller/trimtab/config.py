"""The daemon's settings: read from TOML, completed with defaults, then checked.

An error names the key (`session.report_interval_ms`) and the range or the nearest known key.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from trimtab.access_settings import Role, RoleSection, ServerSection, TlsSection, check_access
from trimtab.access_settings import split_address as split_address
from trimtab.domain import CostKey
from trimtab.errors import ConfigError, DataError, PolicyError
from trimtab.policies.registry import DEFAULT_POLICY, POLICIES, policy_factory
from trimtab.profile_file import (
    INDISPENSABLE,
    ContextContent,
    KeyContent,
    PointContent,
    ProfileContent,
    keyed_profile,
    read_profile,
)
from trimtab.session.profiles import KeyedProfile

OFF = "off"
DEFAULT_METRICS_LISTEN = ServerSection().metrics_listen
REPORT_INTERVAL_MS = (100, 5000)
LEASE_TTL_S = (0.5, 60.0)
JOURNAL_MAX_MB = (1, 1_048_576)
JOURNAL_MAX_AGE_DAYS = (0.01, 3650.0)
MAX_ENGINES = (1, 65_536)
# sun_path of a Unix socket address holds 108 bytes, the last of them 0.
MAX_SOCKET_PATH_BYTES = 107


class SessionSection(msgspec.Struct, frozen=True):
    """How engines are led: how often they report, how long a lease lives."""

    report_interval_ms: int = 250
    lease_ttl_s: float = 2.0


class PolicySection(msgspec.Struct, frozen=True):
    """The policy that new engines get, and its parameters by name."""

    name: str = DEFAULT_POLICY
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


class JournalSection(msgspec.Struct, frozen=True):
    """What is kept of what happened.

    Attributes:
        directory: Where the journal is; empty for the default, "off" for none.
        max_mb: Size of the file at most, in MiB.
        max_age_days: Age of an entry at most.
    """

    directory: str = ""
    max_mb: int = 1024
    max_age_days: float = 14.0


class ProfileSection(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cost profile for the engines of its key: in a file, or in place.

    Attributes:
        name: For people; empty for the file's name.
        file: Path of a profile file, from the settings file's folder.
        key: Fields of the key; they go before those of the file.
        points: Step times, without a file; see `profile_file.py`.
        context: What context costs, without a file.
    """

    name: str = ""
    file: str = ""
    key: KeyContent = KeyContent()
    points: tuple[PointContent, ...] = ()
    context: ContextContent | None = None


class Settings(msgspec.Struct, frozen=True):
    """All settings of `trimtabd`."""

    server: ServerSection = msgspec.field(default_factory=ServerSection)
    session: SessionSection = msgspec.field(default_factory=SessionSection)
    policy: PolicySection = msgspec.field(default_factory=PolicySection)
    journal: JournalSection = msgspec.field(default_factory=JournalSection)
    profile: tuple[ProfileSection, ...] = ()


# Tables by name, tables within them, and the one that may come several times.
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "server": ServerSection,
    "session": SessionSection,
    "policy": PolicySection,
    "journal": JournalSection,
}
INNER: dict[str, type[msgspec.Struct]] = {"server.tls": TlsSection, "server.role": RoleSection}
PROFILES = "profile"


def default_socket_path(environ: Mapping[str, str] | None = None, uid: int | None = None) -> Path:
    """Where a daemon without further settings listens; plugin and command line look there too.

    `TRIMTAB_CONTROLLER=unix:PATH` names it for all three. The plugin repeats this rule, since it may not
    import the controller.
    """
    environ = os.environ if environ is None else environ
    uid = os.getuid() if uid is None else uid
    named = environ.get("TRIMTAB_CONTROLLER", "").strip()
    if named.startswith("unix:"):
        return Path(named.removeprefix("unix:"))
    # root's before XDG_RUNTIME_DIR: a service has none, a login shell may have one, and they must meet.
    if uid == 0:
        return Path("/run/trimtab/trimtabd.sock")
    if environ.get("XDG_RUNTIME_DIR"):
        return Path(environ["XDG_RUNTIME_DIR"], "trimtab", "trimtabd.sock")
    return Path(f"/tmp/trimtab-{uid}", "trimtabd.sock")


def default_state_directory(environ: Mapping[str, str] | None = None, uid: int | None = None) -> Path:
    """Where a daemon without further settings keeps its journal: the directory that systemd gives it, else root's, else
    the user's.
    """
    environ = os.environ if environ is None else environ
    uid = os.getuid() if uid is None else uid
    # Of several directories of a service the first is taken.
    given = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if given:
        return Path(given)
    if uid == 0:
        return Path("/var/lib/trimtab")
    if environ.get("XDG_STATE_HOME"):
        return Path(environ["XDG_STATE_HOME"], "trimtab")
    return Path(environ.get("HOME") or "~").expanduser() / ".local" / "state" / "trimtab"


def load_tables(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, not yet checked, with the paths of files as seen from here.

    Raises:
        ConfigError: The file cannot be read or is not TOML; the path is the error's key.
    """
    try:
        return _seen_from_here(dict(msgspec.toml.decode(path.read_bytes())), path.parent)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"is not TOML: {error}") from error


def _seen_from_here(tables: dict[str, Any], folder: Path) -> dict[str, Any]:
    server = tables.get("server")
    server = server if isinstance(server, dict) else {}
    for table, keys in ((tables.get(PROFILES), ("file",)), (server.get("role"), ("token_file",))):
        for entry in table if isinstance(table, list) else []:
            _complete_paths(entry, keys, folder)
    _complete_paths(server.get("tls"), TlsSection.__struct_fields__, folder)
    return tables


def _complete_paths(table: Any, keys: Iterable[str], folder: Path) -> None:
    for key in keys if isinstance(table, dict) else ():
        if isinstance(table.get(key), str) and table[key]:
            table[key] = str(folder / table[key])


def make_settings(tables: Mapping[str, Any]) -> Settings:
    """Settings from these tables: complete, and every value in range.

    Raises:
        ConfigError: An unknown key, a wrong type, or a value out of range.
    """
    _check_keys(tables)
    try:
        settings = msgspec.convert(tables, type=Settings)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        if problem.startswith("Invalid enum value"):
            problem = f"{problem.removeprefix('Invalid enum value ')} is no role; there are: {', '.join(Role)}"
        raise ConfigError(place.strip("`$.") or "settings", problem[:1].lower() + problem[1:]) from error
    _check_values(settings)
    return settings


def load_profiles(settings: Settings) -> tuple[KeyedProfile, ...]:
    """The configured profiles, files read.

    Raises:
        ConfigError: A profile cannot be used, or its key is too wide; the entry is named.
    """
    return tuple(_load_profile(f"{PROFILES}[{i}]", section) for i, section in enumerate(settings.profile))


def _load_profile(place: str, section: ProfileSection) -> KeyedProfile:
    if bool(section.file) == bool(section.points):
        raise ConfigError(place, "needs either a file or points")
    try:
        if section.file:
            found = read_profile(Path(section.file))
        else:
            content = ProfileContent(list(section.points), context=section.context)
            found = keyed_profile(place, content, f"{place}.points")
    except DataError as error:
        raise ConfigError(f"{place}.file" if section.file else place, str(error)) from error
    key = CostKey(**{**found.key.stated(), **msgspec.to_builtins(section.key)})
    lacking = [name for name in INDISPENSABLE if not getattr(key, name)]
    if lacking:
        raise ConfigError(f"{place}.key.{lacking[0]}", "is missing: the profile would be taken for every engine")
    return KeyedProfile(section.name or found.name, key, found.profile)


def render_settings(settings: Settings) -> str:
    """The settings as `key = value` lines of TOML, defaults filled in."""
    flat = _flat("", msgspec.to_builtins(settings))
    return "\n".join(f"{key} = {_toml(value)}" for key, value in flat if key != PROFILES or value)


def _check_keys(tables: Mapping[str, Any]) -> None:
    for name, table in tables.items():
        if _nearest_known(name, (*SECTIONS, PROFILES)) == PROFILES:
            if not isinstance(table, list):
                raise ConfigError(name, f"must be written [[{PROFILES}]]")
            for i, entry in enumerate(table):
                _check_table(f"{name}[{i}]", entry, ProfileSection)
        else:
            _check_table(name, table, SECTIONS[name])


def _check_table(name: str, table: Any, section: type[msgspec.Struct]) -> None:
    if not isinstance(table, Mapping):
        raise ConfigError(name, "must be a table")
    for key, value in table.items():
        _nearest_known(key, section.__struct_fields__, name)
        inner = INNER.get(f"{name}.{key}")
        if inner is not None:
            entries = value if isinstance(value, list) else [value]
            for i, entry in enumerate(entries):
                _check_table(f"{name}.{key}[{i}]" if isinstance(value, list) else f"{name}.{key}", entry, inner)


def _nearest_known(key: str, known: Iterable[str], section: str = "") -> str:
    """The key itself if it is known, else an error with the nearest known one."""
    if key in known:
        return key
    raise ConfigError(f"{section}.{key}" if section else key, f"unknown key; {_hint(key, known)}")


def _hint(word: str, known: Iterable[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are: {', '.join(sorted(known))}"


def _check_values(settings: Settings) -> None:
    session, server = settings.session, settings.server
    _check_range("session.report_interval_ms", session.report_interval_ms, *REPORT_INTERVAL_MS)
    _check_range("session.lease_ttl_s", session.lease_ttl_s, *LEASE_TTL_S)
    _check_range("journal.max_mb", settings.journal.max_mb, *JOURNAL_MAX_MB)
    _check_range("journal.max_age_days", settings.journal.max_age_days, *JOURNAL_MAX_AGE_DAYS)
    if len(os.fsencode(server.socket)) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            "server.socket", f"longer than the {MAX_SOCKET_PATH_BYTES} bytes of a socket path: shorten it"
        )
    check_access(server)
    _check_range("server.max_engines", server.max_engines, *MAX_ENGINES)
    if server.metrics_listen != OFF:
        split_address("server.metrics_listen", server.metrics_listen)
    _check_policy(settings.policy)


def _check_range(key: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise ConfigError(key, f"must be {low:g} to {high:g}, is {value:g}")


def _check_policy(policy: PolicySection) -> None:
    if policy.name not in POLICIES:
        raise ConfigError("policy.name", f"unknown policy {policy.name!r}; {_hint(policy.name, POLICIES)}")
    for key in policy.parameters:
        _nearest_known(key, POLICIES[policy.name].Parameters.__struct_fields__, "policy.parameters")
    try:
        policy_factory(policy.name, policy.parameters)
    except PolicyError as error:
        raise ConfigError("policy.parameters", str(error)) from error


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else key, inner)
    else:
        yield prefix, value


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_toml(key)} = {_toml(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return msgspec.json.encode(value).decode()
