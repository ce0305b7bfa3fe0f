"""Several ranks, one choice: whatever fails on one of them, no step is run by some and not by others."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.hooked_engine import one_mode_lease
from support.ranked_engine import RankedEngine
from trimtab_sglang import together
from trimtab_sglang.lease import PLAIN_WARM, Lease, LeaseMachine, Mode, Pin, TableEntry, modes_of, speculate
from trimtab_sglang.plugin import Plugin
from trimtab_sglang.ranks import Command, Mailbox, Order, Posted
from trimtab_sglang.shared_words import SharedWords, disagree

S = 1_000_000_000
OWN_RULE = {1, 3, 5, 7}
TABLE = (TableEntry(1, speculate(7)), TableEntry(8, speculate(1)))


def boom(*_: Any, **__: Any) -> Any:
    raise RuntimeError("boom")


def wandering(steps: int, seed: int = 0) -> list[int]:
    drawn = random.Random(seed)
    return [drawn.choice([1, 3, 6, 9, 20]) for _ in range(steps)]


# -- the same command at the same step -----------------------------------------------------------


def test_a_decision_is_in_force_on_all_ranks_at_the_same_launch() -> None:
    engine = RankedEngine(4)
    assert engine.run([4] * 3) == [3, 3, 3]
    engine.post(Lease(1, TABLE, smoothing=1))
    assert engine.run([4, 4, 20, 20]) == [7, 7, 1, 1]
    engine.post(Lease(2, TABLE, pin=Pin("p", PLAIN_WARM)))
    assert engine.run([4, 20]) == [0, 0]
    assert engine.stocks_agree()


def test_ends_of_life_are_decided_by_the_speaking_ranks_clock_alone() -> None:
    engine = RankedEngine(3)
    engine.skew_ns = [0, 5 * S, -5 * S]
    engine.post(one_mode_lease(PLAIN_WARM, 1, pin=Pin("p", speculate(1))), 2 * S, 4 * S)
    assert engine.run([4] * 5) == [1] * 5
    engine.now_ns = 3 * S
    assert engine.run([4] * 5) == [1] * 5
    assert [plugin.machine.lease for plugin in engine.plugins] == [None] * 3
    engine.now_ns = 4 * S
    assert set(engine.run([4] * 20)) <= OWN_RULE
    assert [plugin.machine.pin for plugin in engine.plugins] == [None] * 3


def test_a_release_reaches_all_ranks() -> None:
    engine = RankedEngine()
    engine.post(one_mode_lease(PLAIN_WARM))
    assert engine.run([4] * 3) == [0] * 3
    engine.speaker.mailbox.post(Posted(Command(Order.RELEASE)))
    assert set(engine.run([4] * 20)) <= OWN_RULE


def test_the_draws_of_an_exploration_are_the_same_on_all_ranks() -> None:
    engine = RankedEngine(4)
    entry = TableEntry(1, speculate(1), 0.5, ((speculate(3), 0.25), (speculate(7), 0.25)))
    engine.post(Lease(1, (entry,), exploration_seed=9, exploration_dwell_steps=2))
    ran = engine.run([4] * 200)
    assert {ran.count(steps) > 20 for steps in (1, 3, 7)} == {True}


def test_a_rank_that_does_not_speak_adds_nothing_to_what_it_pulls() -> None:
    engine = RankedEngine(2)
    other = engine.ranks[1]
    other.plugin.mailbox.post(Posted(Command(Order.RELEASE)))
    request = other.shape.Req("r")
    other.incoming.append(request)
    assert other.scheduler.request_receiver._pull_raw_reqs() == [request]


def test_a_quiet_mailbox_leaves_the_requests_as_they_are() -> None:
    engine = RankedEngine(2)
    engine.run([1])
    requests: list[Any] = []
    team = engine.speaker.team
    assert team is not None
    assert together.wrap_pull(engine.speaker, team, lambda receiver: requests)(object()) is requests


def test_without_a_lease_the_steps_are_those_of_an_engine_with_a_single_rank() -> None:
    sizes = wandering(120)
    assert RankedEngine(3, chance=0.9).run(sizes) == RankedEngine(1, chance=0.9).run(sizes)


# -- failures on one rank ------------------------------------------------------------------------


def without_graph_flag(result: Any) -> Callable[..., None]:
    """Makes results that lack something which every row needs."""

    def __init__(self: Any, draft_tokens: int | None = None, counts: list[int] | None = None) -> None:  # noqa: N807
        self.speculative_num_draft_tokens = draft_tokens
        self.num_correct_drafts_per_req_cpu = counts

    return __init__


class Failing(LeaseMachine):
    """Fails at one step, or from it on, half-way through its work."""

    def __init__(self, step: int, ever_after: bool = False) -> None:
        super().__init__()
        self._fails_at = step
        self._ever_after = ever_after
        self._failed = False

    def choose(self, batch_size: int) -> Mode | None:
        due = self.step + 1 >= self._fails_at if self._ever_after else self.step + 1 == self._fails_at
        if due and (self._ever_after or not self._failed):
            self._failed = True
            self.step += 1
            self.mean += 5
            raise RuntimeError("boom")
        return super().choose(batch_size)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("ever_after", [False, True], ids=["once", "from then on"])
def test_a_rank_that_cannot_choose_stays_with_the_others_until_all_fall_back(rank: int, ever_after: bool) -> None:
    def prepare(at: int, plugin: Plugin) -> None:
        if at == rank:
            plugin.machine = Failing(10, ever_after)

    engine = RankedEngine(3, prepare)
    engine.post(Lease(1, TABLE, smoothing=0.3))
    ran = engine.run([4] * 30)
    assert ran[:10] == [7] * 10
    assert set(ran[11:]) <= OWN_RULE
    assert [plugin.machine.lease for plugin in engine.plugins] == [None] * 3
    reasons = {plugin.machine.fallen_back for plugin in engine.plugins}
    assert len(reasons) == 1
    assert "choosing the mode: RuntimeError: boom" in reasons.pop()
    assert engine.speaker.fuse.blown
    assert engine.stocks_agree()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_choice_that_fails_once_in_the_middle_is_made_all_the_same(rank: int) -> None:
    """With bands, dwell and draws: what the failed call left behind must not show."""
    entry = TableEntry(1, speculate(1), 0.5, ((speculate(5), 0.5),))
    lease = Lease(
        1, (entry, TableEntry(6, speculate(7))), smoothing=0.3, hysteresis=0.2, min_dwell_steps=3,
        exploration_seed=4, exploration_dwell_steps=2,
    )  # fmt: skip

    def prepare(at: int, plugin: Plugin) -> None:
        if at == rank:
            plugin.machine = Failing(25)

    engine = RankedEngine(2, prepare)
    # Nobody hears of the failure: the lease goes on.
    for plugin in engine.plugins:
        plugin.fuse._on_blow = lambda reason: None
    engine.post(lease)
    engine.run(wandering(150, seed=3))
    assert engine.ranks[rank].plugin.fuse.blown


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(
    ("broken", "reason"), [("launches", "tagging a launch: TypeError"), ("ring", "recording a result: AttributeError")]
)
def test_a_rank_that_cannot_record_stays_with_the_others_until_all_fall_back(
    rank: int, broken: str, reason: str
) -> None:
    engine = RankedEngine(3, chance=0.9)
    engine.post(Lease(1, TABLE, smoothing=1))
    engine.run(wandering(20))
    # The ring itself is bound at the start: only its rows can be spoiled.
    spoil = engine.ranks[rank]
    if broken == "launches":
        spoil.plugin.recorder.launches = None  # type: ignore[assignment]
    else:
        spoil.shape.GenerationBatchResult.can_run_cuda_graph = property()
        spoil.shape.GenerationBatchResult.__init__ = without_graph_flag(spoil.shape.GenerationBatchResult)
    ran = engine.run([4] * 60)
    assert ran[:1] == [7]
    assert set(ran[2:]) <= OWN_RULE
    assert spoil.plugin.fuse.reason.startswith(reason)
    assert reason.partition(":")[0] in engine.speaker.fuse.reason
    assert engine.stocks_agree()


@pytest.mark.parametrize("times", [1, 2])
def test_a_command_that_fails_is_carried_out_at_the_second_attempt_or_all_fall_back(times: int) -> None:
    engine = RankedEngine(2)
    machine = engine.ranks[1].plugin.machine
    left = [times]

    class Stubborn(LeaseMachine):
        def adopt(self, lease: Lease) -> bool:
            if left[0]:
                left[0] -= 1
                raise RuntimeError("boom")
            return super().adopt(lease)

    other = Stubborn()
    together.obey([Command(Order.ADOPT, lease=one_mode_lease(speculate(1)))], other, engine.ranks[1].plugin.fuse)
    assert (other.lease is not None) == (times == 1)
    assert machine.lease is None
    engine.run([4] * 2)
    assert engine.speaker.fuse.reason == "rank 1: RankGaveUpError: applying commands: RuntimeError: boom"
    assert all(plugin.machine.fallen_back for plugin in engine.plugins)


def test_if_the_speaking_rank_cannot_collect_all_fall_back() -> None:
    class Spoiled(Mailbox):
        def collect(self, now_ns: int) -> list[Command]:
            return super().collect(now_ns) if now_ns <= S else boom()

    engine = RankedEngine(2, lambda rank, plugin: setattr(plugin, "mailbox", Spoiled()))
    engine.post(one_mode_lease(PLAIN_WARM))
    assert engine.run([4] * 3) == [0] * 3
    engine.now_ns = 2 * S
    engine.post(one_mode_lease(speculate(1), 2))
    assert set(engine.run([4] * 10)) <= OWN_RULE
    assert {plugin.machine.fallen_back for plugin in engine.plugins} == {"collecting commands: RuntimeError: boom"}


def test_the_order_to_fall_back_is_the_last_one() -> None:
    engine = RankedEngine(2)
    engine.ranks[1].plugin.fuse.blow("here", ValueError("x"))
    engine.run([4])
    engine.post(one_mode_lease(PLAIN_WARM, 5))
    assert 0 not in engine.run([4] * 5)


def test_a_rank_alone_falls_back_at_once() -> None:
    engine = RankedEngine(1)
    engine.speaker.team = None
    engine.speaker.fuse.blow("here", ValueError("x"))
    assert engine.speaker.machine.fallen_back == "here: ValueError: x"


# -- random courses ------------------------------------------------------------------------------

MODES = modes_of([0, 1, 3, 5, 7])


@st.composite
def leases(draw: st.DrawFn, version: int) -> Lease:
    mode, other = draw(st.permutations(MODES))[:2]
    edges = sorted({1, *draw(st.sets(st.integers(2, 24), max_size=2))})
    share = draw(st.sampled_from([1.0, 0.5]))
    others = ((other, 1 - share),) if share < 1 else ()
    return Lease(
        version,
        tuple(TableEntry(edge, mode if i % 2 else other, share, others) for i, edge in enumerate(edges)),
        smoothing=draw(st.sampled_from([0.2, 1.0])),
        min_dwell_steps=draw(st.sampled_from([0, 4])),
        exploration_seed=draw(st.integers(0, 3)),
        exploration_dwell_steps=draw(st.sampled_from([0, 1, 3])),
        life_steps=draw(st.sampled_from([5, 1_000_000])),
        pin=draw(st.sampled_from([None, None, Pin("a", MODES[2])])),
    )


@settings(max_examples=20, derandomize=True)
@given(data=st.data())
def test_whatever_happens_to_whom_the_ranks_run_the_same_steps(data: st.DataObject) -> None:
    engine = RankedEngine(3, chance=data.draw(st.sampled_from([0.3, 0.9])))
    for version in range(1, data.draw(st.integers(2, 6))):
        match data.draw(st.sampled_from(["lease", "lease", "lease", "late", "fuse", "release"])):
            case "lease":
                engine.post(data.draw(leases(version)), data.draw(st.sampled_from([engine.now_ns + S, 10**18])))
            case "late":
                engine.now_ns += 2 * S
            case "fuse":
                engine.plugins[data.draw(st.integers(0, 2))].fuse.blow("test", ValueError("x"))
            case _:
                engine.speaker.mailbox.post(Posted(Command(Order.RELEASE)))
        engine.run(wandering(data.draw(st.integers(1, 40)), seed=version))
    assert engine.speaker.team is not None
    assert not disagree(engine.speaker.team.steps())


# -- agreement is watched ------------------------------------------------------------------------


def test_what_every_rank_chose_is_there_to_be_compared() -> None:
    engine = RankedEngine(3)
    team = engine.speaker.team
    assert team is not None
    assert team.steps() == ()
    engine.post(Lease(1, TABLE, smoothing=1))
    engine.run([4, 20])
    found = team.steps()
    assert [(at.rank, at.step, at.mode, at.batch_size) for at in found] == [(r, 2, speculate(1), 20) for r in range(3)]
    assert not disagree(found)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the plugin's threads slept; nobody hears anything meanwhile."""
    found: list[float] = []
    monkeypatch.setattr(together, "LAST_WORDS_S", 0.0)
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def test_one_step_at_another_batch_size_shows_for_ever(slept: list[float]) -> None:
    engine = RankedEngine(2)
    team = engine.speaker.team
    assert team is not None
    engine.post(one_mode_lease(speculate(1)))
    engine.run([4] * 5)
    engine.step([4, 5])
    engine.run([4] * 5)
    found = team.steps()
    assert disagree(found)
    assert len({(at.step, at.mode, at.batch_size) for at in found}) == 1


