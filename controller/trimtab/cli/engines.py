"""`trimtab engines` and `trimtab show`."""

from __future__ import annotations

from trimtab.cli.options import DEFAULT_TIMEOUT_S, ControllerOption, JsonOption, SomeEngineArgument, TimeoutOption


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
    engine: SomeEngineArgument = None,
    controller: ControllerOption = None,
    timeout: TimeoutOption = DEFAULT_TIMEOUT_S,
    json: JsonOption = False,
) -> None:
    """Show everything about one engine, or without ENGINE the controller.

    What an engine is and offers, what is in force and why, and what was dropped or refused; of the controller its
    standing orders, what is on trial, and what was refused beside any engine."""
    from trimtab.cli import output
    from trimtab.cli.client import connected
    from trimtab.cli.overview import controller_view, print_overview
    from trimtab.cli.page import print_page
    from trimtab.cli.views import engine_detail

    with connected(controller, timeout) as admin:
        if engine is None:
            overview = controller_view(admin.list_engines())
            output.print_json(overview) if json else print_overview(overview)
            return
        answer = admin.get_engine(engine)
    detail = engine_detail(answer.engine, answer.journal.problem)
    output.print_json(detail) if json else print_page(detail)


NO_ENGINES = "No engine has connected yet: start a server that has trimtab installed and TRIMTAB_CONTROLLER set."
