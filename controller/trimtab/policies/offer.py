"""Which of an engine's modes may a policy choose by itself, and which one is meant by a number or a name?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trimtab.domain import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, Mode
from trimtab.errors import PolicyError

# Cheapest first. Cold plain spoils the acceptance of running requests, so it comes last.
PLAIN_BY_PREFERENCE = (PLAIN_NATIVE, PLAIN_WARM, PLAIN_COLD)


def choosable(modes: Iterable[Mode]) -> tuple[Mode, ...]:
    """The modes that a policy may take unasked, by ascending steps: all but cold plain, if that leaves any.

    Cold plain loses the draft cache of every running request, a cost that no step time shows.
    """
    ordered = sorted(set(modes), key=_order)
    return tuple(mode for mode in ordered if mode != PLAIN_COLD) or tuple(ordered)


def mode_with_steps(modes: Sequence[Mode], steps: int) -> Mode:
    """The offered mode with this many drafts; for 0 the cheapest safe plain.

    Raises:
        PolicyError: There is none; the message names the step counts on offer.
    """
    found = [mode for mode in modes if mode.steps == steps]
    if not found:
        offered = ", ".join(str(k) for k in sorted({mode.steps for mode in modes}))
        raise PolicyError(f"steps {steps} is not among the engine's candidates; choose one of: {offered}")
    return min(found, key=_order)


def mode_named(modes: Sequence[Mode], text: str) -> Mode:
    """The offered mode that prints as `text`, for example `plain_native` or `speculate(3)`.

    Raises:
        PolicyError: There is none; the message names the modes on offer.
    """
    for mode in modes:
        if str(mode) == text.strip():
            return mode
    raise PolicyError(f"mode {text!r} is not offered by the engine; choose one of: {', '.join(map(str, modes))}")


def _order(mode: Mode) -> tuple[int, int]:
    return (mode.steps, PLAIN_BY_PREFERENCE.index(mode) if mode.steps == 0 else 0)
