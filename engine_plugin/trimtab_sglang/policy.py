"""The policy that SGLang's adaptive controller asks: the lease's mode if there is one, else SGLang's own.

It only chooses. SGLang's own policy keeps watching under a lease, so that it is ready to take over.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

from trimtab_sglang import together
from trimtab_sglang.fuse import Fuse
from trimtab_sglang.lease import LeaseMachine, Mode, speculate
from trimtab_sglang.recorder import CHOICE, STOCK_STEPS, Recorder

# Modes by step count, so that the scheduler thread compares and stores ready-made objects.
MODES_BY_STEPS: tuple[Mode, ...] = tuple(speculate(k) for k in range(65))


class StockPolicy(Protocol):
    """SGLang's `AdaptiveSpecPolicy`."""

    candidate_steps: list[int]

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Tell the batch sizes with a captured graph."""

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Steps for the next launch."""

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None:
        """Take in accepted counts; the new steps, if they change."""

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Batch sizes to capture graphs for at this step count."""


class PolicyHost(Protocol):
    """What the policy needs of the plugin around it."""

    machine: LeaseMachine
    recorder: Recorder
    fuse: Fuse
    policy: LeasedPolicy | None

    @property
    def captures_every_size(self) -> bool:
        """Whether leases may run any candidate at any batch size."""

    def meet(self) -> together.Team | None:
        """The ranks that must choose the same; None for one that is alone."""


class LeasedPolicy:
    """Decorates SGLang's own policy; transparent while there is no lease.

    Attributes:
        stock: SGLang's own policy.
        graph_batch_sizes: Sizes with a captured graph, or None without graphs.
        stock_steps: Steps that the stock policy wanted for the newest launch.
        get_steps_for_batch: SGLang asks it once for every decode launch.
        on_verify_complete: SGLang tells it the accepted counts of every result.
    """

    def __init__(self, stock: StockPolicy, host: PolicyHost) -> None:
        self.stock = stock
        self.graph_batch_sizes: list[int] | None = None
        self.stock_steps = 0
        # Closures over ready-made references: both run at every decode step.
        team = host.meet()
        if team is None:
            self.get_steps_for_batch = _steps_chooser(self, stock, host.machine, host.fuse)
            self.on_verify_complete = _verify_watcher(stock, host.recorder)
        else:
            self.get_steps_for_batch = together.steps_chooser(self, stock, host.machine, host.fuse, team)
            self.on_verify_complete = together.verify_watcher(self, stock, host.machine)
        self._host = host
        host.policy = self

    @property
    def candidate_steps(self) -> list[int]:
        """Step counts that SGLang builds at start-up."""
        return self.stock.candidate_steps

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Told by SGLang before it captures graphs."""
        self.graph_batch_sizes = sorted(cuda_graph_bs) if cuda_graph_bs else None
        self.stock.set_cuda_graph_bs(cuda_graph_bs)

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Every size for every candidate.

        SGLang's own rule lists only those it would run itself; a lease may run any candidate at any size.
        """
        if self._host.captures_every_size:
            return self.graph_batch_sizes
        return self.stock.cuda_graph_bs_for_step(step)

    def __getattr__(self, name: str) -> Any:
        """Anything else is SGLang's own policy's."""
        if name == "stock":
            raise AttributeError(name)
        return getattr(self.stock, name)


class FixedSteps:
    """Stands for SGLang's own policy beside a server with a single step count."""

    def __init__(self, steps: int) -> None:
        self.candidate_steps = [steps]
        self._steps = steps

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """All the same."""

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Always the same."""
        return self._steps

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> int | None:
        """Nothing to change."""
        return None

    def cuda_graph_bs_for_step(self, step: int) -> list[int] | None:
        """Whatever SGLang captured."""
        return None


def _steps_chooser(policy: LeasedPolicy, stock: StockPolicy, machine: LeaseMachine, fuse: Fuse) -> Callable[..., int]:
    """Chooses the steps of a launch, and leaves what the stock policy wanted where the launch hook finds it."""
    choose = machine.choose

    def over(stock_steps_for: Callable[..., int]) -> Callable[..., int]:
        def get_steps_for_batch(batch_size: int) -> int:
            policy.stock_steps = steps = stock_steps_for(batch_size)
            # Behind a blown fuse the machine has fallen back for good and says None.
            try:
                mode = choose(batch_size)
                return steps if mode is None else mode.steps
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the scheduler
                fuse.blow("choosing the mode", error)
                return steps

        return get_steps_for_batch

    return _passing_on(over, stock.get_steps_for_batch, ("batch_size",))


def _verify_watcher(stock: StockPolicy, recorder: Recorder) -> Callable[..., int | None]:
    """Lets SGLang's own policy watch; it moves the steps only where no lease chose the launch.

    Under a lease it is told nothing of launches with fewer steps than it wanted: to it they would look like
    rejected drafts. Counts of launches with more steps reach it whole; cutting them to its own width would be
    work for every request on the scheduler thread.
    """

    def over(stock_watch: Callable[..., int | None]) -> Callable[..., int | None]:
        def on_verify_complete(num_correct_drafts_per_req: list[int], batch_size: int = 0) -> int | None:
            launch = recorder.processing
            choice = launch[CHOICE] if launch else None
            if not launch or not choice:
                return stock_watch(num_correct_drafts_per_req, batch_size)
            if choice.mode.steps >= launch[STOCK_STEPS]:
                stock_watch(num_correct_drafts_per_req, batch_size)
            return None

        return on_verify_complete

    return _passing_on(over, stock.on_verify_complete, ("num_correct_drafts_per_req", "batch_size"))


def _passing_on(
    over: Callable[[Callable[..., Any]], Callable[..., Any]], stock: Callable[..., Any], known: tuple[str, ...]
) -> Callable[..., Any]:
    """Our method over a stock one, with whatever further arguments a snapshot of SGLang may pass.

    Packing arguments costs every step a tuple and a dict, so a stock method that takes what we know is called
    plainly.
    """
    if tuple(inspect.signature(stock).parameters) == known:
        return over(stock)

    def method(first: Any, *args: Any, **kwargs: Any) -> Any:
        return over(lambda *_: stock(first, *args, **kwargs))(first)

    return method


def leased_policy_class(stock_class: Callable[..., StockPolicy], host: PolicyHost) -> type[LeasedPolicy]:
    """The class that replaces SGLang's: takes its arguments, makes its policy, and decorates that.

    `stock_class` is kept in the closure: SGLang's hook registry rebinds every module attribute that is the
    original class, and a fallback found by name would be ourselves.
    """

    class AdaptiveSpeculativeParams(LeasedPolicy):
        """SGLang's adaptive policy under Trimtab's lease."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(stock_class(*args, **kwargs), host)

    return AdaptiveSpeculativeParams
