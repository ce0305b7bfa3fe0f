"""A fixed table from batch size to steps: what operators write down after a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from trimtab.domain import Mode
from trimtab.errors import PolicyError
from trimtab.policies.contract import BandDecision, Candidate, Decision, PolicyContext
from trimtab.policies.offer import choosable, mode_with_steps
from trimtab.policies.standing import StandingPolicy

DEFAULT_TABLE = "1:5, 8:3, 32:2, 64:1"


class TableParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table.

    Attributes:
        table: Pairs of smallest batch size and steps, for example `1:5, 8:3, 32:1`. Empty: a default table, cut
            down to the steps on offer.
    """

    table: str = ""


class TablePolicy(StandingPolicy):
    """Steps by batch size, whatever acceptance and cost are. The first entry also holds below its batch size."""

    name: ClassVar[str] = "table"
    summary: ClassVar[str] = "a fixed table from batch size to steps"
    Parameters = TableParameters

    def __init__(self, context: PolicyContext, parameters: TableParameters | None = None) -> None:
        text = (parameters or TableParameters()).table
        modes = choosable(context.modes)
        if text:
            rows = {size: mode_with_steps(context.modes, steps) for size, steps in _parse(text).items()}
        else:
            rows = {size: _at_most(modes, steps) for size, steps in _parse(DEFAULT_TABLE).items()}
        bands = tuple(
            BandDecision(size if i else 1, mode, "fixed", candidates=(Candidate(mode),))
            for i, (size, mode) in enumerate(sorted(rows.items()))
        )
        super().__init__(context, Decision(bands))


def _parse(text: str) -> dict[int, int]:
    rows: dict[int, int] = {}
    for part in text.replace(";", ",").split(","):
        size, colon, steps = part.strip().partition(":")
        if not colon or not size.strip().isdigit() or not steps.strip().isdigit() or int(size) < 1:
            raise PolicyError(f"table {text!r}: {part.strip()!r} is no pair of batch size and steps, such as 8:3")
        if int(size) in rows:
            raise PolicyError(f"table {text!r}: batch size {int(size)} is there twice")
        rows[int(size)] = int(steps)
    return rows


def _at_most(modes: Sequence[Mode], steps: int) -> Mode:
    """The offered mode with the most steps up to these, or with the fewest there are."""
    return max((mode for mode in modes if mode.steps <= steps), key=lambda mode: mode.steps, default=modes[0])
