"""A policy as a person names it, tried on a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trimtab.errors import PolicyError
from trimtab.policies.profile import CostProfile
from trimtab.policies.registry import POLICIES, PolicyFactory, policy_factory
from trimtab.policies.sglang_ema import SglangEmaPolicy
from trimtab.replay.simulation.cases import CaseEnvironment
from trimtab.replay.simulation.drivers import Course, EmaDriver, SessionDriver, play
from trimtab.replay.simulation.efficiency import Judge, Verdict
from trimtab.replay.simulation.engine_side import REPORT_INTERVAL_MS


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy with its parameters. `text` is what the person wrote, `factory` makes it."""

    text: str
    name: str
    factory: PolicyFactory


@dataclass(frozen=True, slots=True)
class Trial:
    """One case, who judges it, and what each policy made of it."""

    case: CaseEnvironment
    judge: Judge
    courses: tuple[tuple[Verdict, Course], ...]


def parse_policy(text: str) -> NamedPolicy:
    """Read `NAME`, `NAME:VALUE` (for the policy's first parameter) or `NAME:KEY=VALUE,KEY=VALUE`.

    Raises:
        PolicyError: The name or a parameter is unknown, or a value is out of range.
    """
    name, _, rest = text.partition(":")
    return NamedPolicy(text, name, policy_factory(name, _parameters(name, rest)))


def _parameters(name: str, text: str) -> Mapping[str, str]:
    fields = POLICIES[name].Parameters.__struct_fields__ if name in POLICIES else ()
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if equals:
            found[key.strip()] = value.strip()
        elif fields and not found:
            found[fields[0]] = part.strip()
        elif name in POLICIES:
            problem = f"{part!r} must be key=value" if fields else "takes no parameters"
            raise PolicyError(f"policy {name!r}: {problem}")
    return found


def try_policy(
    case: CaseEnvironment,
    policy: NamedPolicy,
    profile: CostProfile | None = None,
    interval_ms: float = REPORT_INTERVAL_MS,
    seed: int = 0,
) -> Course:
    """What the policy does with the case. SGLang's own rule runs as in an engine, at every step and without leases.

    Args:
        case: What to play.
        policy: Who plays.
        profile: What the policy is told that steps cost; None: nothing.
        interval_ms: Report interval.
        seed: Seed of the policy.

    Raises:
        PolicyError: The policy cannot work with the modes of this case.
    """
    if policy.name == SglangEmaPolicy.name:
        return play(case, EmaDriver(case))
    return play(case, SessionDriver(case, policy.name, _told(policy.factory, profile), interval_ms, seed))


def _told(factory: PolicyFactory, profile: CostProfile | None) -> PolicyFactory:
    """The same policy, told this profile."""
    return lambda context: factory(replace(context, profile=profile))
