"""The policy that SGLang asks: the lease's mode if there is one, else the engine's own, which keeps watching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.hooked_engine import CountsWorld, EmbeddedEngine, OverlappedEngine, one_mode_lease
from trimtab_sglang.fuse import Fuse
from trimtab_sglang.lease import LeaseMachine, speculate
from trimtab_sglang.policy import LeasedPolicy, leased_policy_class
from trimtab_sglang.ranks import Command, Order, Posted
from trimtab_sglang.recorder import Recorder


class Stock:
    """An engine's own policy that remembers what it was told."""

    extra = "the engine's own"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.made_with = (arguments, named)
        self.candidate_steps = [0, 1, 3, 7]
        self.steps = 3
        self.asked: list[Any] = []
        self.told: list[Any] = []
        self.sizes: list[int] | None = None

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        self.sizes = cuda_graph_bs

    def get_steps_for_batch(self, *arguments: Any, **named: Any) -> int:
        self.asked.append((*arguments, *named.values()))
        return self.steps

    def on_verify_complete(self, *arguments: Any, **named: Any) -> int | None:
        self.told.append((*arguments, *named.values()))
        return self.steps

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        return [step]


class Host:
    """What a policy needs of the plugin around it."""

    def __init__(self, captures_every_size: bool = True) -> None:
        self.machine = LeaseMachine()
        self.recorder = Recorder()
        self.fuse = Fuse(self.machine.fall_back)
        self.policy: LeasedPolicy | None = None
        self.captures_every_size = captures_every_size

    def meet(self) -> None:
        """A rank that is alone."""


def leased(captures_every_size: bool = True) -> tuple[LeasedPolicy, Stock, Host]:
    stock, host = Stock(), Host(captures_every_size)
    return LeasedPolicy(stock, host), stock, host


def test_without_a_lease_the_engines_own_policy_is_asked_with_what_sglang_said() -> None:
    policy, stock, host = leased()
    assert policy.get_steps_for_batch(4) == 3
    assert policy.get_steps_for_batch(4, "more", other=1) == 3
    assert policy.on_verify_complete([1, 2], 2) == 3
    assert policy.on_verify_complete([1, 2], batch_size=2, other=1) == 3
    assert stock.asked == [(4,), (4, "more", 1)]
    assert stock.told == [([1, 2], 2), ([1, 2], 2, 1)]
    assert host.policy is policy


def test_a_lease_goes_before_the_engines_own_policy_which_is_asked_all_the_same() -> None:
    policy, stock, host = leased()
    host.machine.adopt(one_mode_lease(speculate(7)))
    assert policy.get_steps_for_batch(4) == 7
    assert (policy.stock_steps, stock.asked) == (3, [(4,)])


def test_everything_else_is_the_engines_own() -> None:
    policy, stock, _ = leased()
    assert policy.candidate_steps is stock.candidate_steps
    assert policy.extra == "the engine's own"
    with pytest.raises(AttributeError, match="unknown"):
        _ = policy.unknown


@pytest.mark.parametrize(("leases", "sizes"), [(True, [1, 2, 8]), (False, [3])])
def test_graphs_are_captured_at_every_size_where_a_lease_may_run_any_candidate(leases: bool, sizes: list[int]) -> None:
    policy, stock, _ = leased(leases)
    policy.set_cuda_graph_bs([8, 1, 2])
    assert stock.sizes == [8, 1, 2]
    assert policy.cuda_graph_bs_for_step(3) == sizes


def test_without_graphs_there_are_no_sizes() -> None:
    policy, _, _ = leased()
    policy.set_cuda_graph_bs(None)
    assert policy.cuda_graph_bs_for_step(3) is None


def test_the_class_that_replaces_sglangs_makes_sglangs_own_policy_with_its_arguments() -> None:
    host = Host()
    replacement: Callable[..., LeasedPolicy] = leased_policy_class(Stock, host)
    policy = replacement(3, cfg_path="x.json")
    assert isinstance(policy.stock, Stock)
    assert policy.made_with == ((3,), {"cfg_path": "x.json"})
    assert host.policy is policy


# -- what the engine's own policy may see --------------------------------------------------------


def engine_with(stock: type[Stock], counts: list[list[int]], kind: type[EmbeddedEngine]) -> EmbeddedEngine:
    engine = kind(world=CountsWorld(counts), prepare=lambda shape: setattr(shape, "AdaptiveSpeculativeParams", stock))
    engine.admit()
    return engine


@pytest.mark.parametrize("kind", [EmbeddedEngine, OverlappedEngine])
def test_it_is_told_of_launches_with_at_least_the_steps_that_it_wanted(kind: type[EmbeddedEngine]) -> None:
    engine = engine_with(Stock, [[1], [2], [3], [4], [0], [5]], kind)
    assert engine.plugin.policy is not None
    stock = engine.plugin.policy.stock
    assert isinstance(stock, Stock)
    assert engine.decode(1) == [3]
    for version, steps in enumerate((1, 3, 7, 0), 1):
        engine.post(one_mode_lease(speculate(steps), version))
        engine.decode(1)
    engine.plugin.mailbox.post(Posted(Command(Order.RELEASE)))
    engine.decode(1)
    engine.idle()
    assert engine.steps_run == [3, 1, 3, 7, 0, 3]
    assert [counts for counts, _ in stock.told] == [[1], [3], [4], [5]]


class Restless(Stock):
    """Wants other steps after every result."""

    def on_verify_complete(self, *arguments: Any, **named: Any) -> int | None:
        self.steps = 1 if self.steps == 7 else 7
        return super().on_verify_complete(*arguments, **named)


@pytest.mark.parametrize("kind", [EmbeddedEngine, OverlappedEngine])
def test_under_a_lease_it_moves_no_steps(kind: type[EmbeddedEngine]) -> None:
    engine = engine_with(Restless, [[1]] * 12, kind)
    worker = engine.scheduler.draft_worker
    engine.post(one_mode_lease(speculate(3)))
    for _ in range(12):
        engine.decode(1)
        assert worker.speculative_num_steps == 3