def test_the_later_of_two_that_part_waits_before_it_goes_on_and_only_once(slept: list[float]) -> None:
    engine = RankedEngine(4)
    team = engine.speaker.team
    assert team is not None
    engine.run([4] * 5)
    slept.clear()
    engine.step([4, 4, 5, 5])
    assert team.dying
    assert slept == [together.SETTLED_S]
    engine.run([4] * 5)
    assert slept == [together.SETTLED_S]


def test_what_only_looks_like_a_difference_while_it_is_written_down_waits_for_nobody(slept: list[float]) -> None:
    engine = RankedEngine(2)
    team = engine.ranks[1].plugin.team
    assert team is not None
    engine.run([4] * 3)
    together.look_again(team, 3)
    assert not team.dying


@pytest.mark.parametrize("forged", [True, False])
def test_a_forward_that_fails_waits_for_the_controller_only_if_the_ranks_disagree(
    forged: bool, slept: list[float]
) -> None:
    words, path = SharedWords.create(2)
    path.unlink()
    for rank, size in enumerate((4, 5 if forged else 4)):
        words.noter(rank)(1, None, 3, size)
    team = together.Team(0, words, Mailbox())
    with pytest.raises(RuntimeError, match="boom"):
        together.with_last_words(team, boom)(object(), object())
    assert team.dying == forged


def test_the_wait_ends_when_the_controller_has_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = RankedEngine(2)
    team = engine.speaker.team
    assert team is not None
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        team.heard()

    monkeypatch.setattr(time, "sleep", sleep)
    together.wait_until_heard(team)
    assert slept == [together.LAST_WORDS_POLL_S]
