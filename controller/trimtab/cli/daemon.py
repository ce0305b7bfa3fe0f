"""The `trimtabd` command: settings from a file, flags before the file, errors in one line."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

# gRPC logs to stderr on its own; what matters is in our own log and error lines.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import typer

from trimtab import __version__
from trimtab.config import Settings, load_profiles, load_tables, make_settings, render_settings
from trimtab.errors import ConfigError, TrimtabError

PROGRAM = "trimtabd"
EXIT_USAGE = 2
# The root of what typer raises for a command line it cannot read; typer itself has moved it between versions.
UsageError: Any = typer.BadParameter.__bases__[0]

app = typer.Typer(name=PROGRAM, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"{PROGRAM} {__version__}")
        raise typer.Exit


def _check_config(path: Path | None) -> None:
    """Say whether a settings file can be used, and what it amounts to."""
    if path is None:
        return
    try:
        settings = make_settings(load_tables(path))
        load_profiles(settings)
        _check_secrets(settings)
    except ConfigError as error:
        raise error if error.key == str(path) else ConfigError(str(path), str(error)) from error
    print(f"{path}: ok\n{render_settings(settings)}")
    raise typer.Exit


def _check_secrets(settings: Settings) -> None:
    from trimtab.server.access import Access
    from trimtab.server.secret_files import server_credentials

    Access(settings.server)
    if settings.server.tls.cert:
        server_credentials(settings.server.tls)


@app.command()
def daemon(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Settings (TOML). Flags go before it.")] = None,
    socket: Annotated[str | None, typer.Option(metavar="PATH", help="Unix socket to listen on.")] = None,
    socket_group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Group that may use the socket. Default: only this user.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Listen on TCP as well, with the TLS of the settings.")
    ] = None,
    insecure_loopback: Annotated[
        bool, typer.Option("--insecure-loopback", help="To try it out: --listen without TLS, on this machine only.")
    ] = False,
    metrics_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where /metrics is, or off. Default: 127.0.0.1:9464.")
    ] = None,
    state_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where the journal is, or off. Default: STATE_DIRECTORY, /var/lib/trimtab (root) or "
            "~/.local/state/trimtab.",
        ),
    ] = None,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="Policy that new engines get.")] = None,
    report_interval_ms: Annotated[
        int | None, typer.Option(metavar="MS", help="How often engines report, 100 to 5000. Default: 250.")
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log in JSON.")] = False,
    reflection: Annotated[bool, typer.Option("--reflection", help="Offer gRPC server reflection.")] = False,
    check_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", callback=_check_config, is_eager=True, help="Check a settings file, print it, and exit."
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Steer speculative decoding in the engines that connect."""
    from trimtab.server.daemon import Daemon
    from trimtab.server.log import configure_log

    flags: dict[str, dict[str, Any]] = {
        "server": {
            "socket": socket,
            "listen": listen,
            "socket_group": socket_group,
            "metrics_listen": metrics_listen,
            "insecure_loopback": insecure_loopback or None,
        },
        "session": {"report_interval_ms": report_interval_ms},
        "policy": {"name": policy},
        "journal": {"directory": state_dir},
    }
    settings = _settings(config, flags)
    profiles = load_profiles(settings)
    configure_log(log_json)
    asyncio.run(Daemon(settings, reflection, profiles).run())


def _settings(config: Path | None, flags: dict[str, dict[str, Any]]) -> Settings:
    """The file's settings with the flags that were given in their place."""
    tables = load_tables(config) if config is not None else {}
    if flags["policy"]["name"] is not None:
        # The file's parameters are those of the file's policy.
        tables.pop("policy", None)
    for section, values in flags.items():
        given = {key: value for key, value in values.items() if value is not None}
        if given and isinstance(tables.setdefault(section, {}), dict):
            tables[section] = {**tables[section], **given}
    return make_settings(tables)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the daemon; what goes wrong before it serves is one line on stderr and exit status 2."""
    try:
        status = app(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    except UsageError as error:
        _fail(f"{error.format_message()} (see {PROGRAM} --help)")
    except TrimtabError as error:
        _fail(str(error))
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str) -> NoReturn:
    print(f"{PROGRAM}: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(EXIT_USAGE)
