"""Who decides what a decode round runs, and that the draft model is caught up however plain ends."""

from __future__ import annotations

from typing import Any

import pytest

from support.plain_worker import CATCH_UP_NS, EXTEND, STOCK_STEPS, WINDOW, PlainHost, Request
from trimtab_sglang.lease import PLAIN_COLD, PLAIN_NATIVE, PLAIN_WARM, Mode, Pin, speculate
from trimtab_sglang.native_plain import LaunchNote

# -- standing in ---------------------------------------------------------------------------------


def test_as_long_as_nobody_asks_for_native_plain_the_worker_is_untouched() -> None:
    host = PlainHost()
    host.lease(speculate(2))
    assert host.decode() == ["stock 2"]
    assert not host.standing_in
    assert not host.recorder.notes


def test_a_lease_for_native_plain_runs_it_and_the_end_of_the_lease_gives_the_worker_back() -> None:
    host = PlainHost()
    host.lease(PLAIN_NATIVE)
    assert host.decode(2) == ["native", "native"]
    host.release()
    assert host.decode(2) == ["catch up 2 2", f"stock {STOCK_STEPS}", f"stock {STOCK_STEPS}"]
    assert not host.standing_in


def test_a_pin_does_the_same() -> None:
    host = PlainHost()
    host.machine.pin = Pin("p", PLAIN_NATIVE)
    host.native_plain.follow()
    assert host.standing_in


def test_beside_a_fixed_step_server_every_round_asks_and_is_counted_once() -> None:
    host = PlainHost(always=True)
    host.native_plain.follow()
    assert host.decode(3) == ["stock 3"] * 3
    host.lease(PLAIN_NATIVE)
    assert host.decode(2) == ["native"] * 2
    host.lease(speculate(3))
    host.decode(2)
    assert host.standing_in
    assert host.machine.step == 7


@pytest.mark.parametrize(
    "other", [{"forward_mode": EXTEND}, {"is_extend_in_batch": True}, {"spec_info": None}], ids=lambda o: next(iter(o))
)
def test_rounds_that_do_not_decode_pass_untouched(other: dict[str, Any]) -> None:
    host = PlainHost()
    host.lease(PLAIN_NATIVE)
    assert "native" not in host.decode(**other)
    assert not host.native_plain.gap


# -- catching up ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then", "ran"),
    [(speculate(2), ["stock 2"]), (PLAIN_WARM, ["stock 0"]), (PLAIN_COLD, ["skip", "stock 0"])],
)
def test_whatever_follows_native_plain_the_draft_model_reads_what_it_missed_first(then: Mode, ran: list[str]) -> None:
    host = PlainHost()
    host.lease(PLAIN_NATIVE)
    host.decode(3)
    host.lease(then)
    caught_up = [what for what in host.decode() if what.startswith("catch up")]
    assert caught_up == ["catch up 3 3"]
    assert [what for what in host.ran if what.startswith(("stock", "skip"))] == ran


def test_the_ring_is_flushed_when_it_is_full_and_again_a_window_later() -> None:
    host = PlainHost()
    host.lease(PLAIN_NATIVE)
    ran = host.decode(2 * WINDOW + 1)
    assert [i for i, what in enumerate(ran) if what == f"catch up {WINDOW} {WINDOW}"] == [WINDOW, 2 * WINDOW + 1]
    assert ran.count("native") == 2 * WINDOW + 1


def test_a_request_that_joins_late_has_missed_less_and_is_flushed_with_the_others() -> None:
    host = PlainHost()
    host.lease(PLAIN_NATIVE)
    host.decode(5)
    host.requests = [*host.requests, Request()]
    assert host.decode(WINDOW - 5 + 1)[-2:] == [f"catch up {WINDOW} {WINDOW} 3", "native"]


def test_a_request_that_was_prefilled_meanwhile_has_nothing_to_catch_up_with() -> None:
    host = PlainHost()
    host.lease(PLAIN_NATIVE)
    host.decode(2)
    host.lease(speculate(2))
    host.requests = [Request(), *host.requests]
    assert host.decode() == ["catch up 0 2 2", "stock 2"]


# -- when something goes wrong -------------------------------------------------------------------


