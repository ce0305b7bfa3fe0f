"""Native plain on the real engine: the target's own decode inside the speculative worker, and a safe way back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from circles import PERIOD, circle
from engine_server import OVERLAP, EngineFactory, EngineServer, EngineSettings
from prompts import ALL_TOKENS, prompts
from steering import Steering, accepted_by_round
from support.scripted_controller import ScriptedController
from trimtab.domain import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, Mode, StepRow, speculate

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(240)]

PROMPTS = prompts(10, ALL_TOKENS, seed=11)
TOKENS = 100
# Long enough for the draft of `echo` to be right from the first round on.
PROMPT_TOKENS = PERIOD + 8
WIDEST = speculate(5)
AFTERWARDS = 90
# Strict also while requests run, not only when the engine is idle.
STRICT = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1"}


@dataclass(frozen=True)
class Steered:
    """An engine and who steers it."""

    engine: EngineServer
    steering: Steering


def steered(new_engine: EngineFactory, model: str, speculation: str, **arguments: str) -> Iterator[Steered]:
    with ScriptedController() as controller:
        environment = {"TRIMTAB_CONTROLLER": controller.target, "TRIMTAB_MODE": "act", **OVERLAP, **STRICT}
        dashed = {name.replace("_", "-"): value for name, value in arguments.items()}
        with new_engine(EngineSettings(model, speculation, dashed, environment)) as engine:
            yield Steered(engine, Steering(controller).meet())


@pytest.fixture(scope="module")
def fixed(new_engine: EngineFactory) -> Iterator[Steered]:
    """A server without --speculative-adaptive."""
    yield from steered(new_engine, "noisy", "fixed", page_size="16")


@pytest.fixture(scope="module")
def echo(new_engine: EngineFactory) -> Iterator[Steered]:
    """An adaptive server whose draft needs every entry of its own KV cache."""
    yield from steered(new_engine, "echo", "adaptive", context_length="4096")


def test_a_fixed_step_server_offers_native_plain_and_its_own_steps(fixed: Steered) -> None:
    assert fixed.steering.modes == (PLAIN_NATIVE, speculate(3))
    assert fixed.steering.hello.acts


@pytest.mark.parametrize(("seed", "dwell_steps"), [(1, 1), (2, 3), (3, 9)])
def test_beside_a_fixed_step_server_no_token_changes_while_plain_and_speculation_alternate(
    plain_engine: EngineServer, fixed: Steered, seed: int, dwell_steps: int
) -> None:
    expected = [answer.tokens for answer in plain_engine.generate_all(PROMPTS, TOKENS)]
    fixed.steering.shuffle(fixed.steering.modes, seed, dwell_steps)
    assert [answer.tokens for answer in fixed.engine.generate_all(PROMPTS, TOKENS)] == expected
    ran = Counter(row.mode for row in fixed.steering.rows())
    assert min(ran[PLAIN_NATIVE], ran[speculate(3)]) > 0.2 * ran.total()


@pytest.mark.parametrize("plain_tokens", [50, 500, 2_000])
def test_after_native_plain_the_draft_is_as_right_as_if_it_had_never_left(echo: Steered, plain_tokens: int) -> None:
    rows = plain_then_speculate(echo, PLAIN_NATIVE, plain_tokens)
    window = echo.steering.hello.plain.window_tokens
    assert min(plain_tokens, window) <= max(row.missed_tokens for row in rows) <= window
    assert sum(row.caught_up_tokens for row in rows) == sum(row.mode == PLAIN_NATIVE for row in rows) >= plain_tokens
    assert set(accepted_by_round(rows)[:-1]) == {WIDEST.steps}
    assert not any(row.stale_requests for row in rows if row.mode.steps)


def test_after_cold_plain_the_draft_is_wrong_and_its_request_counts_as_stale(echo: Steered) -> None:
    before = echo.steering.stale_resumes
    rows = plain_then_speculate(echo, PLAIN_COLD, 50)
    drafted = [row for row in rows if row.mode.steps]
    # The first round may have been launched before the lease was there.
    wrong = [row for row in drafted if row.stale_requests]
    assert sum(row.accepted_tokens == 0 for row in wrong) >= PERIOD - 2
    assert all(not row.fresh_requests and row.catch_up_ns is None for row in wrong)
    assert echo.steering.stale_resumes == before + 1


def test_after_warm_plain_there_is_nothing_to_catch_up_with(echo: Steered) -> None:
    rows = plain_then_speculate(echo, PLAIN_WARM, 50)
    assert set(accepted_by_round(rows)[:-1]) == {WIDEST.steps}
    assert all(row.catch_up_ns is None and not row.stale_requests for row in rows)


@pytest.mark.parametrize("mode", [PLAIN_NATIVE, PLAIN_COLD])
def test_a_prefix_made_in_plain_is_as_good_as_any_other(echo: Steered, mode: Mode) -> None:
    """What the draft model has not read stays out of the prefix cache; the rest is reused."""
    echo.engine.flush_cache()
    echo.steering.run(mode)
    made = echo.engine.generate(circle(0, PROMPT_TOKENS), 200)
    echo.steering.run(WIDEST)
    echo.steering.rows()
    again = echo.engine.generate(circle(0, PROMPT_TOKENS + 201), 100)
    assert made.tokens == tuple(circle(0, 200, PROMPT_TOKENS))
    assert again.tokens == tuple(circle(0, 100, PROMPT_TOKENS + 201))
    assert PROMPT_TOKENS - 1 <= again.cached_tokens < PROMPT_TOKENS + 200
    assert set(accepted_by_round(echo.steering.rows())[:-1]) == {WIDEST.steps}


def plain_then_speculate(echo: Steered, plain: Mode, plain_tokens: int) -> list[StepRow]:
    """Rows of a request that decodes plainly for so many tokens, then drafts."""
    start = plain_tokens % 7 * PERIOD
    echo.steering.run(plain)
    echo.steering.rows()
    began = len(echo.engine.steps.all())
    answer = echo.engine.submit(circle(start, PROMPT_TOKENS), plain_tokens + AFTERWARDS)
    echo.engine.steps.wait_for(lambda steps: len(steps) - began >= plain_tokens, 0, 60)
    echo.steering.run(WIDEST)
    assert answer.result().tokens == tuple(circle(start, plain_tokens + AFTERWARDS, PROMPT_TOKENS))
    return echo.steering.rows()
