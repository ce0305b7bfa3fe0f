"""Parts of `trimtab.replay`, which need more than the controller does."""

from __future__ import annotations

import importlib
from typing import Any

from trimtab.errors import TrimtabError


def replay_part(name: str, needs: str, what: str = "this") -> Any:
    """A module of `trimtab.replay`, loaded only now.

    Args:
        name: Its name below `trimtab.replay`.
        needs: The libraries that it needs besides, for the message.
        what: What needs them, for the message.

    Raises:
        TrimtabError: A library is missing.
    """
    try:
        return importlib.import_module(f"trimtab.replay.{name}")
    except ImportError as error:
        raise TrimtabError(f"{what} needs {needs}: pip install 'trimtab[replay]'") from error
