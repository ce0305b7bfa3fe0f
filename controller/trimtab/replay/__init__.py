"""Judging policies before they touch a server: one model of cost and acceptance, simulation and replay.

For tests of one's own: `compare` and `Comparison` (see `policy_bar.py`). They need the extra `replay`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.replay.policy_bar import Comparison, compare

__all__ = ["Comparison", "compare"]


def __getattr__(name: str) -> Any:
    """Load on demand: the parts of this package that a live controller uses need less than these do."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trimtab.replay import policy_bar

    return getattr(policy_bar, name)
