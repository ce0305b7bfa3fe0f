"""What does an order to pin mean for this engine?"""

from __future__ import annotations

from enum import StrEnum

from trimtab.domain import Mode, Pin, StepRange
from trimtab.errors import NoSuchModeError, NotOfferedError
from trimtab.policies.offer import choosable
from trimtab.session.confine import nearest
from trimtab.session.engine_session import EngineSession


class Relative(StrEnum):
    """A mode that is another one on each engine."""

    ANY_PLAIN = "plain"
    IN_FORCE = "what runs now"


Target = Mode | StepRange | Relative


def pin_for(session: EngineSession, target: Target, pin_id: str, reason: str = "", owner: str = "") -> Pin:
    """The pin that this order amounts to on the session's engine.

    Raises:
        NotOfferedError: The engine cannot follow it; the message says what it offers.
    """
    allowed = target if isinstance(target, StepRange) else None
    return Pin(pin_id, _mode(session, target), reason, owner, allowed)


def can_hold(session: EngineSession, pin: Pin) -> bool:
    """Whether the engine, as it is now, can run this pin."""
    return session.info is not None and session.info.acts and pin.mode in session.info.modes


def _mode(session: EngineSession, target: Target) -> Mode:
    match target:
        case Mode():
            session.check_mode(target)
            return target
        case StepRange():
            return _resting_mode(session, target)
        case Relative.ANY_PLAIN:
            return session.cheapest_plain()
        case Relative.IN_FORCE:
            return _running_mode(session)


def _resting_mode(session: EngineSession, allowed: StepRange) -> Mode:
    """What runs within the range while no lease is in force: what runs now, or the mode nearest to it."""
    info, running = session.known(), session.in_force.mode
    modes = [mode for mode in info.modes if mode in allowed]
    if not modes:
        session.check_acts()
        raise NoSuchModeError(f"{info.key} offers no mode with {allowed}; it offers {session.offered()}")
    if running in modes:
        return running
    return nearest(choosable(modes), running.steps if running else info.initial_steps)


def _running_mode(session: EngineSession) -> Mode:
    info, running = session.known(), session.in_force.mode
    session.check_acts()
    if running is None:
        raise NotOfferedError(f"{info.key} has not decoded yet, so that there is nothing to keep: name a mode")
    session.check_mode(running)
    return running
