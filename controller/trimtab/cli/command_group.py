"""Commands below a word, as in `trimtab trace info`."""

from __future__ import annotations

import typer


def command_group(about: str) -> typer.Typer:
    """Commands to be; the word alone prints what there is. `about` says what they are for."""
    commands = typer.Typer()

    @commands.callback(invoke_without_command=True, help=about)
    def alone(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    return commands
