"""`trimtab engines` and `trimtab show`."""

from __future__ import annotations

from trimtab.cli.options import DEFAULT_TIMEOUT_S, ControllerOption, EngineArgument, JsonOption, TimeoutOption


def engines(
    controller: ControllerOption = None, timeout: TimeoutOption = DEFAULT_TIMEOUT_S, json: JsonOption = False
) -> None:
    """List the engines, what they run and why."""
    from trimtab.cli import output
    from trimtab.cli.client import connected, warn_of_journal
    from trimtab.cli.views import engine_view

    with connected(controller, timeout) as admin:
        answer = admin.list_engines()
    warn_of_journal(answer.journal)
    found = [engine_view(engine) for engine in answer.engines]
    if json:
        output.print_json(found)
    elif found:
        output.print_table(output.engines_table(found, output.console().width))
    else:
        print(NO_ENGINES)


def show(
    engine: EngineArgument,
    controller: ControllerOption = None,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Show everything about one engine.

    What it is and offers, what is in force and why, and what was dropped or refused."""
    from trimtab.cli import output
    from trimtab.cli.client import connected
    from trimtab.cli.page import print_page
    from trimtab.cli.views import engine_detail

    with connected(controller, timeout) as admin:
        answer = admin.get_engine(engine)
    detail = engine_detail(answer.engine, answer.journal.problem)
    if json:
        output.print_json(detail)
    else:
        print_page(detail)


NO_ENGINES = "No engine has connected yet: start a server that has trimtab installed and TRIMTAB_CONTROLLER set."
