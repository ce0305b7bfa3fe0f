"""The commands' entry points: where the controller's packages are missing, one line says how to get them.

The engine's environment has Trimtab without extras; there the plugin works and these commands do not.
"""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

EXIT_USAGE = 2


def trimtab() -> NoReturn:
    """Run `trimtab`."""
    _run("trimtab", "trimtab.cli.main")


def trimtabd() -> NoReturn:
    """Run `trimtabd`."""
    _run("trimtabd", "trimtab.cli.daemon")


def _run(program: str, module: str) -> NoReturn:
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("trimtab"):
            raise
        print(f"{program}: {error.name} is not installed: pip install 'trimtab[controller]'", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    main()
    sys.exit(0)
