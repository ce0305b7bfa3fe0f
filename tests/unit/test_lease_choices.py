"""What a lease makes an engine run, step by step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from trimtab_sglang.lease import PLAIN_WARM, Lease, LeaseMachine, Mode, Pin, TableEntry, speculate

EDGES = {1: speculate(7), 9: speculate(3), 33: PLAIN_WARM}
PIN = Pin("p1", speculate(5))


def lease(version: int = 1, table: dict[int, Mode] = EDGES, **fields: Any) -> Lease:
    entries = tuple(TableEntry(edge, mode) for edge, mode in table.items())
    return Lease(version, entries, **{"smoothing": 1.0, "hysteresis": 0.0, **fields})


def machine(*leases: Lease) -> LeaseMachine:
    made = LeaseMachine()
    for one in leases:
        assert made.adopt(one)
    return made


def trail(machine: LeaseMachine, batch_sizes: Iterable[int]) -> str:
    """Steps chosen at these batch sizes, one digit each; `.` is the engine's own policy."""
    modes = [machine.choose(size) for size in batch_sizes]
    return "".join("." if mode is None else str(mode.steps) for mode in modes)


def test_without_a_lease_the_engine_decides() -> None:
    begun = machine()
    assert trail(begun, [1, 64, 1]) == "..."
    assert (begun.step, begun.choice, begun.version, begun.entry, begun.switches) == (3, None, 0, -1, 0)


@pytest.mark.parametrize(
    ("fields", "batch_sizes", "steps"),
    [
        ({}, [1, 8, 9, 32, 33, 200, 8], "7733007"),
        ({"table": {1: speculate(3)}}, [1, 200], "33"),
        ({"hysteresis": 0.25}, [8, 9, 11, 12, 8, 7, 6], "7773337"),
        ({"hysteresis": 0.25}, [33, 24, 25, 42], "0330"),
        ({"hysteresis": 0.25}, [8, 11, 8, 11, 8, 11], "777777"),
        ({"hysteresis": 0.25}, [12, 9, 8, 7, 8, 9], "333333"),
        ({"smoothing": 0.5}, [8, 16, 8, 8, 8, 8, 8], "7333777"),
        ({"smoothing": 0.5}, [16, 8, 4, 4, 4], "33777"),
        ({"smoothing": 0.5, "hysteresis": 0.25}, [8, 14, 8, 14, 8], "77733"),
        ({"min_dwell_steps": 3}, [8, 9, 9, 9, 8, 8, 8, 8], "77733377"),
        ({"min_dwell_steps": 3}, [8, 9, 8, 9, 9, 8], "777333"),
        ({"min_dwell_steps": 1}, [8, 9, 8, 9], "7373"),
    ],
)  # fmt: skip
def test_the_table_is_read_with_smoothing_hysteresis_and_dwell(
    fields: dict[str, Any], batch_sizes: list[int], steps: str
) -> None:
    assert trail(machine(lease(**fields)), batch_sizes) == steps


def test_a_batch_that_wobbles_over_an_edge_does_not_switch() -> None:
    wobbling = machine(lease(smoothing=0.25, hysteresis=0.1))
    trail(wobbling, [8] + [9, 8] * 200)
    assert wobbling.switches == 0
    trail(wobbling, [16] * 20)
    assert wobbling.switches == 1


def test_the_running_mean_begins_with_the_first_batch_of_a_lease() -> None:
    assert trail(machine(lease(smoothing=0.01)), [40, 40]) == "00"


def test_the_running_mean_begins_anew_after_a_time_without_a_lease() -> None:
    begun = machine(lease(smoothing=0.01))
    trail(begun, [1] * 10)
    begun.release()
    assert trail(begun, [40]) == "."
    begun.adopt(lease(2, smoothing=0.01))
    assert trail(begun, [40]) == "0"


def test_the_running_mean_goes_on_under_a_pin() -> None:
    pinned = machine(lease(smoothing=0.01, pin=PIN))
    assert trail(pinned, [40]) == "5"
    pinned.drop_pin("p1")
    assert trail(pinned, [40]) == "0"


