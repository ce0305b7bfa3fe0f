"""A worker in the shape of SGLang's, and rounds that are only written down: for tests of who decides what runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from support.hooked_engine import one_mode_lease
from trimtab_sglang.fuse import Fuse
from trimtab_sglang.lease import LeaseMachine, Mode
from trimtab_sglang.native_plain import NativePlain
from trimtab_sglang.policy import FixedSteps, LeasedPolicy
from trimtab_sglang.recorder import Recorder

DECODE, EXTEND = object(), object()
STOCK_STEPS = 3
WINDOW = 8
CATCH_UP_NS = 5_000


class Request:
    """A request that SGLang has committed so many tokens of; the prefix cache owns the first `protected` of them."""

    def __init__(self, committed: int = 100, protected: int = 40) -> None:
        self.kv = SimpleNamespace(kv_committed_len=committed, cache_protected_len=protected)


class PlainHost:
    """Stands for the plugin, as far as the policy and `NativePlain` look at it.

    Attributes:
        ran: What ran, in order: "native", "stock K", "catch up M", "widen", "skip", "no skip".
        fails: What raises when it is due: "native" or "catch up".
    """

    def __init__(self, stock_steps: int = STOCK_STEPS, always: bool = False, skips_by_default: bool = False) -> None:
        self.skips_by_default = skips_by_default
        self.ran: list[str] = []
        self.fails: set[str] = set()
        self.captures_every_size = True
        self.window = WINDOW
        self.machine = LeaseMachine()
        self.recorder = Recorder()
        self.fuse = Fuse(self.machine.fall_back)
        self.policy: LeasedPolicy | None = None
        policy = LeasedPolicy(FixedSteps(stock_steps), self)
        self._policy = policy
        self.worker = _Worker(self._stock)
        self.native_plain = NativePlain(
            self.worker, self, policy, self.machine, self.recorder, self.fuse, DECODE, always
        )
        self.requests = [Request(), Request()]
        self._version = 0

    def meet(self) -> None:
        """One rank by itself."""

    # -- what a test does ------------------------------------------------------------------------

    def lease(self, mode: Mode) -> None:
        """Adopt a lease for this mode, as the hook on request processing does."""
        self._version += 1
        self.machine.adopt(one_mode_lease(mode, self._version))
        self.native_plain.follow()

    def release(self) -> None:
        """The lease is over."""
        self.machine.release()
        self.native_plain.follow()

    def decode(self, rounds: int = 1, **changes: Any) -> list[str]:
        """So many decode rounds; what ran in them."""
        began = len(self.ran)
        for _ in range(rounds):
            fields = {"forward_mode": DECODE, "reqs": self.requests, "is_extend_in_batch": False, "spec_info": "drafts"}
            self.batch = SimpleNamespace(**(fields | changes))
            self.worker.forward_batch_generation(self.batch, on_publish=None)
            self.recorder.launches += 1
        return self.ran[began:]

    @property
    def standing_in(self) -> bool:
        """Whether the worker's own method is covered by ours."""
        return "forward_batch_generation" in vars(self.worker)

    # -- what the device would do ----------------------------------------------------------------

    def _stock(self, batch: Any, on_publish: Any = None) -> str:
        steps = "prefill" if batch.forward_mode is EXTEND else f"stock {self._policy.get_steps_for_batch(1)}"
        self.ran.append(steps)
        assert batch.spec_info in ("drafts", None)
        return steps

    def native(self, batch: Any, on_publish: Any = None) -> str:
        """A native round."""
        batch.spec_info = "changed on the way"
        if "native" in self.fails:
            raise RuntimeError("no decode kernel")
        self.ran.append("native")
        return "native"

    def widen(self) -> None:
        """The widest state."""

    def catch_up(self, batch: Any, missed: Sequence[int]) -> Callable[[], int]:
        """Read what was missed."""
        if "catch up" in self.fails:
            raise RuntimeError("no draft")
        self.ran.append(f"catch up {' '.join(map(str, missed))}")
        return lambda: CATCH_UP_NS

    def skip_draft_extend(self, skip: bool) -> None:
        """Cold or warm zero steps."""
        self.ran.append("skip" if skip else "no skip")


class _Worker:
    """Its method is the class's, as SGLang's is."""

    def __init__(self, stock: Callable[..., Any]) -> None:
        self._call = stock

    def forward_batch_generation(self, batch: Any, **kwargs: Any) -> Any:
        """SGLang's own round."""
        return self._call(batch, **kwargs)
