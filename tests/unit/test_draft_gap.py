"""What the draft model has not read of a request, and what of it may go into the prefix cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.plain_worker import Request
from trimtab_sglang.draft_gap import DraftGap, committed_len


class OldRequest:
    """As in SGLang 0.5.16: the lengths are the request's own."""

    def __init__(self, committed: int, protected: int) -> None:
        self.kv_committed_len = committed
        self.cache_protected_len = protected
        self.kv = SimpleNamespace(kv_allocated_len=committed + 12)


def test_tokens_are_counted_for_each_request_and_a_catch_up_settles_them() -> None:
    gap, (a, b, c) = DraftGap(), [Request(), Request(), Request()]
    assert not gap
    gap.miss([a, b])
    gap.miss([b, c])
    assert gap.missed([a, b, c]) == [1, 2, 1]
    assert gap.behind([c, Request(), a]) == (0, 2)
    gap.caught_up([a, b])
    assert gap.missed([a, b, c]) == [0, 0, 1]
    gap.caught_up([c])
    assert not gap


def test_what_was_lost_stays_lost_whatever_is_caught_up_later() -> None:
    gap, request = DraftGap(), Request()
    gap.lose([request])
    gap.miss([request])
    gap.caught_up([request])
    assert gap.missed([request]) == [0]
    assert gap.behind([request]) == (0,)


def test_a_catch_up_that_fails_loses_what_was_missed_and_nothing_of_the_others() -> None:
    gap, (behind, fresh) = DraftGap(), [Request(), Request()]
    gap.miss([behind])
    gap.lose_missed([behind, fresh])
    assert gap.behind([behind, fresh]) == (0,)
    gap.resume([behind, fresh])
    assert gap.stale_resumes == 1


@pytest.mark.parametrize("make", [Request, OldRequest])
def test_what_the_draft_model_has_not_read_stays_out_of_the_prefix_cache(make: Any) -> None:
    gap, request = DraftGap(), make(100, 40)
    gap.miss([request])
    row = request.kv if make is Request else request
    row.kv_committed_len = 130
    gap.release(request)
    assert committed_len(request) == 100
    assert not gap


def test_what_the_prefix_cache_owns_already_is_not_taken_from_it() -> None:
    gap, request = DraftGap(), Request(committed=100, protected=40)
    gap.lose([request])
    request.kv.kv_committed_len, request.kv.cache_protected_len = 130, 120
    gap.release(request)
    assert committed_len(request) == 120


def test_a_request_that_was_caught_up_goes_into_the_prefix_cache_whole() -> None:
    gap, request = DraftGap(), Request(committed=100)
    gap.miss([request])
    gap.caught_up([request])
    request.kv.kv_committed_len = 130
    gap.release(request)
    assert committed_len(request) == 130


def test_a_hole_begins_where_the_first_token_was_left_unread() -> None:
    gap, request = DraftGap(), Request(committed=100)
    gap.miss([request])
    request.kv.kv_committed_len = 110
    gap.lose([request])
    request.kv.kv_committed_len = 150
    gap.release(request)
    assert committed_len(request) == 100