def test_a_native_round_that_fails_goes_on_as_sglangs_own_and_the_draft_model_is_caught_up() -> None:
    host = PlainHost()
    host.lease(PLAIN_NATIVE)
    host.decode(2)
    host.fails.add("native")
    assert host.decode() == ["catch up 2 2", f"stock {STOCK_STEPS}"]
    assert host.fuse.reason == "decoding plainly: RuntimeError: no decode kernel"
    assert host.decode() == [f"stock {STOCK_STEPS}"]
    assert not host.standing_in


def test_a_fuse_that_blows_elsewhere_ends_native_plain_with_a_catch_up() -> None:
    host = PlainHost()
    host.lease(PLAIN_NATIVE)
    host.decode(4)
    host.fuse.blow("elsewhere", ValueError("x"))
    assert host.decode() == ["catch up 4 4", f"stock {STOCK_STEPS}"]
    assert host.decode() == [f"stock {STOCK_STEPS}"]
    assert not host.standing_in


def test_a_catch_up_that_fails_leaves_the_requests_stale_and_the_engine_running() -> None:
    host = PlainHost()
    host.lease(PLAIN_NATIVE)
    host.decode(2)
    host.fails.add("catch up")
    host.lease(speculate(2))
    assert host.decode() == ["stock 2"]
    assert host.fuse.reason == "catching the draft model up: RuntimeError: no draft"
    assert host.native_plain.gap.behind(host.requests) == (0, 1)
    assert host.native_plain.gap.stale_resumes == 2


def test_after_the_fuse_no_lease_brings_native_plain_back() -> None:
    host = PlainHost()
    host.fuse.blow("elsewhere", ValueError("x"))
    host.lease(PLAIN_NATIVE)
    assert host.decode() == [f"stock {STOCK_STEPS}"]
    assert not host.standing_in


# -- cold plain ----------------------------------------------------------------------------------


def test_cold_plain_leaves_the_draft_model_out_and_what_follows_does_not() -> None:
    host = PlainHost()
    host.lease(PLAIN_COLD)
    assert host.decode(2) == ["skip", "stock 0", "stock 0"]
    host.lease(PLAIN_WARM)
    assert host.decode(2) == ["no skip", "stock 0", "stock 0"]


def test_requests_that_were_cold_count_as_stale_resumes_once_each_and_only_when_they_draft() -> None:
    host = PlainHost()
    host.lease(PLAIN_COLD)
    host.decode(2)
    host.lease(PLAIN_WARM)
    host.decode(2)
    assert host.native_plain.gap.stale_resumes == 0
    host.lease(speculate(2))
    host.decode(3)
    assert host.native_plain.gap.stale_resumes == 2


def test_it_stands_in_until_the_last_stale_request_is_gone() -> None:
    host = PlainHost()
    host.lease(PLAIN_COLD)
    host.decode()
    host.lease(speculate(2))
    host.decode()
    assert host.standing_in
    for request in host.requests:
        host.native_plain.gap.release(request)
    host.decode()
    assert not host.standing_in


def test_zero_steps_that_the_operator_made_cold_are_warm_under_a_lease_for_warm_plain_and_stale_without_one() -> None:
    host = PlainHost(stock_steps=0, always=True, skips_by_default=True)
    host.lease(PLAIN_WARM)
    assert host.decode(2) == ["no skip", "stock 0", "stock 0"]
    assert not host.native_plain.gap
    host.release()
    assert host.decode(2) == ["skip", "stock 0", "stock 0"]
    assert host.native_plain.gap.behind(host.requests) == (0, 1)
    host.lease(speculate(2))
    host.decode()
    assert host.native_plain.gap.stale_resumes == 2


# -- what is noted -------------------------------------------------------------------------------


def test_every_round_with_something_to_say_is_noted() -> None:
    host = PlainHost()
    host.lease(PLAIN_NATIVE)
    host.decode(2)
    host.lease(speculate(2))
    host.decode(2)
    host.lease(PLAIN_COLD)
    host.decode()
    first, second, back, cold = host.recorder.notes
    assert first == LaunchNote(1, (0, 1), True, missed_tokens=2)
    assert second == LaunchNote(2, (0, 1), True, missed_tokens=4)
    assert back[:5] == (3, (), True, 0, 4)
    assert back.catch_up_ns() == CATCH_UP_NS
    assert cold == LaunchNote(5, (0, 1))
