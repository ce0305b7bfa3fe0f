"""Options that several commands share, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from trimtabpb.v1 import admin_pb2

DEFAULT_TIMEOUT_S = 5.0

ControllerOption = Annotated[
    str | None,
    typer.Option(
        "--controller",
        metavar="ADDRESS",
        show_default=False,
        help="unix:/path or host:port of trimtabd. Default: TRIMTAB_CONTROLLER, else the daemon's own default socket.",
    ),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Longest wait for an answer.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print data for programs.")]
SomeEngineArgument = Annotated[
    str | None, typer.Argument(metavar="ENGINE", show_default=False, help="Id of an engine; see `trimtab engines`.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Every engine.")]
LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="K=V", show_default=False, help="Engines with this label; repeat for more labels."),
]

PoliciesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="NAME",
        show_default=False,
        help="A policy, with parameters after a colon: fixed:3, ucb:margin=0.05. Repeat to compare.",
    ),
]


def credential_option(name: str, help_text: str) -> Any:
    """An option, before the command, for a file that the environment may name as well."""
    variable = f"TRIMTAB_{name.removeprefix('--').replace('-', '_').upper()}"
    return typer.Option(name, metavar="FILE", show_default=False, help=f"{help_text} Default: {variable}.")


def selector(engine: str | None, everything: bool, labels: Iterable[str] | None) -> admin_pb2.Selector:
    """The engines that a command is about: exactly one of an id, all, or labels.

    Raises:
        TrimtabError: None or more than one of them is given, or a label is not `k=v`.
    """
    from trimtabpb.v1 import admin_pb2

    wanted = pairs("--label", labels)
    if (engine is not None) + everything + bool(wanted) != 1:
        raise TrimtabError("say which engines: an ENGINE id, --all or --label k=v, and only one of these")
    return admin_pb2.Selector(engine_ids=[engine] if engine is not None else [], all=everything, labels=wanted)


def pairs(option: str, texts: Iterable[str] | None) -> dict[str, str]:
    """`k=v` texts as a mapping.

    Raises:
        TrimtabError: A text without `=` or without a key; `option` is named.
    """
    found = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise TrimtabError(f"{option} {text!r} must be key=value")
        found[key] = value
    return found
