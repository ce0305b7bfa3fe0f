"""A snapshot belongs to one policy and one set of modes and bands; this seals and checks that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.errors import PolicyError
from trimtab.policies.contract import PolicyContext


def seal(policy: str, context: PolicyContext, state: dict[str, Any]) -> dict[str, Any]:
    """The state together with the policy and the engine's modes and bands that it speaks of."""
    return {"policy": policy, **_speaks_of(context), "state": state}


def unseal(policy: str, context: PolicyContext, snapshot: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state inside a snapshot.

    Raises:
        PolicyError: It is another policy's, or of an engine with other modes or bands, or no snapshot at all.
    """
    if snapshot.get("policy") != policy:
        raise PolicyError(f"this is no snapshot of policy {policy!r} but of {snapshot.get('policy')!r}: start afresh")
    for key, value in _speaks_of(context).items():
        if snapshot.get(key) != value:
            raise PolicyError(f"the snapshot's {key} are {snapshot.get(key)}, the engine's are {value}: start afresh")
    state = snapshot.get("state")
    if not isinstance(state, Mapping):
        raise PolicyError(f"the snapshot of policy {policy!r} has no state: start afresh")
    return state


def _speaks_of(context: PolicyContext) -> dict[str, list[Any]]:
    return {"modes": [str(mode) for mode in context.modes], "bands": list(context.bands)}
