"""Which cost profile speaks for an engine? One whose key holds for it; and why none of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.domain import CostKey
from trimtab.policies.profile import CostProfile


@dataclass(frozen=True, slots=True)
class KeyedProfile:
    """A profile, and the engines that it speaks for."""

    name: str
    key: CostKey
    profile: CostProfile


@dataclass(frozen=True, slots=True)
class ProfileChoice:
    """What an engine's policy is told that steps cost.

    Attributes:
        name: The profile's; empty without one.
        profile: None: nothing, the policy learns it.
        ignored: Why there is none although some are configured: the nearest one, and where its key differs.
    """

    name: str = ""
    profile: CostProfile | None = None
    ignored: str = ""


def choose_profile(profiles: Sequence[KeyedProfile], engine: CostKey) -> ProfileChoice:
    """The profile with the most exact key that holds for the engine; of equals the first."""
    fitting = [profile for profile in profiles if not profile.key.unlike(engine)]
    if fitting:
        best = max(fitting, key=lambda profile: len(profile.key.stated()))
        return ProfileChoice(best.name, best.profile)
    nearest = min(profiles, key=lambda profile: len(profile.key.unlike(engine)), default=None)
    return ProfileChoice(ignored=_difference(nearest, engine) if nearest else "")


def _difference(profile: KeyedProfile, engine: CostKey) -> str:
    """For example `h200.json: device_name is 'NVIDIA H200' there, 'NVIDIA H100' here`."""
    pairs = (
        f"{name} is {getattr(profile.key, name)!r} there, {_said(engine, name)} here"
        for name in profile.key.unlike(engine)
    )
    return f"{profile.name}: {'; '.join(pairs)}"


def _said(engine: CostKey, name: str) -> str:
    value = getattr(engine, name)
    return repr(value) if value else "not known"
