"""Who makes how many tokens of the same load? The table that the demo ends with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from trimtab.domain import PLAIN_WARM, Mode
from trimtab.policies.registry import DEFAULT_POLICY, policy_factory
from trimtab.replay.environment import Environment
from trimtab.replay.simulation.drivers import Driver, EmaDriver, FixedDriver, SessionDriver, play

DriverMaker = Callable[[Environment], Driver]


class Standing(msgspec.Struct, frozen=True):
    """What one way of choosing modes made of the load. `switches` counts changes of mode."""

    policy: str
    tokens_per_s: float
    steps: int
    switches: int


def contenders(environment: Environment, policy: str = DEFAULT_POLICY) -> dict[str, DriverMaker]:
    """Trimtab with this policy, SGLang's own rule, and every fixed mode of the environment, by name."""
    factory = policy_factory(policy)
    found: dict[str, DriverMaker] = {
        "trimtab": lambda world: SessionDriver(world, policy, factory),
        "sglang-ema": EmaDriver,
    }
    for mode in environment.modes:
        found[_fixed_name(mode)] = partial(_fixed_driver, mode)
    return found


def compare(
    environment_factory: Callable[[], Environment], drivers: Mapping[str, DriverMaker] | None = None
) -> list[Standing]:
    """Play the same environment under each driver, in their order.

    Args:
        environment_factory: Makes the environment; every call must make the same one.
        drivers: By name; None takes `contenders`.
    """
    standings = []
    for name, make in (drivers or contenders(environment_factory())).items():
        environment = environment_factory()
        course = play(environment, make(environment))
        standings.append(Standing(name, course.tokens_per_s, len(course.modes), course.switches))
    return standings


def _fixed_driver(mode: Mode, environment: Environment) -> Driver:
    return FixedDriver(mode)


def _fixed_name(mode: Mode) -> str:
    """`fixed-3`; `fixed-0` is what SGLang calls 0 steps, other kinds of plain go by their names."""
    return f"fixed-{mode.steps}" if mode.steps or mode == PLAIN_WARM else f"fixed-{mode.kind.value}"
