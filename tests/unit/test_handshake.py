"""Do all ranks run this plugin? What comes of it when they do, when one is missing, and when one is another."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.ranked_engine import DictStore
from trimtab_sglang import handshake
from trimtab_sglang.handshake import Outcome, World, shake_hands, torch_world
from trimtab_sglang.shared_words import GAVE_UP, SharedWords


class Time:
    """Goes ahead by what is slept; real sleep lets the other ranks' threads run."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += 5 * seconds
        threading.Event().wait(0.001)

    def monotonic(self) -> float:
        """The time."""
        return self.now


def meet(ranks: Sequence[dict[str, Any] | None], store: Any = None) -> list[Outcome | None]:
    """The outcome of each rank; None stands for a rank without the plugin."""
    store = DictStore() if store is None else store
    outcomes: list[Outcome | None] = [None] * len(ranks)

    def run(rank: int, said: dict[str, Any]) -> None:
        time = Time()
        world = World(rank, len(ranks), store)
        fields = {"digest": "d", "host": "h", **said}
        outcomes[rank] = shake_hands(world, **fields, sleep=time.sleep, monotonic=time.monotonic)

    threads = [threading.Thread(target=run, args=(rank, said)) for rank, said in enumerate(ranks) if said is not None]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def folder_of_words(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    create = SharedWords.create
    monkeypatch.setattr(SharedWords, "create", lambda ranks: create(ranks, folder))


def test_ranks_with_the_same_plugin_share_words_and_no_file_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder_of_words(monkeypatch, tmp_path)
    outcomes = [outcome for outcome in meet([{}, {}, {}]) if outcome]
    assert [outcome.problem for outcome in outcomes] == [""] * 3
    first, second, third = (outcome.words for outcome in outcomes)
    assert first
    assert second
    assert third
    second.give_up(1, "x")
    assert first.marked(GAVE_UP)
    assert third.given_up() == [(1, "x")]
    assert list(tmp_path.iterdir()) == []


TROUBLE: list[tuple[list[dict[str, Any] | None], str]] = [
    ([{}, {}, None], "rank 2 has no plugin that acts, or another one: it said nothing within 20 s"),
    ([{}, {"digest": "e"}, {}], "rank 1 has another version of the plugin: e, rank 0 has d"),
    ([{}, {"host": "i"}, {}], "rank 1 runs on another host, where it could not raise an alarm without a collective"),
    ([{}, {"problem": "hook not in place: a.b"}, {}], "rank 1: hook not in place: a.b"),
    ([{"problem": "hook not in place: a.b"}, {}, {}], "hook not in place: a.b"),
    (
        [{}, {"digest": "e"}, {"host": "i"}],
        "rank 1 has another version of the plugin: e, rank 0 has d; "
        "rank 2 runs on another host, where it could not raise an alarm without a collective",
    ),
]


@pytest.mark.parametrize(("ranks", "verdict"), TROUBLE)
def test_otherwise_no_rank_acts_and_each_knows_why(
    ranks: list[dict[str, Any] | None], verdict: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder_of_words(monkeypatch, tmp_path)
    outcomes = [outcome for outcome, said in zip(meet(ranks), ranks, strict=True) if said is not None]
    assert outcomes == [Outcome(None, verdict)] * len(outcomes)
    assert list(tmp_path.iterdir()) == []


def test_without_the_rank_that_speaks_nobody_acts() -> None:
    assert meet([None, {}, {}])[1:] == [Outcome(None, "rank 0 has no plugin that acts")] * 2


def test_a_rank_that_speaks_and_falls_silent_is_not_waited_for_for_ever() -> None:
    store = DictStore()
    store.set("trimtab/1/rank/0", json.dumps({"digest": "d", "host": "h", "problem": "", "words": "/nowhere"}))
    (outcome,) = meet([None, {}], store)[1:]
    assert outcome == Outcome(None, "rank 0 came to no verdict within 40 s")
    assert json.loads(store.get("trimtab/1/rank/1"))["problem"].startswith("it cannot share memory with rank 0")


def test_a_record_that_cannot_be_read_is_no_plugin() -> None:
    store = DictStore()
    store.set("trimtab/1/rank/1", '{"of": "another version"}')
    outcome = meet([{}, None], store)[0]
    assert outcome is not None
    assert outcome.problem.startswith("rank 1 has no plugin that acts, or another one")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_fails_is_a_reason_and_no_exception(rank: int) -> None:
    class Broken(DictStore):
        def check(self, keys: list[str], /) -> bool:
            raise ConnectionError("reset by peer")

    outcome = shake_hands(World(rank, 2, Broken()), "d")
    assert outcome == Outcome(None, "the ranks could not compare their plugins: ConnectionError: reset by peer")


def test_a_host_knows_itself() -> None:
    assert handshake.host_id() == handshake.host_id()
    assert handshake.host_id()


def test_a_process_without_torch_is_alone() -> None:
    assert torch_world() is None
