"""A lease that no engine can follow is refused, and the error names the field."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from trimtab_sglang.lease import (
    MAX_ALTERNATIVES,
    MAX_BATCH_SIZE,
    MAX_DWELL_STEPS,
    MAX_TABLE_ENTRIES,
    PLAIN_COLD,
    PLAIN_NATIVE,
    PLAIN_WARM,
    Lease,
    LeaseError,
    Mode,
    ModeKind,
    Pin,
    TableEntry,
    check_lease,
    modes_of,
    speculate,
)

GOOD = Lease(1, (TableEntry(1, speculate(3)),))


def table(*edges: int) -> dict[str, Any]:
    return {"table": tuple(TableEntry(edge, speculate(3)) for edge in edges)}


def entry(probability: float, *alternatives: float) -> dict[str, Any]:
    others = tuple((speculate(k + 1), p) for k, p in enumerate(alternatives))
    return {"table": (TableEntry(1, speculate(3)), TableEntry(8, speculate(3), probability, others))}


MALFORMED: list[tuple[str, dict[str, Any]]] = [
    ("version", {"version": 0}),
    *[("smoothing", {"smoothing": value}) for value in (0, -0.5, 1.01, nan, inf)],
    *[("hysteresis", {"hysteresis": value}) for value in (-0.01, 1, nan, inf)],
    *[("min_dwell_steps", {"min_dwell_steps": value}) for value in (-1, MAX_DWELL_STEPS + 1)],
    *[("exploration_dwell_steps", {"exploration_dwell_steps": value}) for value in (-1, MAX_DWELL_STEPS + 1)],
    ("life_steps", {"life_steps": 0}),
    ("table", {"table": ()}),
    ("table", table(*range(1, MAX_TABLE_ENTRIES + 2))),
    ("table", table(2)),
    ("table", table(1, 9, 5)),
    ("table", table(1, 5, 5)),
    ("table", table(1, MAX_BATCH_SIZE + 1)),
    ("table[8]", entry(0.5)),
    ("table[8]", entry(0.5, 0.4)),
    ("table[8]", entry(0.9, 0.2)),
    ("table[8]", entry(1.5, -0.5)),
    ("table[8]", entry(nan, 0.5)),
    ("table[8]", entry(0, *[1 / (MAX_ALTERNATIVES + 1)] * (MAX_ALTERNATIVES + 1))),
]

WELL_FORMED: list[dict[str, Any]] = [
    {},
    {"smoothing": 1, "hysteresis": 0.99, "min_dwell_steps": MAX_DWELL_STEPS, "life_steps": 1},
    {"table": (), "pin": Pin("p", PLAIN_WARM)},
    table(0, 5),
    table(*range(1, MAX_TABLE_ENTRIES + 1)),
    table(1, MAX_BATCH_SIZE),
    entry(0.33333, 0.33333, 0.33333),
    entry(0, *[1 / MAX_ALTERNATIVES] * MAX_ALTERNATIVES),
]


@pytest.mark.parametrize(("field", "change"), MALFORMED)
def test_a_malformed_lease_names_its_field(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(LeaseError) as caught:
        check_lease(replace(GOOD, **change))
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} ")


@pytest.mark.parametrize("change", WELL_FORMED)
def test_a_lease_at_the_limits_is_fine(change: dict[str, Any]) -> None:
    check_lease(replace(GOOD, **change))


@pytest.mark.parametrize(
    ("kind", "steps"), [(ModeKind.SPECULATE, 0), (ModeKind.PLAIN_WARM, 1), (ModeKind.PLAIN_NATIVE, 3)]
)
def test_drafts_and_plain_do_not_go_together(kind: ModeKind, steps: int) -> None:
    with pytest.raises(ValueError, match=f"{kind.value} cannot have {steps} steps"):
        Mode(kind, steps)


def test_modes_by_step_count_and_by_name() -> None:
    assert modes_of([3, 0, 1, 3]) == (PLAIN_WARM, speculate(1), speculate(3))
    assert [str(mode) for mode in (speculate(3), PLAIN_WARM, PLAIN_COLD, PLAIN_NATIVE)] == [
        "speculate(3)", "plain_warm", "plain_cold", "plain_native",
    ]  # fmt: skip


def test_the_modes_of_a_lease_are_those_of_table_alternatives_and_pin() -> None:
    lease = replace(GOOD, **entry(0.5, 0.5), pin=Pin("p", PLAIN_COLD))
    assert lease.modes == {speculate(3), speculate(1), PLAIN_COLD}
