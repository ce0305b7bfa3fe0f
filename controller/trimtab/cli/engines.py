"""`trimtab engines` and `trimtab show`."""

from __future__ import annotations

from trimtab.cli.options import DEFAULT_TIMEOUT_S, ControllerOption, JsonOption, SomeEngineArgument, TimeoutOption


def engines(
    controller: ControllerOption = None, timeout: TimeoutOption = DEFAULT_TIMEOUT_S, json: JsonOption = False
) -> None:
    """List the engines, what they run and why."""
    from trimtab.cli import output
    from trimtab.cli.client import connected
    from trimtab.cli.views import engine_view

    with connected(controller, timeout) as admin:
        found = [engine_view(engine) for engine in admin.engines()]
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
    from trimtab.cli.views import EngineDetail, engine_detail

    with connected(controller, timeout) as admin:
        view = controller_view(admin.overview()) if engine is None else engine_detail(admin.engine(engine))
    if json:
        output.print_json(view)
    elif isinstance(view, EngineDetail):
        print_page(view)
    else:
        print_overview(view)


NO_ENGINES = "No engine has connected yet: start a server that has trimtab installed and TRIMTAB_CONTROLLER set."