def test_a_new_table_is_followed_at_the_next_launch() -> None:
    begun = machine(lease())
    assert trail(begun, [4]) == "7"
    begun.adopt(lease(2, {1: speculate(1)}))
    assert trail(begun, [4]) == "1"


def test_dwell_holds_over_a_change_of_lease() -> None:
    begun = machine(lease(min_dwell_steps=4))
    assert trail(begun, [4]) == "7"
    begun.adopt(lease(2, {1: speculate(1)}, min_dwell_steps=4))
    assert trail(begun, [4] * 4) == "7771"


# -- where a choice came from --------------------------------------------------------------------


def test_a_choice_says_which_lease_and_entry_it_came_from() -> None:
    begun = machine(lease(4))
    for size, entry in [(1, 0), (20, 1), (64, 2)]:
        begun.choose(size)
        assert (begun.version, begun.entry, begun.explored) == (4, entry, False)


def test_a_choice_held_by_the_dwell_is_still_that_of_the_entry_it_came_from() -> None:
    begun = machine(lease(4, min_dwell_steps=5))
    begun.choose(1)
    begun.choose(20)
    assert (begun.version, begun.entry) == (4, 0)


def test_a_choice_of_a_pin_has_no_lease_and_no_entry() -> None:
    pinned = machine(lease(4, pin=PIN))
    pinned.choose(1)
    assert pinned.choice is not None
    assert (pinned.choice.mode, pinned.version, pinned.entry) == (PIN.mode, 0, -1)


# -- pins ----------------------------------------------------------------------------------------


def test_a_pin_goes_before_the_table_and_the_dwell() -> None:
    begun = machine(lease(min_dwell_steps=1000))
    assert trail(begun, [4]) == "7"
    begun.adopt(lease(2, min_dwell_steps=1000, pin=PIN))
    assert trail(begun, [4, 40]) == "55"


@pytest.mark.parametrize("end", ["release", "expire", "life in steps"])
def test_a_pin_outlives_the_lease_that_brought_it(end: str) -> None:
    pinned = machine(lease(pin=PIN, life_steps=2))
    if end == "release":
        pinned.release()
    elif end == "expire":
        assert pinned.expire(1)
    assert trail(pinned, [4] * 20) == "5" * 20
    assert pinned.lease is None
    assert pinned.pin == PIN


def test_a_pin_needs_no_table() -> None:
    pinned = machine(Lease(1, (), pin=PIN))
    assert trail(pinned, [4, 40]) == "55"
    assert pinned.lease is None


def test_a_lease_without_a_pin_releases_one() -> None:
    pinned = machine(lease(pin=PIN))
    assert trail(pinned, [4]) == "5"
    pinned.adopt(lease(2))
    assert trail(pinned, [4]) == "7"
    assert pinned.pin is None


def test_the_same_version_with_another_pin_is_not_the_same_lease() -> None:
    pinned = machine(lease(pin=PIN))
    trail(pinned, [4])
    pinned.adopt(lease(pin=Pin("p2", PLAIN_WARM)))
    assert trail(pinned, [4]) == "0"


def test_a_pin_is_dropped_by_its_id_alone() -> None:
    pinned = machine(lease(pin=PIN))
    trail(pinned, [4])
    assert not pinned.drop_pin("p2")
    assert trail(pinned, [4]) == "5"
    assert pinned.drop_pin("p1")
    assert not pinned.drop_pin("p1")
    assert trail(pinned, [4]) == "7"


def test_dropping_a_pin_without_a_lease_gives_control_to_the_engine() -> None:
    pinned = machine(Lease(1, (), pin=PIN))
    trail(pinned, [4])
    pinned.drop_pin("p1")
    assert trail(pinned, [4]) == "."
    assert pinned.choice is None


# -- lives ---------------------------------------------------------------------------------------


