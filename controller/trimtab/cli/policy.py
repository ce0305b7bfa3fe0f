"""`trimtab policy`: what decides for which engine, what is known, and changing it."""

from __future__ import annotations

from typing import Annotated

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

SetOption = Annotated[
    str | None, typer.Option("--set", metavar="NAME", show_default=False, help="Policy that decides from now on.")
]
ParameterOption = Annotated[
    list[str] | None,
    typer.Option("-p", metavar="KEY=VALUE", show_default=False, help="Parameter of the policy; repeat for more."),
]


def policy(
    engine: SomeEngineArgument = None,
    everything: AllOption = False,
    label: LabelOption = None,
    name: SetOption = None,
    parameter: ParameterOption = None,
    controller: ControllerOption = None,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Show or set the policy of engines.

    Without --set: which policy decides for which engine, and which are known. A policy that is set learns afresh."""
    from trimtab.cli import output
    from trimtab.cli.client import connected, operator, warn_of_order
    from trimtabpb.v1 import admin_pb2

    parameters = pairs("-p", parameter)
    if parameters and name is None:
        raise TrimtabError("-p sets a parameter together with a policy: add --set NAME")
    look_at_all = name is None and engine is None and not everything and not label
    request = admin_pb2.SetPolicyRequest(
        selector=None if look_at_all else selector(engine, everything, label),
        policy=name or "",
        parameters=parameters,
        owner=operator() if name else "",
    )
    with connected(controller, timeout) as admin:
        answer = admin.set_policy(request)
    warn_of_order(answer.journal_problem)
    engines = [
        {"engine_id": e.engine_id, "policy": e.policy.name or None}
        for e in sorted(answer.engines, key=lambda e: e.engine_id)
    ]
    known = [{"name": info.name, "summary": info.summary} for info in answer.known]
    if json:
        output.print_json({"engines": engines, "known": known})
        return
    running = output.plain_table("ENGINE", "POLICY")
    for row in engines:
        running.add_row(row["engine_id"], row["policy"] or output.UNKNOWN)
    output.print_table(running)
    if name is None:
        print()
        offered = output.plain_table("KNOWN POLICY", "WHAT IT DOES")
        for info in known:
            offered.add_row(info["name"], info["summary"])
        output.print_table(offered)
