"""The policies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import msgspec

from trimtab.errors import PolicyError
from trimtab.policies.contract import Policy, PolicyContext
from trimtab.policies.epsilon_greedy import EpsilonGreedyPolicy
from trimtab.policies.exp3 import Exp3Policy
from trimtab.policies.fixed import FixedPolicy
from trimtab.policies.goodput import GoodputPolicy
from trimtab.policies.sglang_ema import SglangEmaPolicy
from trimtab.policies.table import TablePolicy
from trimtab.policies.thompson import ThompsonPolicy
from trimtab.policies.ucb import UcbPolicy

DEFAULT_POLICY = "goodput"


class PolicyClass(Protocol):
    """A policy's class: parameters as a frozen `msgspec.Struct`, and a constructor."""

    name: str
    summary: str
    Parameters: type[msgspec.Struct]

    def __call__(self, context: PolicyContext, parameters: Any) -> Policy:
        """Create the policy for one engine."""


POLICIES: dict[str, PolicyClass] = {
    cls.name: cast(PolicyClass, cls)
    for cls in (
        GoodputPolicy,
        UcbPolicy,
        ThompsonPolicy,
        EpsilonGreedyPolicy,
        Exp3Policy,
        SglangEmaPolicy,
        TablePolicy,
        FixedPolicy,
    )
}

PolicyFactory = Callable[[PolicyContext], Policy]


def policy_factory(name: str, parameters: Mapping[str, Any] | None = None) -> PolicyFactory:
    """A factory for the policy of this name with these parameters (text is converted).

    Raises:
        PolicyError: The name is unknown, or a parameter is unknown or out of range.
    """
    cls = POLICIES.get(name)
    if cls is None:
        raise PolicyError(f"unknown policy {name!r}; there are: {', '.join(sorted(POLICIES))}")
    unknown = set(parameters or {}) - set(cls.Parameters.__struct_fields__)
    if unknown:
        takes = ", ".join(cls.Parameters.__struct_fields__) or "none"
        raise PolicyError(f"policy {name!r} has no parameter {sorted(unknown)[0]!r}; it takes: {takes}")
    try:
        checked = msgspec.convert(dict(parameters or {}), type=cls.Parameters, strict=False)
    except msgspec.ValidationError as error:
        raise PolicyError(f"policy {name!r}: {error}") from error
    return _Factory(cls, checked)


@dataclass(frozen=True, slots=True)
class _Factory:
    """Makes one policy with one set of parameters; equal to another that does the same."""

    cls: PolicyClass
    parameters: Any

    def __call__(self, context: PolicyContext) -> Policy:
        return self.cls(context, self.parameters)