def test_only_the_version_in_force_expires() -> None:
    begun = machine(lease(1), lease(2))
    assert not begun.expire(1)
    assert trail(begun, [4]) == "7"
    assert begun.expire(2)
    assert not begun.expire(2)
    assert trail(begun, [4]) == "."


@pytest.mark.parametrize("life", [1, 2, 5])
def test_a_lease_is_over_after_its_life_in_steps(life: int) -> None:
    ending = machine(lease(life_steps=life))
    assert trail(ending, [4] * (life + 2)) == "7" * life + ".."
    assert ending.choice is None


def test_the_version_in_force_again_extends_its_life_and_changes_nothing_else() -> None:
    begun = machine(lease(min_dwell_steps=4, life_steps=3))
    seen = trail(begun, [4, 20, 20])
    assert begun.adopt(lease(min_dwell_steps=4, life_steps=3))
    assert seen + trail(begun, [20] * 4) == "777" + "733."


def test_an_older_version_is_refused() -> None:
    begun = machine(lease(3))
    assert not begun.adopt(lease(2, {1: speculate(1)}))
    assert trail(begun, [4]) == "7"
    begun.release()
    assert not begun.adopt(lease(2))
    assert begun.last_version == 3


def test_an_expired_version_may_come_again() -> None:
    begun = machine(lease(3))
    begun.expire(3)
    assert begun.adopt(lease(3))
    assert trail(begun, [4]) == "7"


STANDBY = speculate(1)


def outlived(**fields: Any) -> LeaseMachine:
    """A machine whose lease has ended, with a mode set for the time after."""
    begun = machine(lease(then=STANDBY, **fields))
    trail(begun, [4, 40])
    assert begun.expire(1)
    return begun


def test_the_mode_set_for_the_time_after_a_lease_runs_at_every_batch_size_until_the_next_lease() -> None:
    begun = outlived()
    assert trail(begun, [4, 40, 200]) == "111"
    assert (begun.lease, begun.standby, begun.version, begun.entry) == (None, STANDBY, 0, -1)
    begun.adopt(lease(2))
    assert trail(begun, [4]) == "7"
    assert begun.standby is None


def test_a_life_that_ends_in_steps_ends_like_any_other() -> None:
    ending = machine(lease(life_steps=3, then=STANDBY))
    assert trail(ending, [4] * 6) == "777111"


def test_a_release_ends_the_mode_set_for_the_time_after_a_lease_as_well() -> None:
    begun = outlived()
    begun.release()
    assert trail(begun, [4]) == "."
    let_go = machine(lease(then=STANDBY))
    let_go.release()
    assert trail(let_go, [4]) == "."


def test_a_pin_goes_before_the_mode_set_for_the_time_after_a_lease() -> None:
    begun = outlived(pin=PIN)
    assert trail(begun, [4]) == "5"
    begun.drop_pin("p1")
    assert trail(begun, [4]) == "1"


def test_a_fallback_ends_the_mode_set_for_the_time_after_a_lease() -> None:
    begun = outlived()
    begun.fall_back("KeyError: 3")
    assert trail(begun, [4]) == "."


def test_a_fallback_is_for_good() -> None:
    begun = machine(lease(pin=PIN))
    trail(begun, [4])
    begun.fall_back("KeyError: 3")
    begun.fall_back("later")
    assert not begun.adopt(lease(9))
    assert trail(begun, [4, 4]) == ".."
    assert (begun.fallen_back, begun.pin, begun.lease, begun.choice) == ("KeyError: 3", None, None, None)


def test_switches_count_changes_of_mode_under_leases_and_pins() -> None:
    begun = machine(lease())
    trail(begun, [4, 20, 20, 4])
    begun.adopt(lease(2, pin=Pin("p", speculate(7))))
    trail(begun, [4])
    assert begun.switches == 2
    begun.release()
    begun.drop_pin("p")
    trail(begun, [4])
    begun.adopt(lease(3))
    trail(begun, [40])
    assert begun.switches == 2
