from __future__ import annotations

import pytest

from trimtab.domain import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, Mode, modes_of, speculate
from trimtab.errors import PolicyError
from trimtab.policies.contract import PolicyContext
from trimtab.policies.offer import choosable
from trimtab.policies.registry import policy_factory

OFFERED = (*modes_of([0, 1, 3]), PLAIN_COLD, PLAIN_NATIVE)


@pytest.mark.parametrize(
    ("parameters", "held"),
    [
        ({}, speculate(3)),
        ({"steps": 1}, speculate(1)),
        ({"steps": "1"}, speculate(1)),
        ({"steps": 0}, PLAIN_NATIVE),
        ({"mode": "plain_warm"}, PLAIN_WARM),
        ({"mode": "plain_cold"}, PLAIN_COLD),
        ({"mode": "speculate(1)", "steps": 3}, speculate(1)),
    ],
)
def test_it_holds_the_mode_asked_for_and_the_engines_own_by_default(parameters: dict[str, object], held: Mode) -> None:
    policy = policy_factory("fixed", parameters)(PolicyContext(OFFERED, (1, 9), initial_steps=3))
    decision = policy.choose()
    assert [(band.mode, band.reason) for band in decision.bands] == [(held, "fixed")]
    assert policy.probability_of(200, held) == 1.0


def test_an_engine_that_was_started_with_steps_it_does_not_offer_is_held_at_its_widest_mode() -> None:
    policy = policy_factory("fixed")(PolicyContext(modes_of([0, 1, 3]), (1,), initial_steps=4))
    assert policy.choose().bands[0].mode == speculate(3)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"steps": 4}, r"steps 4 is not among the engine's candidates; choose one of: 0, 1, 3"),
        ({"mode": "plain"}, r"mode 'plain' is not offered.*plain_warm, speculate\(1\)"),
        ({"depth": 4}, r"no parameter 'depth'; it takes: steps, mode"),
        ({"steps": "many"}, r"Expected `int"),
    ],
)
def test_what_the_engine_cannot_run_is_refused_with_what_it_can(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        policy_factory("fixed", parameters)(PolicyContext(OFFERED, (1,), initial_steps=3))


def test_policies_never_take_cold_plain_by_themselves_unless_there_is_nothing_else() -> None:
    assert choosable(OFFERED) == (PLAIN_NATIVE, PLAIN_WARM, speculate(1), speculate(3))
    assert choosable([PLAIN_COLD]) == (PLAIN_COLD,)
