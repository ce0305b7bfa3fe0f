"""`trimtab policy`: what decides for which engine, what is known, changing it, and trying another one first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.options import (
    DEFAULT_TIMEOUT_S,
    AllOption,
    ControllerOption,
    JsonOption,
    LabelOption,
    SomeEngineArgument,
    TimeoutOption,
    pairs,
    selector,
)
from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from trimtabpb.v1 import admin_pb2

SetOption = Annotated[
    str | None, typer.Option("--set", metavar="NAME", show_default=False, help="Policy that decides from now on.")
]
ParameterOption = Annotated[
    list[str] | None,
    typer.Option("-p", metavar="KEY=VALUE", show_default=False, help="Parameter of the policy; repeat for more."),
]
ShadowOption = Annotated[bool, typer.Option("--shadow", help="With --set: let it decide beside, and follow it not.")]
CanaryOption = Annotated[bool, typer.Option("--canary", help="With --set: let it act on a share of the engines.")]
ShareOption = Annotated[
    float | None,
    typer.Option("--share", metavar="0..1", show_default=False, help="Of a canary: of the engines, at least one."),
]
PromoteOption = Annotated[bool, typer.Option("--promote", help="What is on trial acts from now on.")]
WithdrawOption = Annotated[bool, typer.Option("--withdraw", help="What is on trial goes.")]


def policy(
    engine: SomeEngineArgument = None,
    everything: AllOption = False,
    label: LabelOption = None,
    name: SetOption = None,
    parameter: ParameterOption = None,
    shadow: ShadowOption = False,
    canary: CanaryOption = False,
    share: ShareOption = None,
    promote: PromoteOption = False,
    withdraw: WithdrawOption = False,
    controller: ControllerOption = None,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Show or set the policy of engines, or try another one first.

    Without options: which policy decides for which engine, and which are known. A policy that is set learns afresh;
    for labels or all, it also holds for engines that connect later. --promote and --withdraw end a trial."""
    from trimtab.cli.client import connected, warn_of_order

    parameters = pairs("-p", parameter)
    _check(name, bool(parameters), shadow, canary, share, promote, withdraw)
    nobody = engine is None and not everything and not label
    optional = promote or withdraw or name is None
    engines = None if nobody and optional else selector(engine, everything, label)
    with connected(controller, timeout) as admin:
        if promote or withdraw:
            done = admin.promote_policy(engines) if promote else admin.withdraw_policy(engines)
            warn_of_order(done.journal_problem)
            _print(admin.set_policy(_request(None, None, {})), json, only={e.engine_id for e in done.engines})
        else:
            request = _request(engines, name, parameters, shadow, canary, share)
            answer = admin.set_policy(request)
            warn_of_order(answer.journal_problem)
            _print(answer, json, known=name is None)


def _check(
    name: str | None, parameters: bool, shadow: bool, canary: bool, share: float | None, promote: bool, withdraw: bool
) -> None:
    if promote + withdraw + (name is not None) > 1:
        raise TrimtabError("--set, --promote and --withdraw are three different things: give one of them")
    if parameters and name is None:
        raise TrimtabError("-p sets a parameter together with a policy: add --set NAME")
    if (shadow or canary) and name is None:
        raise TrimtabError("--shadow and --canary say how a policy is set: add --set NAME")
    if shadow and canary:
        raise TrimtabError("a policy is a shadow or a canary: give one of --shadow and --canary")
    if share is not None and not (canary and 0 < share <= 1):
        raise TrimtabError("--share is the share of a canary, above 0 and at most 1: add --set NAME --canary")


def _request(
    engines: admin_pb2.Selector | None,
    name: str | None,
    parameters: dict[str, str],
    shadow: bool = False,
    canary: bool = False,
    share: float | None = None,
) -> admin_pb2.SetPolicyRequest:
    from trimtab.cli.client import operator
    from trimtabpb.v1 import admin_pb2

    roles = admin_pb2.SetPolicyRequest
    role = roles.ROLE_SHADOW if shadow else roles.ROLE_CANARY if canary else roles.ROLE_ACTING
    return admin_pb2.SetPolicyRequest(
        selector=engines,
        policy=name or "",
        parameters=parameters,
        owner=operator() if name else "",
        role=role,
        share=share or 0.0,
    )


def _print(answer: admin_pb2.SetPolicyResponse, json: bool, only: set[str] | None = None, known: bool = False) -> None:
    from trimtab.cli import output
    from trimtab.cli.overview import canary_text, canary_view

    engines = [
        _row(e) for e in sorted(answer.engines, key=lambda e: e.engine_id) if only is None or e.engine_id in only
    ]
    canary = canary_view(answer)
    if json:
        offered = [{"name": info.name, "summary": info.summary} for info in answer.known]
        output.print_json({"engines": engines, "canary": canary, "known": offered})
        return
    _print_engines(engines)
    if canary is not None:
        print(f"\ncanary of {canary_text(canary)}")
    if known:
        print()
        table = output.plain_table("KNOWN POLICY", "WHAT IT DOES")
        for info in answer.known:
            table.add_row(info.name, info.summary)
        output.print_table(table)


def _row(engine: admin_pb2.Engine) -> dict[str, Any]:
    from trimtab.cli.views import engine_view

    view = engine_view(engine)
    return {
        "engine_id": view.engine_id,
        "policy": view.policy,
        "canary": view.canary,
        "shadow": view.shadow.policy if view.shadow else None,
        "agreement": view.shadow.agreement if view.shadow else None,
    }


def _print_engines(engines: Iterable[dict[str, Any]]) -> None:
    """A row an engine; what is on trial has columns only where something is."""
    from trimtab.cli import output

    rows = list(engines)
    on_trial = any(row["canary"] or row["shadow"] for row in rows)
    table = output.plain_table("ENGINE", "POLICY", *(("SHADOW", "AGREES") if on_trial else ()), right=("AGREES",))
    for row in rows:
        policy = f"{row['policy'] or output.UNKNOWN}{' (canary)' if row['canary'] else ''}"
        agrees = output.UNKNOWN if row["agreement"] is None else f"{row['agreement']:.1%}"
        trial = (row["shadow"] or output.UNKNOWN, agrees) if on_trial else ()
        table.add_row(row["engine_id"], policy, *trial)
    output.print_table(table)
