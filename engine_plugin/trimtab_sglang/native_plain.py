"""Chooses and runs the plain modes that SGLang's worker does not know, and catches the draft model up afterwards.

While a lease or pin asks for such a mode, or a request has tokens that the draft model has not read, this stands in
for the worker's `forward_batch_generation` (on the worker object itself; SGLang's class stays as it is). At any other
time it is not there at all. Beside a fixed-step server, where SGLang asks no policy, it is always there and asks; and
where the operator made SGLang's own zero steps cold, it is always there to know which requests are stale.

Nothing of ours gets out: whatever goes wrong blows the fuse and the round runs as SGLang would have run it. That
holds as well for a catch-up: without it output stays right, and only acceptance suffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from trimtab_sglang.draft_gap import DraftGap
from trimtab_sglang.fuse import Fuse
from trimtab_sglang.lease import PLAIN_COLD, PLAIN_NATIVE, LeaseMachine, Mode
from trimtab_sglang.policy import LeasedPolicy
from trimtab_sglang.recorder import Recorder

HANDLED_HERE = frozenset({PLAIN_NATIVE, PLAIN_COLD})


class LaunchNote(NamedTuple):
    """What else there is to say of a decode launch.

    Attributes:
        launch_id: The launch.
        behind: Where in the batch the requests are whose draft cache had unread tokens.
        catches_up: Whether what was left unread will be read before drafting.
        missed_tokens: Tokens left unread after the launch, over the batch.
        caught_up_tokens: Tokens read into the draft model before the launch, over the batch.
        catch_up_ns: How long that took; asked for when the launch's result is in.
    """

    launch_id: int
    behind: tuple[int, ...] = ()
    catches_up: bool = False
    missed_tokens: int = 0
    caught_up_tokens: int = 0
    catch_up_ns: Callable[[], int] | None = None


class Rounds(Protocol):
    """What runs on the device."""

    window: int
    skips_by_default: bool

    def native(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a native round; SGLang's result."""

    def widen(self) -> None:
        """Put the worker into its widest state, in which a catch-up takes the fewest chunks."""

    def catch_up(self, batch: Any, missed: Sequence[int]) -> Callable[[], int]:
        """Catch the batch up; what tells, later, how long it took."""

    def skip_draft_extend(self, skip: bool) -> None:
        """Whether zero-step rounds leave the draft model unread from now on."""


