"""The `trimtab` command.

Commands import what they need when they run, so that `trimtab --help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from trimtab import __version__
from trimtab.cli import demo, engines, pinning, policy, profile, replay, simulate, top, trace
from trimtab.cli.options import DEFAULT_TIMEOUT_S, ControllerOption, TimeoutOption, credential_option
from trimtab.errors import TrimtabError

PROGRAM = "trimtab"
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
# The root of what typer raises for a command line it cannot read; typer itself has moved it between versions.
UsageError: Any = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="trimtab",
    help="Steer speculative decoding in running engines.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("engines")(engines.engines)
app.command("show")(engines.show)
app.command("pin", cls=pinning.PinCommand)(pinning.pin)
app.command("freeze")(pinning.freeze)
app.command("unpin")(pinning.unpin)
app.command("policy")(policy.policy)
app.command("top")(top.top)
simulate.register(app)
replay.register(app)
profile.register(app)
trace.register(app)
demo.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"trimtab {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def common(
    context: typer.Context,
    controller: ControllerOption = None,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    tls_ca: Annotated[str, credential_option("--tls-ca", "Authorities (PEM) of the controller's certificate.")] = "",
    tls_cert: Annotated[str, credential_option("--tls-cert", "Your own certificate (PEM).")] = "",
    tls_key: Annotated[str, credential_option("--tls-key", "The private key of your certificate.")] = "",
    token_file: Annotated[str, credential_option("--token-file", "File with your token.")] = "",
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Steer speculative decoding in running engines."""
    if context.invoked_subcommand is None:
        print(context.get_help())
        return
    files = {"TLS_CA": tls_ca, "TLS_CERT": tls_cert, "TLS_KEY": tls_key, "TOKEN_FILE": token_file}
    os.environ.update({f"TRIMTAB_{name}": path for name, path in files.items() if path})
    # Common options work before the command as well as after it.
    context.default_map = {context.invoked_subcommand: {"controller": controller, "timeout": timeout}}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line; what goes wrong is one line on stderr and exit status 2."""
    try:
        status = app(args=arguments, prog_name=PROGRAM, standalone_mode=False)
    except UsageError as error:
        _fail(f"{error.format_message()} (see {error.ctx.command_path if error.ctx else PROGRAM} --help)")
    except TrimtabError as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str) -> NoReturn:
    print(f"trimtab: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(EXIT_USAGE)