class NativePlain:
    """Stands in for the worker's `forward_batch_generation`. Owned by the scheduler thread.

    Args:
        worker: SGLang's worker.
        rounds: What runs on the device.
        policy: Chooses the mode of every launch, and answers SGLang's controller.
        machine: Knows the choice.
        recorder: Where launches are noted.
        fuse: Blown by the first exception of ours.
        decode_forward_mode: SGLang's `ForwardMode.DECODE`.
        always: Stand in all the time, because SGLang asks no policy itself.

    Attributes:
        gap: What the draft model has not read.
        armed: Whether this stands in now.
    """

    def __init__(
        self,
        worker: Any,
        rounds: Rounds,
        policy: LeasedPolicy,
        machine: LeaseMachine,
        recorder: Recorder,
        fuse: Fuse,
        decode_forward_mode: Any,
        always: bool = False,
    ) -> None:
        self.gap = DraftGap()
        self.armed = False
        self._worker = worker
        self._rounds = rounds
        self._policy = policy
        self._machine = machine
        self._recorder = recorder
        self._fuse = fuse
        self._decode = decode_forward_mode
        self._always = always
        self._wanted = False
        self._skipping = rounds.skips_by_default
        self._stock: Callable[..., Any] = worker.forward_batch_generation
        self._choose_steps = policy.get_steps_for_batch
        self._steps = 0

    def follow(self) -> None:
        """After a change of lease or pin: stand in if it can ask for a mode that is handled here."""
        machine = self._machine
        asked = set() if machine.lease is None else set(machine.lease.modes)
        if machine.pin is not None:
            asked.add(machine.pin.mode)
        self._wanted = not self._fuse.blown and (self._always or not asked.isdisjoint(HANDLED_HERE))
        if self._wanted and not self.armed:
            self._arm()

    def _arm(self) -> None:
        self._stock = self._worker.forward_batch_generation
        self._worker.forward_batch_generation = self._forward
        # SGLang's controller asks the policy while it launches; by then the choice is made.
        self._policy.get_steps_for_batch = self._given_steps
        self.armed = True

    def _disarm(self) -> None:
        del self._worker.forward_batch_generation
        self._policy.get_steps_for_batch = self._choose_steps
        self.armed = False

    def _given_steps(self, _batch_size: int) -> int:
        return self._steps

    def _forward(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if batch.forward_mode is not self._decode or batch.is_extend_in_batch or batch.spec_info is None:
            return self._stock(batch, *args, **kwargs)
        mode = self._choose(batch)
        if mode == PLAIN_NATIVE:
            result = self._try_native(batch, args, kwargs)
            if result is not None:
                return result
            mode = None
        self._before_stock(batch, mode)
        return self._stock(batch, *args, **kwargs)

    def _choose(self, batch: Any) -> Mode | None:
        """The mode of this launch; None for SGLang's own. `_steps` is what SGLang's controller gets to hear."""
        self._steps = self._choose_steps(len(batch.reqs))
        choice = self._machine.choice
        if choice is None:
            return None
        if choice.mode == PLAIN_NATIVE:
            # Should the native round fail, the round goes on as SGLang's own.
            self._steps = self._policy.stock_steps
        return choice.mode

    def _try_native(self, batch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """SGLang's result of a native round; None if it failed, with the batch as it was."""
        kept = dict(vars(batch))
        try:
            return self._native(batch, args, kwargs)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the scheduler
            vars(batch).update(kept)
            self._fuse.blow("decoding plainly", error)
            return None

    def _native(self, batch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        reqs = batch.reqs
        self._rounds.widen()
        missed = self.gap.missed(reqs) if self.gap else [0]
        unread, caught_up, timer = sum(missed), 0, None
        if max(missed) >= self._rounds.window:
            timer = self._rounds.catch_up(batch, missed)
            self.gap.caught_up(reqs)
            unread, caught_up = 0, unread
        result = self._rounds.native(batch, *args, **kwargs)
        self.gap.miss(reqs)
        self._note(tuple(range(len(reqs))), True, unread + len(reqs), caught_up, timer)
        return result

    def _before_stock(self, batch: Any, mode: Mode | None) -> None:
        """Whatever a round of SGLang's own needs beforehand; never raises."""
        try:
            self._prepare_stock(batch, mode)
        except Exception as error:  # noqa: BLE001
            self._fuse.blow("before a round of SGLang's own", error)

    def _prepare_stock(self, batch: Any, mode: Mode | None) -> None:
        reqs, skip = batch.reqs, self._rounds.skips_by_default if mode is None else mode == PLAIN_COLD
        if skip is not self._skipping:
            self._rounds.skip_draft_extend(skip)
            self._skipping = skip
        missed = self.gap.missed(reqs) if self.gap else [0]
        caught_up, timer = self._catch_up(batch, missed) if any(missed) else (0, None)
        if self._steps and self.gap:
            self.gap.resume(reqs)
        elif not self._steps and skip:
            self.gap.lose(reqs)
        if self.gap or timer is not None:
            self._note(self.gap.behind(reqs), timer is not None, 0, caught_up, timer)
        elif not self._wanted or self._fuse.blown:
            self._disarm()

    def _catch_up(self, batch: Any, missed: Sequence[int]) -> tuple[int, Callable[[], int] | None]:
        """Tokens read, and what tells how long it took. Where it fails the requests are stale, and nothing else."""
        try:
            timer = self._rounds.catch_up(batch, missed)
        except Exception as error:  # noqa: BLE001
            self._fuse.blow("catching the draft model up", error)
            self.gap.lose_missed(batch.reqs)
            return 0, None
        self.gap.caught_up(batch.reqs)
        return sum(missed), timer

    def _note(
        self, behind: tuple[int, ...], catches_up: bool, missed: int, caught_up: int, timer: Callable[[], int] | None
    ) -> None:
        launch_id = self._recorder.launches + 1
        self._recorder.notes.append(LaunchNote(launch_id, behind, catches_up, missed, caught_up, timer))
